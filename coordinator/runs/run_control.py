"""How a run's driver steers what works for it in its thread."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar

from coordinator.devices.wakeup import Bell
from hfmds.domain.runs import Progress

Result = TypeVar("Result")


class RunControl(Protocol):
    """What the fleet listens to between two looks at the devices."""

    bell: Bell

    def heed(self) -> None:
        """Raise if the run is to stop; block while it is paused."""

    def pause(self, reason: str) -> None:
        """Pause the run until an operator resumes it."""

    def show(self, progress: Progress) -> None:
        """Tell operators what is going on."""

    def on_loop(self, call: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
        """Make an asynchronous call from this thread and wait for its result."""
