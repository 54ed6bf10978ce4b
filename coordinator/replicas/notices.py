"""Wake-ups: who did something tells whoever waits for it, in this process and in the others.

A notice carries no truth: who gets it looks into the database. So one that is lost costs time and
never a result, and after every break of the line everybody looks.
"""

from __future__ import annotations

import json
import logging
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from sqlalchemy import Engine, func, select, text
from sqlalchemy.exc import DBAPIError

from hfmds.errors import HfmdsError, Unavailable
from hfmds.storage.database import passing_errors_are_unavailable

log = logging.getLogger(__name__)

_MAX_ABOUT_BYTES = 7000  # PostgreSQL takes 8000 with what is around
_LISTEN_SECONDS = 1.0  # how soon the thread notices that it is to end
_RETRY_SECONDS = 0.5


class Topic(StrEnum):
    """What a notice is about; the names in it are given here, and none means all."""

    WORK = "work"  # devices for which there may be work
    RUN = "run"  # runs whose driver should look, or which need one
    NEWS = "news"  # a run of which there is something to see, and its progress if it is known
    DEVICES = "devices"  # devices came or went
    TERM = "term"  # the leader has gone


@dataclass(frozen=True, slots=True)
class Notice:
    """Something has happened."""

    topic: Topic
    about: tuple[str, ...] = ()


Listener = Callable[[tuple[str, ...]], None]


class Switchboard:
    """Passes notices on within this process, which is all there is without replicas."""

    def __init__(self) -> None:
        self._listeners: defaultdict[Topic, list[Listener]] = defaultdict(list)

    def listen(self, topic: Topic, listener: Listener) -> None:
        """Have it called with what each notice is about; in any thread, and it must be quick."""
        self._listeners[topic].append(listener)

    def post(self, topic: Topic, *about: str) -> None:
        """Tell everybody. May be called anywhere."""
        self._deliver(Notice(topic, about))

    def announce(self, devices: Iterable[str]) -> None:
        """Tell that there may be work for these devices."""
        if named := tuple(devices):
            self.post(Topic.WORK, *named)

    def _deliver(self, notice: Notice) -> None:
        for listener in self._listeners[notice.topic]:
            listener(notice.about)


class SharedSwitchboard(Switchboard):
    """Also passes notices on to the replicas on the same PostgreSQL (LISTEN and NOTIFY)."""

    def __init__(self, engine: Engine, replica: str) -> None:
        super().__init__()
        self._engine = engine
        self._replica = replica
        self._channel = ""
        self._outbox: dict[Notice, None] = {}  # in order; the same one twice is one
        self._changed = threading.Condition()
        self._closing = threading.Event()

    def start(self) -> None:
        """Begin to listen and to send."""
        with passing_errors_are_unavailable(self._engine), self._engine.connect() as connection:
            # Channels are the whole database's; coordinators in other schemas are not our affair.
            self._channel = f"hfmds_{connection.scalar(select(func.current_schema()))}"[:63]
        for work in (self._keep_listening, self._keep_sending):
            threading.Thread(target=work, name=f"switchboard {work.__name__}", daemon=True).start()

    def close(self) -> None:
        """Stop; what is not sent yet is sent first, unless the database is away."""
        with self._changed:
            self._changed.wait_for(lambda: not self._outbox, _LISTEN_SECONDS)
            self._closing.set()
            self._changed.notify_all()

    def post(self, topic: Topic, *about: str) -> None:
        super().post(topic, *about)
        with self._changed:
            for part in _parts(about):
                notice = Notice(topic, part)
                self._outbox.pop(notice, None)  # the last of equal ones is sent
                self._outbox[notice] = None
            self._changed.notify_all()

    def send(self, notices: Sequence[Notice]) -> None:
        """Tell the other replicas."""
        payloads = [{"channel": self._channel, "notice": self._payload(n)} for n in notices]
        with passing_errors_are_unavailable(self._engine), self._engine.begin() as connection:
            connection.execute(text("SELECT pg_notify(:channel, :notice)"), payloads)

    # --- the threads ----------------------------------------------------------------------------

    def _keep_sending(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._outbox or self._closing.is_set())
                if self._closing.is_set():
                    return
                notices = tuple(self._outbox)
            try:
                self.send(notices)
            except Unavailable as error:
                log.debug("notices wait: %s", error)
                self._closing.wait(_RETRY_SECONDS)
                continue
            with self._changed:
                for notice in notices:
                    self._outbox.pop(notice, None)
                self._changed.notify_all()

    def _keep_listening(self) -> None:
        told = False
        # The driver itself raises while it waits: SQLAlchemy is not asked then.
        errors = (DBAPIError, self._engine.dialect.loaded_dbapi.Error)
        while not self._closing.is_set():
            try:
                self._listen()
            except errors as error:
                if not told:
                    reason = str(error).partition("\n")[0]
                    log.warning("does not hear of the other coordinators: %s", reason)
                told = True
                self._closing.wait(_RETRY_SECONDS)
            except Exception:  # this thread must not end, either
                log.exception("unexpected error")
                self._closing.wait(_RETRY_SECONDS)
            else:
                told = False

    def _listen(self) -> None:
        with self._engine.connect() as connection:
            connection = connection.execution_options(isolation_level="AUTOCOMMIT")
            connection.detach()  # it is ours: nobody should get one that listens
            connection.exec_driver_sql(f'LISTEN "{self._channel}"')
            driver: Any = connection.connection.dbapi_connection
            for topic in Topic:  # what was told meanwhile was not heard
                self._receive(Notice(topic))
            while not self._closing.is_set():
                for heard in driver.notifies(timeout=_LISTEN_SECONDS):
                    sender, topic, *about = json.loads(heard.payload)
                    if sender != self._replica:
                        self._receive(Notice(Topic(topic), tuple(about)))

    def _receive(self, notice: Notice) -> None:
        try:
            self._deliver(notice)
        except HfmdsError as error:  # a listener looked, and the database is busy
            log.warning("notice of %s not heeded: %s", notice.topic, error)

    def _payload(self, notice: Notice) -> str:
        return json.dumps([self._replica, notice.topic, *notice.about])


def _parts(about: tuple[str, ...]) -> Iterable[tuple[str, ...]]:
    """The names in portions that a notice can hold."""
    part: list[str] = []
    size_bytes = 0
    for name in about:
        size_bytes += len(name) + 4  # ids are ASCII; quotes, comma, space
        if size_bytes > _MAX_ABOUT_BYTES:
            yield tuple(part)
            part, size_bytes = [], len(name) + 4
        part.append(name)
    yield tuple(part)
