"""Notices: wake the listeners of this process and of the other replicas after a change.

A notice carries no data: its listeners read the database. So a lost notice costs time and never a
result. After each break of the connection, all listeners read.
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

_MAX_NAMES_BYTES = 7000  # PostgreSQL takes payloads of 8000 bytes
_LISTEN_SECONDS = 1.0  # how soon the thread notices `close`
_RETRY_SECONDS = 0.5


class Topic(StrEnum):
    """The subject of a notice. The comments say what its names are; no names means all."""

    WORK = "work"  # devices that may get work
    RUN = "run"  # runs whose driver should read the database, or that need a driver
    NEWS = "news"  # a run that has changed for its viewers, and its progress if known
    DEVICES = "devices"  # replicas that wrote new sightings of devices
    SIGHTINGS = "sightings"  # no names: this replica has sightings for the others
    TERM = "term"  # no names: the leader has stopped


@dataclass(frozen=True, slots=True)
class Notice:
    """A change that listeners should read from the database."""

    topic: Topic
    about: tuple[str, ...] = ()


Listener = Callable[[tuple[str, ...]], None]


class Notices:
    """Delivers notices within this process; without replicas, this is enough."""

    def __init__(self) -> None:
        self._listeners: defaultdict[Topic, list[Listener]] = defaultdict(list)

    def listen(self, topic: Topic, listener: Listener) -> None:
        """Call the listener with the names of each notice, in any thread. It must be quick."""
        self._listeners[topic].append(listener)

    def post(self, topic: Topic, *about: str) -> None:
        """Deliver a notice to all listeners. Any thread may call this."""
        self.post_here(topic, *about)

    def post_here(self, topic: Topic, *about: str) -> None:
        """Deliver a notice to the listeners of this process only."""
        self._deliver(Notice(topic, about))

    def announce(self, devices: Iterable[str]) -> None:
        """Post that these devices may get work."""
        if names := tuple(devices):
            self.post(Topic.WORK, *names)

    def _deliver(self, notice: Notice) -> None:
        for listener in self._listeners[notice.topic]:
            listener(notice.about)


class SharedNotices(Notices):
    """Also delivers notices to the replicas on the same PostgreSQL (LISTEN and NOTIFY)."""

    def __init__(self, engine: Engine, replica: str) -> None:
        super().__init__()
        self._engine = engine
        self._replica = replica
        self._channel = ""
        self._outbox: dict[Notice, None] = {}  # in order, without duplicates
        self._changed = threading.Condition()
        self._closing = threading.Event()

    def start(self) -> None:
        """Start to listen and to send."""
        with passing_errors_are_unavailable(self._engine), self._engine.connect() as connection:
            # A channel belongs to the database, so its name has the schema of this coordinator.
            self._channel = f"hfmds_{connection.scalar(select(func.current_schema()))}"[:63]
        for work in (self._keep_listening, self._keep_sending):
            threading.Thread(target=work, name=f"notices {work.__name__}", daemon=True).start()

    def close(self) -> None:
        """Stop, after sending the notices that wait, unless the database is away."""
        with self._changed:
            self._changed.wait_for(lambda: not self._outbox, _LISTEN_SECONDS)
            self._closing.set()
            self._changed.notify_all()

    def post(self, topic: Topic, *about: str) -> None:
        super().post(topic, *about)
        with self._changed:
            for names in _portions(about):
                notice = Notice(topic, names)
                self._outbox.pop(notice, None)  # an equal one moves to the end
                self._outbox[notice] = None
            self._changed.notify_all()

    def send(self, notices: Sequence[Notice]) -> None:
        """Send notices to the other replicas."""
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
        warned = False
        # While it waits, the driver raises its own errors and not those of SQLAlchemy.
        errors = (DBAPIError, self._engine.dialect.loaded_dbapi.Error)
        while not self._closing.is_set():
            try:
                self._listen()
            except errors as error:
                if not warned:
                    reason = str(error).partition("\n")[0]
                    log.warning("cannot listen to the other coordinators: %s", reason)
                warned = True
                self._closing.wait(_RETRY_SECONDS)
            except Exception:  # this thread must not end
                log.exception("unexpected error")
                self._closing.wait(_RETRY_SECONDS)
            else:
                warned = False

    def _listen(self) -> None:
        with self._engine.connect() as connection:
            connection = connection.execution_options(isolation_level="AUTOCOMMIT")
            connection.detach()  # the pool must not get back a connection that listens
            connection.exec_driver_sql(f'LISTEN "{self._channel}"')
            driver: Any = connection.connection.dbapi_connection
            for topic in Topic:  # notices of the time without a connection are lost
                self._receive(Notice(topic))
            while not self._closing.is_set():
                for message in driver.notifies(timeout=_LISTEN_SECONDS):
                    sender, topic, *about = json.loads(message.payload)
                    if sender != self._replica:
                        self._receive(Notice(Topic(topic), tuple(about)))

    def _receive(self, notice: Notice) -> None:
        try:
            self._deliver(notice)
        except HfmdsError as error:  # a listener read the database, which is busy
            log.warning("a listener of %s notices failed: %s", notice.topic, error)

    def _payload(self, notice: Notice) -> str:
        return json.dumps([self._replica, notice.topic, *notice.about])


def _portions(names: tuple[str, ...]) -> Iterable[tuple[str, ...]]:
    """Split names into portions that fit into a notice."""
    portion: list[str] = []
    size_bytes = 0
    for name in names:
        size_bytes += len(name) + 4  # ids are ASCII; quotes, comma, space
        if size_bytes > _MAX_NAMES_BYTES:
            yield tuple(portion)
            portion, size_bytes = [], len(name) + 4
        portion.append(name)
    yield tuple(portion)
