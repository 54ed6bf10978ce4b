"""Sends the result of a task to the coordinator, and a batch to the store before that."""

from __future__ import annotations

import asyncio
import dataclasses
from functools import partial
from typing import TypeVar

from edge_client.device.content_cache import ContentCache
from edge_client.device.device_folder import Report
from edge_client.peers import Peers
from edge_client.tasks.transfers import Transfers
from hfmds.domain.learning import Traffic
from hfmds.domain.tasks import Assignment, SynthesiseWork, SynthesisReport, UpdateReport
from hfmds.service.monitoring.tracing import span

Sent = TypeVar("Sent", UpdateReport, SynthesisReport)


class Submitter:
    """Submits results."""

    def __init__(
        self, peers: Peers, cache: ContentCache, transfers: Transfers, *, device_id: str
    ) -> None:
        self._coordinator, self._store = peers.coordinator, peers.store
        self._to_coordinator = peers.coordinator_retry.call
        self._to_store = peers.store_retry.call
        self._cache = cache
        self._transfers = transfers
        self._device_id = device_id

    async def submit(self, task: Assignment, report: Report) -> Report:
        """Send the result; on return the coordinator has accepted the returned report."""
        if isinstance(report, UpdateReport):
            return await self._submit_update(task, report)
        if isinstance(report, SynthesisReport):
            return await self._submit_synthesis(task, report)
        with span("submit"):
            submit = self._coordinator.submit_evaluation
            await self._to_coordinator(submit, task.task_id, report)
        return report

    async def _submit_update(self, task: Assignment, report: UpdateReport) -> UpdateReport:
        report = _with_sent(report, report.update.size_bytes)
        blobs = self._cache.content.blobs
        submit = partial(self._coordinator.submit_update, task.task_id, report, blobs)
        with span("submit"):
            await self._transfers.repeat(lambda: self._to_coordinator(submit))
        # The coordinator does not ask for it again.
        await asyncio.to_thread(self._cache.remove, report.update)
        return report

    async def _submit_synthesis(self, task: Assignment, report: SynthesisReport) -> SynthesisReport:
        assert isinstance(task.work, SynthesiseWork)
        put = partial(
            self._store.put_batch,
            task.work.pool_id,
            self._device_id,
            report.batch,
            self._cache.content.blobs,
            task.weights,
        )
        with span("upload"):
            sent_bytes = await self._transfers.repeat(lambda: self._to_store(put))
        report = _with_sent(report, sent_bytes)
        with span("submit"):
            submit = self._coordinator.submit_synthesis
            await self._to_coordinator(submit, task.task_id, report)
        return report


def _with_sent(report: Sent, sent_bytes: int) -> Sent:
    """Return the report with the bytes that its submission sends."""
    return dataclasses.replace(report, traffic=report.traffic + Traffic(sent_bytes=sent_bytes))
