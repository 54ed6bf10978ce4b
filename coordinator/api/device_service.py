"""CoordinatorService, which devices call: convert, call, convert."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import grpc

from coordinator.devices.check_in import CheckIns
from coordinator.devices.downloads import Downloads
from coordinator.devices.leases import Leases
from coordinator.devices.results import Results
from coordinator.devices.uploads import Uploads
from hfmds.domain.devices import require_id
from hfmds.service.security.access import DEVICE
from hfmds.service.server.server import GrpcServer
from hfmds.v1 import coordinator_pb2 as pb
from hfmds.v1 import coordinator_pb2_grpc
from hfmds.wire.chunks import split_upload
from hfmds.wire.conversions.common import digest_from, require_finite, require_part
from hfmds.wire.conversions.device_calls import (
    MAX_REASON_CHARACTERS,
    evaluation_report_from,
    failure_cause_from,
    outcome_message,
    profile_from,
    stage_from,
    synthesis_report_from,
    update_report_from,
)

DEVICE_ACCESS = {
    method.name: DEVICE for method in pb.DESCRIPTOR.services_by_name["CoordinatorService"].methods
}


class CoordinatorServicer(coordinator_pb2_grpc.CoordinatorServiceServicer):
    """Answers CoordinatorService."""

    def __init__(
        self,
        check_ins: CheckIns,
        leases: Leases,
        downloads: Downloads,
        uploads: Uploads,
        results: Results,
    ) -> None:
        self.check_ins = check_ins
        self.leases = leases
        self.downloads = downloads
        self.uploads = uploads
        self.results = results

    def add_to(self, server: GrpcServer) -> None:
        register = coordinator_pb2_grpc.add_CoordinatorServiceServicer_to_server
        server.add(register, self, "hfmds.v1.CoordinatorService", DEVICE_ACCESS)

    async def CheckIn(
        self, request: pb.CheckInRequest, context: grpc.aio.ServicerContext
    ) -> pb.CheckInResponse:
        require_part(request, "profile")
        require_finite(request, "wait_seconds")
        device_id = require_id(request.device_id, "device_id")
        outcome = await self.check_ins.check_in(
            device_id,
            profile_from(request.profile),
            request.wait_seconds,
            request.run_id,
            request.process and require_id(request.process, "process"),
        )
        return outcome_message(outcome)

    async def RenewLease(
        self, request: pb.RenewLeaseRequest, context: grpc.aio.ServicerContext
    ) -> pb.RenewLeaseResponse:
        seconds = await self.leases.renew(*_ids(request), stage_from(request.stage))
        return pb.RenewLeaseResponse(lease_seconds=seconds)

    async def DownloadBlob(
        self, request: pb.DownloadBlobRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[pb.DownloadBlobResponse]:
        require_part(request, "digest")
        digest = digest_from(request.digest)
        async for chunk in self.downloads.download(*_ids(request), digest, request.offset):
            yield pb.DownloadBlobResponse(data=chunk)

    async def QueryUpload(
        self, request: pb.QueryUploadRequest, context: grpc.aio.ServicerContext
    ) -> pb.QueryUploadResponse:
        require_part(request, "update")
        state = await self.uploads.query(*_ids(request), digest_from(request.update))
        return pb.QueryUploadResponse(offset=state.offset, complete=state.complete)

    async def SubmitUpdate(
        self,
        requests: AsyncIterator[pb.SubmitUpdateRequest],
        context: grpc.aio.ServicerContext,
    ) -> pb.SubmitUpdateResponse:
        header, chunks = await split_upload(requests)
        require_part(header, "report")
        report = update_report_from(header.report)
        already = await self.uploads.submit(*_ids(header), report, header.offset, chunks)
        return pb.SubmitUpdateResponse(already_accepted=already)

    async def SubmitSynthesis(
        self, request: pb.SubmitSynthesisRequest, context: grpc.aio.ServicerContext
    ) -> pb.SubmitSynthesisResponse:
        report = synthesis_report_from(request)
        already = await self.results.submit_synthesis(*_ids(request), report)
        return pb.SubmitSynthesisResponse(already_accepted=already)

    async def SubmitEvaluation(
        self, request: pb.SubmitEvaluationRequest, context: grpc.aio.ServicerContext
    ) -> pb.SubmitEvaluationResponse:
        report = evaluation_report_from(request)
        already = await self.results.submit_evaluation(*_ids(request), report)
        return pb.SubmitEvaluationResponse(already_accepted=already)

    async def ReportFailure(
        self, request: pb.ReportFailureRequest, context: grpc.aio.ServicerContext
    ) -> pb.ReportFailureResponse:
        reason = request.reason[:MAX_REASON_CHARACTERS]
        cause = failure_cause_from(request.cause)
        await self.leases.report_failure(*_ids(request), reason, cause)
        return pb.ReportFailureResponse()

    async def Leave(
        self, request: pb.LeaveRequest, context: grpc.aio.ServicerContext
    ) -> pb.LeaveResponse:
        await self.leases.leave(require_id(request.device_id, "device_id"))
        return pb.LeaveResponse()


def _ids(request: Any) -> tuple[str, str]:
    """Return the ids of the calling device and of its task."""
    return require_id(request.device_id, "device_id"), require_id(request.task_id, "task_id")
