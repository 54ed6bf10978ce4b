"""What a run's driver works with, passed around as one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from sqlalchemy import Engine

from coordinator.content import RunContents
from coordinator.dispatch import Dispatch
from coordinator.drain import DrainRecords
from coordinator.events import EventRecords
from coordinator.funnel import FunnelRecords, StageNotes
from coordinator.held_out import HeldOut
from coordinator.learning import Learning
from coordinator.metrics import Metrics
from coordinator.phase_records import PhaseRecords
from coordinator.registry import Registry
from coordinator.round_records import RoundRecords
from coordinator.run_records import RunRecords
from coordinator.switchboard import Switchboard
from coordinator.task_records import TaskRecords
from hfmds.wire.types import Contribution, PoolSpec, Snapshot


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
