"""Watches the answers to devices, to notice a result that the coordinator took and then lost.

The weights cannot show such a loss: a device that gets its task again repeats the same work.
"""

from __future__ import annotations

from typing import Any

from hfmds.domain.tasks import Assignment
from hfmds.errors import TooLate
from tests.support.scripted_devices import Call, Interceptor, pass_on


class ResultWatcher:
    """Sits between all devices of a scenario and the coordinator."""

    def __init__(self) -> None:
        self.taken: list[str] = []  # tasks with an acknowledged result
        self.taken_before: list[str] = []  # those of `taken` that an earlier call had handed in
        self.late: list[tuple[str, str]] = []  # late devices, and the reason
        self.lost: list[str] = []  # tasks that were handed out again after `taken`

    def of(self, device_id: str, interceptor: Interceptor = pass_on) -> Interceptor:
        """Watch one device, whose calls go through another interceptor."""

        async def intercept(call: Call) -> Any:
            try:
                answer = await interceptor(call)
            except TooLate as error:
                # A device hears it from its submission, or from a renewal just before.
                execution = device_id, error.reason
                asks = call.method in ("submit_update", "renew_lease")
                if asks and error.reason != "accepted" and execution not in self.late:
                    self.late.append(execution)
                raise
            if call.method == "submit_update":
                self.taken.append(call.args[0])
                if answer:
                    self.taken_before.append(call.args[0])
            elif isinstance(answer, Assignment) and answer.task_id in self.taken:
                self.lost.append(answer.task_id)
            return answer

        return intercept

    def require_sound(self) -> None:
        """Require that no acknowledged result is lost or acknowledged twice."""
        assert self.lost == []
        assert len(set(self.taken)) == len(self.taken)
