"""The coordinator's two gRPC services: convert, call, convert."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc

from coordinator.api.operations import Oversight
from coordinator.devices.dispatch import Dispatch
from coordinator.runs.runs import Runs
from hfmds.domain.devices import require_id
from hfmds.domain.tasks import RetryLater
from hfmds.errors import InvalidInput
from hfmds.service.security.access import DEVICE, OPERATOR, OWNER, VIEWER
from hfmds.service.security.caller import caller
from hfmds.service.security.exclusions import quarantine_notice
from hfmds.service.security.revocation_gate import Gate
from hfmds.service.server.server import GrpcServer
from hfmds.v1 import admin_pb2, admin_pb2_grpc, coordinator_pb2, coordinator_pb2_grpc
from hfmds.wire.chunks import split_upload
from hfmds.wire.conversions.admin_calls import device_message, round_message, run_message, spec_from
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
from hfmds.wire.conversions.events import event_message
from hfmds.wire.conversions.operations import drain_message, funnel_message, status_message
from hfmds.wire.pages import ASKED_FOR_A_PAGE, first_page, first_page_of

_QUARANTINE_SECONDS = 30.0  # how soon a device may notice that its quarantine is over

DEVICE_ACCESS = {
    method.name: DEVICE
    for method in coordinator_pb2.DESCRIPTOR.services_by_name["CoordinatorService"].methods
}
ADMIN_ACCESS = {
    "ListRuns": VIEWER,
    "GetRun": VIEWER,
    "ListRounds": VIEWER,
    "WatchRun": VIEWER,
    "ListEvents": VIEWER,
    "GetFunnel": VIEWER,
    "GetStatus": VIEWER,
    "ListDevices": VIEWER,
    "CreateRun": OPERATOR,
    "PauseRun": OPERATOR,
    "ResumeRun": OPERATOR,
    "CancelRun": OPERATOR,
    "SetDrain": OPERATOR,
    "DownloadModel": OPERATOR,
    "DeleteRun": OWNER,
}


class CoordinatorServicer(coordinator_pb2_grpc.CoordinatorServiceServicer):
    """CoordinatorService: what devices call."""

    def __init__(self, dispatch: Dispatch, gate: Gate | None = None) -> None:
        self._dispatch = dispatch
        self._gate = gate or Gate()

    def add_to(self, server: GrpcServer) -> None:
        register = coordinator_pb2_grpc.add_CoordinatorServiceServicer_to_server
        server.add(register, self, "hfmds.v1.CoordinatorService", DEVICE_ACCESS)

    async def CheckIn(
        self, request: coordinator_pb2.CheckInRequest, context: grpc.aio.ServicerContext
    ) -> coordinator_pb2.CheckInResponse:
        require_part(request, "profile")
        require_finite(request, "wait_seconds")
        device_id = require_id(request.device_id, "device_id")
        quarantine = self._gate.exclusions.quarantined.get(device_id)
        if quarantine is not None:
            notice = quarantine_notice(device_id, quarantine)
            return outcome_message(RetryLater(_QUARANTINE_SECONDS, notice))
        outcome = await self._dispatch.check_in(
            device_id,
            profile_from(request.profile),
            request.wait_seconds,
            request.run_id,
            request.process and require_id(request.process, "process"),
        )
        return outcome_message(outcome)

    async def RenewLease(
        self, request: coordinator_pb2.RenewLeaseRequest, context: grpc.aio.ServicerContext
    ) -> coordinator_pb2.RenewLeaseResponse:
        seconds = await self._dispatch.renew_lease(*_ids(request), stage_from(request.stage))
        return coordinator_pb2.RenewLeaseResponse(lease_seconds=seconds)

    def DownloadBlob(
        self, request: coordinator_pb2.DownloadBlobRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[bytes]:
        require_part(request, "digest")
        digest = digest_from(request.digest)
        return self._dispatch.download(*_ids(request), digest, request.offset)

    async def QueryUpload(
        self, request: coordinator_pb2.QueryUploadRequest, context: grpc.aio.ServicerContext
    ) -> coordinator_pb2.QueryUploadResponse:
        require_part(request, "update")
        state = await self._dispatch.query_upload(*_ids(request), digest_from(request.update))
        return coordinator_pb2.QueryUploadResponse(offset=state.offset, complete=state.complete)

    async def UploadUpdate(
        self,
        requests: AsyncIterator[coordinator_pb2.UploadUpdateRequest],
        context: grpc.aio.ServicerContext,
    ) -> coordinator_pb2.UploadUpdateResponse:
        header, chunks = await split_upload(requests)
        require_part(header, "update")
        ids, update, report = _ids(header), digest_from(header.update), None
        if header.HasField("hand_in"):
            report = update_report_from(header.hand_in)
            if _ids(header.hand_in) != ids or report.update != update:
                raise InvalidInput("what is handed in is not what is uploaded")
        present = await self._dispatch.receive_update(*ids, update, header.offset, chunks)
        if report is None or present:
            return coordinator_pb2.UploadUpdateResponse(already_present=present)
        already = await self._dispatch.submit_update(*ids, report)
        return coordinator_pb2.UploadUpdateResponse(accepted=True, already_accepted=already)

    async def SubmitUpdate(
        self, request: coordinator_pb2.SubmitUpdateRequest, context: grpc.aio.ServicerContext
    ) -> coordinator_pb2.SubmitUpdateResponse:
        already = await self._dispatch.submit_update(*_ids(request), update_report_from(request))
        return coordinator_pb2.SubmitUpdateResponse(already_accepted=already)

    async def SubmitSynthesis(
        self, request: coordinator_pb2.SubmitSynthesisRequest, context: grpc.aio.ServicerContext
    ) -> coordinator_pb2.SubmitSynthesisResponse:
        already = await self._dispatch.submit_synthesis(
            *_ids(request), synthesis_report_from(request)
        )
        return coordinator_pb2.SubmitSynthesisResponse(already_accepted=already)

    async def SubmitEvaluation(
        self, request: coordinator_pb2.SubmitEvaluationRequest, context: grpc.aio.ServicerContext
    ) -> coordinator_pb2.SubmitEvaluationResponse:
        already = await self._dispatch.submit_evaluation(
            *_ids(request), evaluation_report_from(request)
        )
        return coordinator_pb2.SubmitEvaluationResponse(already_accepted=already)

    async def ReportFailure(
        self, request: coordinator_pb2.ReportFailureRequest, context: grpc.aio.ServicerContext
    ) -> coordinator_pb2.ReportFailureResponse:
        reason = request.reason[:MAX_REASON_CHARACTERS]
        cause = failure_cause_from(request.cause)
        await self._dispatch.report_failure(*_ids(request), reason, cause)
        return coordinator_pb2.ReportFailureResponse()

    async def Leave(
        self, request: coordinator_pb2.LeaveRequest, context: grpc.aio.ServicerContext
    ) -> coordinator_pb2.LeaveResponse:
        await self._dispatch.leave(require_id(request.device_id, "device_id"))
        return coordinator_pb2.LeaveResponse()


class AdminServicer(admin_pb2_grpc.AdminServiceServicer):
    """AdminService: what operators call."""

    def __init__(self, runs: Runs, oversight: Oversight) -> None:
        self._runs = runs
        self._oversight = oversight

    def add_to(self, server: GrpcServer) -> None:
        register = admin_pb2_grpc.add_AdminServiceServicer_to_server
        server.add(register, self, "hfmds.v1.AdminService", ADMIN_ACCESS)

    async def CreateRun(
        self, request: admin_pb2.CreateRunRequest, context: grpc.aio.ServicerContext
    ) -> admin_pb2.CreateRunResponse:
        require_part(request, "spec")
        run = await asyncio.to_thread(
            self._runs.create, request.run_id, spec_from(request.spec), caller(context)
        )
        return admin_pb2.CreateRunResponse(run=run_message(run))

    async def ListRuns(
        self, request: admin_pb2.ListRunsRequest, context: grpc.aio.ServicerContext
    ) -> admin_pb2.ListRunsResponse:
        found = await asyncio.to_thread(self._runs.list, request.page_token, ASKED_FOR_A_PAGE)
        entries, more = first_page_of(map(run_message, found), request.page_size)
        token = entries[-1].run_id if more else ""
        return admin_pb2.ListRunsResponse(runs=entries, next_page_token=token)

    async def GetRun(
        self, request: admin_pb2.GetRunRequest, context: grpc.aio.ServicerContext
    ) -> admin_pb2.GetRunResponse:
        run = await asyncio.to_thread(self._runs.get, request.run_id)
        return admin_pb2.GetRunResponse(run=run_message(run))

    async def ListRounds(
        self, request: admin_pb2.ListRoundsRequest, context: grpc.aio.ServicerContext
    ) -> admin_pb2.ListRoundsResponse:
        rounds = await asyncio.to_thread(self._runs.rounds, request.run_id, request.after_round)
        return admin_pb2.ListRoundsResponse(
            rounds=first_page([*map(round_message, rounds)], request.page_size)
        )

    async def WatchRun(
        self, request: admin_pb2.WatchRunRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[admin_pb2.WatchRunResponse]:
        async for run, rounds in self._runs.watch(request.run_id, request.after_round):
            messages = [*map(round_message, rounds)]
            while True:
                new_rounds = first_page(messages)
                yield admin_pb2.WatchRunResponse(run=run_message(run), new_rounds=new_rounds)
                messages = messages[len(new_rounds) :]
                if not messages:
                    break

    async def PauseRun(
        self, request: admin_pb2.PauseRunRequest, context: grpc.aio.ServicerContext
    ) -> admin_pb2.PauseRunResponse:
        run = await asyncio.to_thread(self._runs.pause, request.run_id, caller(context))
        return admin_pb2.PauseRunResponse(run=run_message(run))

    async def ResumeRun(
        self, request: admin_pb2.ResumeRunRequest, context: grpc.aio.ServicerContext
    ) -> admin_pb2.ResumeRunResponse:
        run = await asyncio.to_thread(self._runs.resume, request.run_id, caller(context))
        return admin_pb2.ResumeRunResponse(run=run_message(run))

    async def CancelRun(
        self, request: admin_pb2.CancelRunRequest, context: grpc.aio.ServicerContext
    ) -> admin_pb2.CancelRunResponse:
        run = await asyncio.to_thread(self._runs.cancel, request.run_id, caller(context))
        return admin_pb2.CancelRunResponse(run=run_message(run))

    async def DeleteRun(
        self, request: admin_pb2.DeleteRunRequest, context: grpc.aio.ServicerContext
    ) -> admin_pb2.DeleteRunResponse:
        run_id = require_id(request.run_id, "run_id")
        await asyncio.to_thread(self._runs.delete, run_id, caller(context))
        return admin_pb2.DeleteRunResponse()

    async def ListEvents(
        self, request: admin_pb2.ListEventsRequest, context: grpc.aio.ServicerContext
    ) -> admin_pb2.ListEventsResponse:
        run_uid, events = await asyncio.to_thread(
            self._oversight.events, request.run_id, request.after_sequence
        )
        entries = first_page([*map(event_message, events)], request.page_size)
        return admin_pb2.ListEventsResponse(run_uid=run_uid, events=entries)

    async def GetFunnel(
        self, request: admin_pb2.GetFunnelRequest, context: grpc.aio.ServicerContext
    ) -> admin_pb2.GetFunnelResponse:
        funnels = await asyncio.to_thread(self._oversight.funnels, request.run_id, request.round)
        return admin_pb2.GetFunnelResponse(funnels=map(funnel_message, funnels))

    async def SetDrain(
        self, request: admin_pb2.SetDrainRequest, context: grpc.aio.ServicerContext
    ) -> admin_pb2.SetDrainResponse:
        drain = await asyncio.to_thread(self._oversight.set_drain, request.on, caller(context))
        return admin_pb2.SetDrainResponse(drain=drain_message(drain))

    async def GetStatus(
        self, request: admin_pb2.GetStatusRequest, context: grpc.aio.ServicerContext
    ) -> admin_pb2.GetStatusResponse:
        return status_message(await asyncio.to_thread(self._oversight.status))

    async def ListDevices(
        self, request: admin_pb2.ListDevicesRequest, context: grpc.aio.ServicerContext
    ) -> admin_pb2.ListDevicesResponse:
        found = await asyncio.to_thread(
            self._oversight.devices, request.page_token, ASKED_FOR_A_PAGE
        )
        entries, more = first_page_of(map(device_message, found), request.page_size)
        token = entries[-1].device_id if more else ""
        return admin_pb2.ListDevicesResponse(devices=entries, next_page_token=token)

    async def DownloadModel(
        self, request: admin_pb2.DownloadModelRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[admin_pb2.DownloadModelResponse]:
        async for chunk in self._runs.model(request.run_id, request.round, request.offset):
            yield admin_pb2.DownloadModelResponse(data=chunk)


def _ids(request: Any) -> tuple[str, str]:
    """Who calls, and about which task."""
    return require_id(request.device_id, "device_id"), require_id(request.task_id, "task_id")
