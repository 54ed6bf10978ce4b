"""What this device tells the coordinator about itself, and when its owner lets it work."""

from __future__ import annotations

from collections.abc import Sequence

from edge_client.device.conditions import Conditions
from edge_client.device.memory_limit import MemoryLimit
from edge_client.device.own_images import Images
from edge_client.device.traffic import TrafficBudget
from hfmds.domain.devices import DeviceProfile
from hfmds.service.monitoring.program_metrics import software_version


class ThisDevice:
    """The device as of now. Blocks: call it in a thread."""

    def __init__(
        self,
        images: Sequence[Images],
        memory: MemoryLimit,
        conditions: Conditions,
        budget: TrafficBudget,
        *,
        engine: str,
        labels: tuple[str, ...] = (),
    ) -> None:
        """The device trains on the first of its `images`; `engine` is the engine's name."""
        self._images = images
        self._memory = memory
        self._conditions = conditions
        self._budget = budget
        self._engine = engine
        self._labels = labels

    def profile(self) -> DeviceProfile:
        """Look at images and conditions, and describe the device."""
        for images in self._images:
            images.look()
        return DeviceProfile(
            samples=len(self._images[0]),
            software_version=software_version(),
            engine=self._engine,
            free_memory_bytes=self._memory.left_bytes(),
            labels=self._labels,
            charging=self._conditions.holds("charging"),
            unmetered=self._conditions.holds("unmetered"),
        )

    def refusal(self, *, working: bool) -> str | None:
        """Return why the device may not work now; None if it may."""
        # A task that was begun may end, even if it uses up the traffic of the day.
        return self._conditions.refusal() or (None if working else self._budget.refusal())
