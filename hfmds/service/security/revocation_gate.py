"""Keeps out who is shut out, at once: calls that are under way are cut.

The list is replaced from any thread; calls live on the event loop.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from types import TracebackType

from hfmds.errors import HfmdsError, Unavailable
from hfmds.service.security.certificates import Certificate
from hfmds.service.security.exclusions import Exclusions, quarantine_notice
from hfmds.service.security.identity import Kind

_ASK_AGAIN_SECONDS = 1.0


class GatedCall:
    """A call, by whom it is, and why it was cut; inside, it is under way."""

    def __init__(
        self, certificate: Certificate | None, in_quarantine: bool, calls: set[GatedCall]
    ) -> None:
        self.certificate = certificate
        self._calls = calls  # that are under way
        self.refusal: HfmdsError | None = None
        self.device_id = ""  # known from the certificate, or from the first request
        self._in_quarantine = in_quarantine
        self._spared = False
        self._task = asyncio.current_task()
        self._waits_for_us = True
        self._cancelled = False
        identity = certificate.identity if certificate else None
        if identity is not None and identity.kind is Kind.DEVICE:
            self.device_id = identity.name

    def __enter__(self) -> GatedCall:
        self._calls.add(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self._calls.discard(self)

    def require(self, exclusions: Exclusions) -> None:
        """Refuse whoever is shut out."""
        if self.certificate is not None:
            exclusions.require_alive(self.certificate)
        if not self._in_quarantine:
            exclusions.require_trusted(self.device_id)

    def require_still(self, exclusions: Exclusions) -> None:
        """The same in mid-call; who waits for what there is in quarantine must ask again."""
        self.require(exclusions)
        if self.device_id in exclusions.quarantined:
            reason = exclusions.quarantined[self.device_id]
            raise Unavailable(quarantine_notice(self.device_id, reason), _ASK_AGAIN_SECONDS)

    def of_device(self, device_id: str, exclusions: Exclusions) -> None:
        """Where callers have no certificates: it is this device's, as the request says."""
        if not self.device_id:
            self.device_id = device_id
            self.require(exclusions)

    def look(self) -> None:
        """Between two responses: refuse to go on if the call was cut meanwhile."""
        if self.refusal is not None:
            raise self.refusal

    def begin_sending(self) -> None:
        """A response is sent from now on, in which gRPC must not be disturbed."""
        self._waits_for_us = False

    def end_sending(self) -> None:
        """It is sent."""
        self._waits_for_us = True

    def spare(self, task: asyncio.Task[object] | None) -> None:
        """If it is this task's: let it come to its end, whatever is replaced from now on."""
        self._spared |= self._task is task

    def cut(self, refusal: HfmdsError) -> None:
        """End the call as soon as may be; once is enough."""
        if self.refusal is not None or self._spared:
            return
        self.refusal = refusal
        if self._waits_for_us and self._task is not None:
            self._cancelled = True
            self._task.cancel()

    def reason_of_cut(self, stop: BaseException) -> HfmdsError | None:
        """When a call was cancelled: why, if that was our doing and nobody else's."""
        if not self._cancelled or not isinstance(stop, asyncio.CancelledError):
            return None
        # Somebody else's request to cancel would still stand.
        alone = self._task is not None and self._task.uncancel() == 0
        return self.refusal if alone else None


class Gate:
    """The list, and the calls that it is held against."""

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
        """Hold calls against another list from now on. May be called anywhere."""
        with self._lock:
            if exclusions == self._exclusions:
                return
            self._exclusions = exclusions
            loop = self._loop
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self._cut)

    def call(self, certificate: Certificate | None, *, in_quarantine: bool = False) -> GatedCall:
        """Around a call; NotAllowed, TooLate or Unavailable at once if its caller is shut out.

        `in_quarantine`: the call is also for devices in quarantine.
        """
        if self._loop is None:
            with self._lock:
                self._loop = asyncio.get_running_loop()
        if certificate is not None and certificate.ends <= self._clock():
            # TLS looks at it only when a connection begins; then its refusal looks the same to the
            # caller, who tries again, with a newer one.
            raise Unavailable(f"certificate {certificate.serial} has run out; show a newer one")
        call = GatedCall(certificate, in_quarantine, self._calls)
        call.require(self._exclusions)
        return call

    def spare_own(self) -> None:
        """Within a call that shuts its own caller out: have that caller hear that it is done."""
        for call in self._calls:
            call.spare(asyncio.current_task())

    def _cut(self) -> None:
        for call in tuple(self._calls):
            try:
                call.require_still(self._exclusions)
            except HfmdsError as refusal:
                call.cut(refusal)
