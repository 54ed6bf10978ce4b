"""Frees what a run that has ended leaves behind: the updates of its devices.

Its driver does so after the last round. It gets no chance to when it is killed just before, or when
its run is cancelled in mid-round; then whoever leads does.
"""

from __future__ import annotations

import logging

from coordinator.runs.driver_records import DriverRecords
from hfmds.domain.runs import RunState
from hfmds.storage.blobs import Blobs

log = logging.getLogger(__name__)


def drop_leftovers(records: DriverRecords, blobs: Blobs, run_id: str) -> None:
    """Delete all content of a run that has ended but its models and the server's last state.

    Meanwhile nobody may delete the run and create another with its id.
    """
    run = records.runs.get(run_id)
    if not run.state.ended or run.state is RunState.DELETING:
        return
    # Before asking what is needed: should we not lead any more, asking tells.
    there = tuple(blobs.digests())
    needed = records.phases.models_handed_out(run_id) - records.runs.dropped_models(run_id)
    last = run.last_round
    kept = (run.start, last and last.weights, last and last.server_state)
    needed |= {digest.sha256 for digest in kept if digest}
    unneeded = [digest for digest in there if digest.sha256 not in needed]
    for digest in unneeded:
        blobs.delete(digest)
    if unneeded:
        size_bytes = sum(digest.size_bytes for digest in unneeded)
        log.info("leftovers dropped", extra={"blobs": len(unneeded), "bytes": size_bytes})
