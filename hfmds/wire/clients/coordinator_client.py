"""The device's side of CoordinatorService: values in, values out, hfmds.errors raised."""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import replace

from hfmds.domain.devices import DeviceProfile
from hfmds.domain.digest import Digest
from hfmds.domain.learning import Traffic
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
from hfmds.service.client.channel import Channel, call, open_channel, translating
from hfmds.service.client.peer import Peer
from hfmds.service.monitoring.tracing import call_metadata
from hfmds.storage.blobs import Blobs
from hfmds.v1 import coordinator_pb2 as pb
from hfmds.v1.coordinator_pb2_grpc import CoordinatorServiceStub
from hfmds.wire.chunks import Content, Sender, data_decoder, fetch, upload_message
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

_SERVICE = pb.DESCRIPTOR.services_by_name["CoordinatorService"].full_name
_CALL_SECONDS = 30.0
_TRANSFER_SECONDS = 600.0
_GOODBYE_SECONDS = 2.0


class CoordinatorClient:
    """One device talking to its coordinator."""

    def __init__(self, peer: Peer, device_id: str) -> None:
        self._peer = peer
        self._device_id = device_id
        self._process = uuid.uuid4().hex
        self._sender = Sender()
        # With its upload, and it counts; and whether it did before.
        self._handed_in: tuple[UpdateReport, bool] | None = None
        self._use(open_channel(peer))

    async def close(self) -> None:
        await self._channel.close()

    async def reopen(self) -> None:
        """Make further calls with the certificate that is there by now; those under way end."""
        old = self._channel
        self._use(open_channel(self._peer))
        await old.close(_TRANSFER_SECONDS)

    def _use(self, channel: Channel) -> None:
        """Make further calls on this channel."""
        self._channel = channel
        self._stub = CoordinatorServiceStub(channel)
        # Content goes by hand, with as few copies as at the server.
        self._download = channel.unary_stream(
            f"/{_SERVICE}/DownloadBlob",
            request_serializer=pb.DownloadBlobRequest.SerializeToString,
            response_deserializer=data_decoder(pb.DownloadBlobResponse.FromString),
        )
        self._upload = channel.stream_unary(
            f"/{_SERVICE}/UploadUpdate",  # of requests that are serialised
            response_deserializer=pb.UploadUpdateResponse.FromString,
        )

    async def check_in(
        self, profile: DeviceProfile, wait_seconds: float, run_id: str = ""
    ) -> Assignment | UnreadableTask | RetryLater | Finished:
        """Ask for work, waiting for it at most so long."""
        request = pb.CheckInRequest(
            device_id=self._device_id,
            profile=profile_message(profile),
            wait_seconds=wait_seconds,
            run_id=run_id,
            process=self._process,
        )
        deadline = wait_seconds + _CALL_SECONDS
        response = await call(self._peer, self._stub.CheckIn, request, timeout_seconds=deadline)
        return outcome_from(response)

    async def renew_lease(self, task_id: str, stage: TaskStage | None = None) -> float:
        """Keep the task, and tell how far it is; returns the seconds it is good for from now on."""
        request = pb.RenewLeaseRequest(
            device_id=self._device_id, task_id=task_id, stage=stage_name(stage)
        )
        response = await call(
            self._peer, self._stub.RenewLease, request, timeout_seconds=_CALL_SECONDS
        )
        return float(response.lease_seconds)

    async def download(self, task_id: str, digest: Digest, content: Content) -> int:
        """Bring content of a task here; returns the bytes that crossed the network."""

        async def chunks(offset: int) -> AsyncGenerator[memoryview | bytes, None]:
            request = pb.DownloadBlobRequest(
                device_id=self._device_id,
                task_id=task_id,
                digest=digest_message(digest),
                offset=offset,
            )
            with translating(self._peer):
                async for data in self._download(
                    request, timeout=_TRANSFER_SECONDS, metadata=call_metadata()
                ):
                    yield data

        return await fetch(content, digest, chunks)

    async def upload_update(
        self, task_id: str, update: Digest, blobs: Blobs, report: UpdateReport | None = None
    ) -> int:
        """Send an update's bytes; returns how many crossed the network.

        With a `report`, which has all traffic but this, it is handed in by the same call if the
        coordinator can do that; `submit_update` knows then, and has nothing to ask.
        """
        hand_in: pb.SubmitUpdateRequest | None = None
        if report is not None:
            traffic = report.traffic + Traffic(sent_bytes=update.size_bytes)
            report = replace(report, traffic=traffic)
            hand_in = update_report_message(self._device_id, task_id, report)
        self._handed_in = None

        async def query() -> UploadState:
            request = pb.QueryUploadRequest(
                device_id=self._device_id, task_id=task_id, update=digest_message(update)
            )
            response = await call(
                self._peer, self._stub.QueryUpload, request, timeout_seconds=_CALL_SECONDS
            )
            return UploadState(response.offset, response.complete)

        async def upload(offset: int, chunks: AsyncIterator[bytes]) -> bool:
            async def requests() -> AsyncIterator[bytes]:
                header = pb.UploadUpdateHeader(
                    device_id=self._device_id,
                    task_id=task_id,
                    update=digest_message(update),
                    offset=offset,
                    hand_in=hand_in,
                )
                yield pb.UploadUpdateRequest(header=header).SerializeToString()
                async for chunk in chunks:
                    yield upload_message(chunk)

            response = await call(
                self._peer, self._upload, requests(), timeout_seconds=_TRANSFER_SECONDS
            )
            if report is not None and response.accepted:
                self._handed_in = report, response.already_accepted
            return bool(response.already_present)

        return await self._sender.send(blobs, update, query, upload)

    async def submit_update(self, task_id: str, report: UpdateReport) -> bool:
        """Hand in an uploaded update; true if it had been accepted before."""
        handed_in, self._handed_in = self._handed_in, None
        if handed_in is not None and handed_in[0] == report:
            return handed_in[1]
        request = update_report_message(self._device_id, task_id, report)
        response = await call(
            self._peer, self._stub.SubmitUpdate, request, timeout_seconds=_CALL_SECONDS
        )
        return bool(response.already_accepted)

    async def submit_synthesis(self, task_id: str, report: SynthesisReport) -> bool:
        """Report a batch that is in the pool; true if it had been accepted before."""
        request = synthesis_report_message(self._device_id, task_id, report)
        response = await call(
            self._peer, self._stub.SubmitSynthesis, request, timeout_seconds=_CALL_SECONDS
        )
        return bool(response.already_accepted)

    async def submit_evaluation(self, task_id: str, report: EvaluationReport) -> bool:
        """Report how a model does; true if it had been accepted before."""
        request = evaluation_report_message(self._device_id, task_id, report)
        response = await call(
            self._peer, self._stub.SubmitEvaluation, request, timeout_seconds=_CALL_SECONDS
        )
        return bool(response.already_accepted)

    async def leave(self) -> None:
        """Tell that this device stops for now."""
        request = pb.LeaveRequest(device_id=self._device_id)
        await call(self._peer, self._stub.Leave, request, timeout_seconds=_GOODBYE_SECONDS)

    async def report_failure(self, task_id: str, reason: str, cause: FailureCause) -> None:
        """Give a task up."""
        request = pb.ReportFailureRequest(
            device_id=self._device_id,
            task_id=task_id,
            reason=reason[:MAX_REASON_CHARACTERS],
            cause=f"FAILURE_CAUSE_{cause.name}",
        )
        await call(self._peer, self._stub.ReportFailure, request, timeout_seconds=_CALL_SECONDS)
