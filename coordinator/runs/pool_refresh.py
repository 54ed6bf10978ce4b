"""Opens and seals the pools of one run at the synthesis store."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol, TypeVar

from coordinator.records.runs import RunRecord
from coordinator.runs.run_control import DriverRecords, RunControl, RunStopped
from hfmds.domain.digest import Digest
from hfmds.domain.pools import Contribution, PoolSpec, Snapshot
from hfmds.domain.runs import Phase, Progress
from hfmds.errors import HfmdsError, Unavailable

log = logging.getLogger(__name__)

Result = TypeVar("Result")

_STORE_RETRY_SECONDS = 1.0
_LOOK_SECONDS = 0.5  # how soon a call ends after the driver was told to stop


class PoolStore(Protocol):
    """The synthesis store, as runs use it."""

    async def open_pool(
        self, pool_id: str, spec: PoolSpec, referenced_snapshots: Sequence[str] = ()
    ) -> frozenset[str]:
        """Open a pool for one refresh, and keep these snapshots until the next is opened.

        Returns the devices whose batches it refuses because they were withdrawn.
        """

    async def seal_pool(
        self, pool_id: str, contributions: Sequence[Contribution]
    ) -> tuple[Snapshot, tuple[Contribution, ...]]:
        """Seal the named batches. Returns the snapshot, and the batches that are not in it."""

    async def release_run(self, run_id: str) -> int:
        """Give up all snapshots of a run; returns their number."""


class PoolRefresh:
    """Calls the store until it answers. A refusal pauses the run."""

    def __init__(
        self,
        run: RunRecord,
        control: RunControl,
        records: DriverRecords,
        store: PoolStore,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        """`loop` is the event loop on which the store is called."""
        self._run = run
        self._control = control
        self._records = records
        self._store = store
        self._loop = loop

    def open(self, round_number: int, weights: Digest) -> frozenset[str]:
        """Begin a round and open its pool. Returns the devices whose images were withdrawn."""
        run_id = self._run.run_id
        self._records.rounds.begin(run_id, round_number, self._control.now())
        in_use = self._records.retention.snapshots_in_use(run_id)  # by asynchronous rounds
        pool_id, spec = self._run.pool_id(round_number), self._spec(round_number, weights)
        return self._call(round_number, lambda: self._store.open_pool(pool_id, spec, in_use))

    def seal(self, round_number: int, contributions: Sequence[Contribution]) -> Snapshot:
        """Seal the pool of a refresh. Batches that the store lacks are left out with a warning."""
        pool_id = self._run.pool_id(round_number)
        snapshot, missing = self._call(
            round_number, lambda: self._store.seal_pool(pool_id, contributions)
        )
        for contribution in missing:
            log.warning(
                "device %s reported a batch that the store does not have", contribution.device_id
            )
        return snapshot

    def _call(self, round_number: int, call: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
        warned = False
        while True:
            self._control.wait_until_running()
            wakes = self._control.wakeup.wakes
            try:
                return self._wait_for(call())
            except Unavailable as error:
                if not warned:
                    log.warning("the run waits for the synthesis store: %s", error)
                    warned = True
                self._control.show(Progress(round_number, Phase.WAITING_FOR_STORE, 0, 0))
                self._control.wakeup.wait(wakes, _STORE_RETRY_SECONDS)
            except HfmdsError as error:
                self._control.pause(f"round {round_number}: the synthesis store refuses: {error}")

    def _wait_for(self, call: Coroutine[Any, Any, Result]) -> Result:
        answer = asyncio.run_coroutine_threadsafe(call, self._loop)
        while True:
            try:
                return answer.result(_LOOK_SECONDS)
            except TimeoutError:
                if self._control.stopping:
                    answer.cancel()
                    raise RunStopped from None

    def _spec(self, round_number: int, weights: Digest) -> PoolSpec:
        recipe = self._run.spec.recipe
        return PoolSpec(
            run_id=self._run.run_id,
            round_number=round_number,
            weights=weights,
            model=recipe.model,
            max_samples_per_device=recipe.method.samples_per_device,
            method=recipe.method.name,
            with_shares=recipe.method.with_shares,
            normalisation=recipe.normalisation,
            policy=recipe.pool,
        )
