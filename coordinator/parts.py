"""What a run's driver works with, passed around as one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from sqlalchemy import Engine

from coordinator.devices.dispatch import Dispatch
from coordinator.devices.registry import Registry
from coordinator.monitoring.metrics import Metrics
from coordinator.records.drain import DrainRecords
from coordinator.records.events import EventRecords
from coordinator.records.funnel import FunnelRecords, StageNotes
from coordinator.records.phases import PhaseRecords
from coordinator.records.rounds import RoundRecords
from coordinator.records.runs import RunRecords
from coordinator.records.tasks import TaskRecords
from coordinator.replicas.notices import Switchboard
from coordinator.runs.content import RunContents
from coordinator.runs.held_out import HeldOut
from coordinator.runs.learning import Learning
from hfmds.domain.pools import Contribution, PoolSpec, Snapshot


class PoolStore(Protocol):
    """What the coordinator needs of the synthesis store."""

    async def open_pool(
        self, pool_id: str, spec: PoolSpec, referenced_snapshots: Sequence[str] = ()
    ) -> frozenset[str]:
        """Open a pool for one refresh, and keep these snapshots until the next is opened.

        Returns the devices of which it takes nothing: they were withdrawn.
        """

    async def seal_pool(
        self, pool_id: str, contributions: Sequence[Contribution]
    ) -> tuple[Snapshot, tuple[Contribution, ...]]:
        """Seal the named batches; the snapshot, and those that are not in the pool."""

    async def release_run(self, run_id: str) -> int:
        """Give up what a run has; returns how many snapshots that are."""


@dataclass(frozen=True, slots=True)
class Parts:
    """The coordinator's parts, made once in `__main__`."""

    runs: RunRecords
    rounds: RoundRecords
    phases: PhaseRecords
    tasks: TaskRecords
    events: EventRecords
    drain: DrainRecords
    stages: StageNotes
    funnel: FunnelRecords
    registry: Registry
    contents: RunContents
    dispatch: Dispatch
    switchboard: Switchboard
    store: PoolStore
    learning: Learning
    held_out: HeldOut
    metrics: Metrics
    clock: Callable[[], float]
    loop: asyncio.AbstractEventLoop  # where the store's calls are made

    def on(self, engine: Engine) -> Parts:
        """The parts for a run's driver that may use the database only through this engine."""
        return replace(
            self,
            runs=RunRecords(engine),
            rounds=RoundRecords(engine),
            phases=PhaseRecords(engine),
        )
