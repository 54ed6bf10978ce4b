"""The device's client of CoordinatorService: takes and returns values, raises hfmds.errors."""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator, AsyncIterator

from hfmds.domain.devices import DeviceProfile
from hfmds.domain.digest import Digest
from hfmds.domain.tasks import (
    Assignment,
    EvaluationReport,
    FailureCause,
    Finished,
    RetryLater,
    SynthesisReport,
    TaskStage,
    UnreadableTask,
    UpdateReport,
    UploadState,
)
from hfmds.service.client.peer import Peer
from hfmds.storage.blobs import Blobs
from hfmds.v1 import coordinator_pb2 as pb
from hfmds.v1.coordinator_pb2_grpc import CoordinatorServiceStub
from hfmds.wire.chunks import Content, Sender, fetch
from hfmds.wire.clients.service_client import CALL_SECONDS, TRANSFER_SECONDS, ServiceClient
from hfmds.wire.conversions.common import digest_message
from hfmds.wire.conversions.device_calls import (
    MAX_REASON_CHARACTERS,
    evaluation_report_message,
    outcome_from,
    profile_message,
    stage_name,
    synthesis_report_message,
    update_report_message,
)

_GOODBYE_SECONDS = 2.0


class CoordinatorClient(ServiceClient):
    """One device's calls to its coordinator."""

    def __init__(self, peer: Peer, device_id: str) -> None:
        super().__init__(peer, CoordinatorServiceStub)
        self._device_id = device_id
        self._process = uuid.uuid4().hex
        self._sender = Sender()

    async def check_in(
        self, profile: DeviceProfile, wait_seconds: float, run_id: str = ""
    ) -> Assignment | UnreadableTask | RetryLater | Finished:
        """Ask for work and wait for it at most `wait_seconds`."""
        request = pb.CheckInRequest(
            device_id=self._device_id,
            profile=profile_message(profile),
            wait_seconds=wait_seconds,
            run_id=run_id,
            process=self._process,
        )
        deadline_seconds = wait_seconds + CALL_SECONDS
        response = await self._call(self._stub.CheckIn, request, timeout_seconds=deadline_seconds)
        return outcome_from(response)

    async def renew_lease(self, task_id: str, stage: TaskStage | None = None) -> float:
        """Keep the task and report its stage; return the seconds that the lease now lasts."""
        request = pb.RenewLeaseRequest(
            device_id=self._device_id, task_id=task_id, stage=stage_name(stage)
        )
        response = await self._call(self._stub.RenewLease, request)
        return float(response.lease_seconds)

    async def download(self, task_id: str, digest: Digest, content: Content) -> int:
        """Fetch content of a task; return the bytes that crossed the network."""

        async def chunks(offset: int) -> AsyncGenerator[bytes, None]:
            request = pb.DownloadBlobRequest(
                device_id=self._device_id,
                task_id=task_id,
                digest=digest_message(digest),
                offset=offset,
            )
            responses = self._stream(
                self._stub.DownloadBlob, request, timeout_seconds=TRANSFER_SECONDS
            )
            async for response in responses:
                yield response.data

        return await fetch(content, digest, chunks)

    async def submit_update(self, task_id: str, report: UpdateReport, blobs: Blobs) -> bool:
        """Upload and hand in an update; return True if the coordinator had accepted it before."""

        async def query() -> UploadState:
            request = pb.QueryUploadRequest(
                device_id=self._device_id, task_id=task_id, update=digest_message(report.update)
            )
            response = await self._call(self._stub.QueryUpload, request)
            return UploadState(response.offset, response.complete)

        async def upload(offset: int, chunks: AsyncIterator[bytes]) -> bool:
            async def requests() -> AsyncIterator[pb.SubmitUpdateRequest]:
                header = pb.SubmitUpdateHeader(
                    device_id=self._device_id,
                    task_id=task_id,
                    offset=offset,
                    report=update_report_message(report),
                )
                yield pb.SubmitUpdateRequest(header=header)
                async for chunk in chunks:
                    yield pb.SubmitUpdateRequest(data=chunk)

            response = await self._call(
                self._stub.SubmitUpdate, requests(), timeout_seconds=TRANSFER_SECONDS
            )
            return bool(response.already_accepted)

        return await self._sender.send(blobs, report.update, query, upload)

    async def submit_synthesis(self, task_id: str, report: SynthesisReport) -> bool:
        """Report a batch that is in the pool; return True if it had been accepted before."""
        request = synthesis_report_message(self._device_id, task_id, report)
        response = await self._call(self._stub.SubmitSynthesis, request)
        return bool(response.already_accepted)

    async def submit_evaluation(self, task_id: str, report: EvaluationReport) -> bool:
        """Report how a model does; return True if the report had been accepted before."""
        request = evaluation_report_message(self._device_id, task_id, report)
        response = await self._call(self._stub.SubmitEvaluation, request)
        return bool(response.already_accepted)

    async def report_failure(self, task_id: str, reason: str, cause: FailureCause) -> None:
        """Give a task up."""
        request = pb.ReportFailureRequest(
            device_id=self._device_id,
            task_id=task_id,
            reason=reason[:MAX_REASON_CHARACTERS],
            cause=f"FAILURE_CAUSE_{cause.name}",
        )
        await self._call(self._stub.ReportFailure, request)

    async def leave(self) -> None:
        """Tell the coordinator that this device stops for now."""
        request = pb.LeaveRequest(device_id=self._device_id)
        await self._call(self._stub.Leave, request, timeout_seconds=_GOODBYE_SECONDS)
