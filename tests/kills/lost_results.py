"""Hears what devices are told, so that a result that was taken and then lost is noticed.

The weights would not show it: a device whose task is given out again does the same once more.
"""

from __future__ import annotations

from typing import Any

from hfmds.domain.tasks import Assignment
from hfmds.errors import TooLate
from tests.support.scripted_devices import Call, Meddler, meddle_not


class Witness:
    """Stands between all devices of a story and the coordinator."""

    def __init__(self) -> None:
        self.taken: list[str] = []  # tasks whose result was acknowledged, each device's in order
        self.taken_before: list[str] = []  # of these, those that had been accepted already
        self.late: list[tuple[str, str]] = []  # devices that were too late, and the reason
        self.lost: list[str] = []  # tasks that were given out again though they were taken

    def of(self, device_id: str, meddler: Meddler = meddle_not) -> Meddler:
        """Hears one device, whose calls go through another meddler."""

        async def meddle(call: Call) -> Any:
            try:
                answer = await meddler(call)
            except TooLate as error:
                # A device hears it from its submission, or from a renewal just before.
                told = device_id, error.reason
                asks = call.method in ("submit_update", "renew_lease")
                if asks and error.reason != "accepted" and told not in self.late:
                    self.late.append(told)
                raise
            if call.method == "submit_update":
                self.taken.append(call.args[0])
                if answer:
                    self.taken_before.append(call.args[0])
            elif isinstance(answer, Assignment) and answer.task_id in self.taken:
                self.lost.append(answer.task_id)
            return answer

        return meddle

    def require_sound(self) -> None:
        """Nothing acknowledged is lost, and nothing was acknowledged twice."""
        assert self.lost == []
        assert len(set(self.taken)) == len(self.taken)
