"""Refuses callers that are revoked or in quarantine, and cuts their calls under way at once.

Any thread may replace the list of exclusions. Calls live on the event loop.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from hfmds.errors import HfmdsError, Unavailable
from hfmds.service.security.certificates import Certificate
from hfmds.service.security.exclusions import Exclusions, quarantine_notice
from hfmds.service.security.identity import Kind

_ASK_AGAIN_SECONDS = 1.0


class GatedCall:
    """A call under way, which the gate can cut."""

    def __init__(self, certificate: Certificate | None, *, in_quarantine: bool) -> None:
        """`in_quarantine`: devices in quarantine may make this call, too."""
        self.device_id = ""
        self._certificate = certificate
        self._in_quarantine = in_quarantine
        self._refusal: HfmdsError | None = None
        self._is_spared = False
        self._is_sending = False
        self._is_cancelled = False
        self._task = asyncio.current_task()
        self.identity = certificate.identity if certificate else None
        if self.identity is not None and self.identity.kind is Kind.DEVICE:
            self.device_id = self.identity.name

    def require_admitted(self, exclusions: Exclusions) -> None:
        """Raise NotAllowed for a revoked caller, and TooLate for a device in quarantine."""
        if self._certificate is not None:
            exclusions.require_alive(self._certificate)
        if not self._in_quarantine:
            exclusions.require_trusted(self.device_id)

    def require_still_admitted(self, exclusions: Exclusions) -> None:
        """Check the same in mid-call. A device that waits in quarantine must ask again."""
        self.require_admitted(exclusions)
        reason = exclusions.quarantined.get(self.device_id)
        if reason is not None:
            raise Unavailable(quarantine_notice(self.device_id, reason), _ASK_AGAIN_SECONDS)

    @contextmanager
    def sending(self) -> Iterator[None]:
        """Around the sending of one response, which no cut may disturb; then apply the cut."""
        self._is_sending = True
        try:
            yield
        finally:
            self._is_sending = False
        if self._refusal is not None:
            raise self._refusal

    def cut(self, refusal: HfmdsError) -> None:
        """End the call, unless it was cut or spared before."""
        if self._refusal is not None or self._is_spared:
            return
        self._refusal = refusal
        if not self._is_sending and self._task is not None:
            self._is_cancelled = True
            self._task.cancel()

    def spare_if_of(self, task: asyncio.Task[object] | None) -> None:
        """Let the call come to its end if it runs in this task."""
        self._is_spared |= self._task is task

    def reason_of_cut(self, stop: BaseException) -> HfmdsError | None:
        """Tell why the gate cancelled the call; None if something else cancelled it."""
        if not self._is_cancelled or not isinstance(stop, asyncio.CancelledError):
            return None
        # A second request to cancel, by somebody else, still stands.
        alone = self._task is not None and self._task.uncancel() == 0
        return self._refusal if alone else None


class Gate:
    """The exclusions of this server, and the calls under way."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._exclusions = Exclusions()
        self._calls: set[GatedCall] = set()
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def exclusions(self) -> Exclusions:
        """The list as it is now."""
        return self._exclusions

    def replace(self, exclusions: Exclusions) -> None:
        """Apply another list from now on. Any thread may call this."""
        with self._lock:
            if exclusions == self._exclusions:
                return
            self._exclusions = exclusions
            loop = self._loop
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self._cut)

    @contextmanager
    def call(
        self, certificate: Certificate | None, *, in_quarantine: bool = False
    ) -> Iterator[GatedCall]:
        """Around a call; NotAllowed, TooLate or Unavailable at once for an excluded caller.

        `in_quarantine`: devices in quarantine may make this call, too.
        """
        if self._loop is None:
            with self._lock:
                self._loop = asyncio.get_running_loop()
        if certificate is not None and certificate.ends <= self._clock():
            # TLS checks the end only when a connection begins, and answers with a closed
            # connection. Unavailable looks the same to callers: they try a newer certificate.
            raise Unavailable(f"certificate {certificate.serial} has expired; show a newer one")
        call = GatedCall(certificate, in_quarantine=in_quarantine)
        call.require_admitted(self._exclusions)
        self._calls.add(call)
        try:
            yield call
        finally:
            self._calls.discard(call)

    def name_device(self, call: GatedCall, device_id: str) -> None:
        """Without certificates: note which device the request names, and check that device."""
        if not call.device_id:
            call.device_id = device_id
            call.require_admitted(self._exclusions)

    def spare_own(self) -> None:
        """Within a call that revokes its own caller: let that caller hear the answer."""
        for call in self._calls:
            call.spare_if_of(asyncio.current_task())

    def _cut(self) -> None:
        for call in tuple(self._calls):
            try:
                call.require_still_admitted(self._exclusions)
            except HfmdsError as refusal:
                call.cut(refusal)
