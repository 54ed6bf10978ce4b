"""What ends the life of data: released runs, collected snapshots, withdrawn devices."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import datetime

from hfmds.domain.pools import Collected, Withdrawal
from synthesis_store.content.orphans import Orphans
from synthesis_store.events import STORE
from synthesis_store.pools.pools import Pools
from synthesis_store.retention.snapshot_retention import SnapshotRetention
from synthesis_store.retention.withdrawals import Withdrawals

log = logging.getLogger(__name__)


class DataRetention:
    """Removes data on request, and what is due by itself. Methods block."""

    def __init__(
        self,
        snapshots: SnapshotRetention,
        withdrawals: Withdrawals,
        orphans: Orphans,
        pools: Pools,
        now: Callable[[], datetime],
    ) -> None:
        self._snapshots = snapshots
        self._withdrawals = withdrawals
        self._orphans = orphans
        self._pools = pools
        self._now = now

    def release(self, run_id: str, by: str = STORE) -> int:
        """Give up all pools and snapshots of a run. Returns the number of snapshots."""
        snapshots = self._snapshots.release(run_id, by)
        log.info("run released", extra={"run": run_id, "snapshots": snapshots})
        return snapshots

    def collect(self, by: str = STORE, *, dry_run: bool = False) -> Collected:
        """Remove the snapshots that no run needs, or only return them."""
        collected = self._snapshots.collect(by, dry_run=dry_run)
        if dry_run:
            return collected
        self._withdrawals.complete()
        if collected.snapshot_ids:
            log.info(
                "snapshots collected",
                extra={
                    "snapshots": len(collected.snapshot_ids),
                    "erased_blobs": collected.erased_blobs,
                    "erased_bytes": collected.erased_bytes,
                },
            )
        return collected

    def withdraw(self, device_id: str, run_id: str = "", by: str = STORE) -> Withdrawal:
        """Withdraw a device from one run, or from all if `run_id` is empty."""
        withdrawal = self._withdrawals.withdraw(device_id, run_id, by)
        self._pools.discard_uploads(device_id)  # the device can begin those of other runs again
        log.info("device withdrawn", extra={"batches": withdrawal.removed_batches})
        return withdrawal

    def recover(self) -> None:
        """Finish what an earlier process began: delete content that nothing needs."""
        erased = self._orphans.delete_due()
        self._withdrawals.complete()
        uploads = self._pools.purge_uploads(self._now())
        log.info("store recovered", extra={"erased_blobs": erased.blobs, "stale_uploads": uploads})

    def clean_up(self) -> None:
        """Delete stale uploads and all content that nothing needs. Lists all content."""
        self._pools.purge_uploads(self._now())
        self._orphans.sweep()
        self._withdrawals.complete()
