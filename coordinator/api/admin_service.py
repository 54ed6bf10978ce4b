"""AdminService, which operators call: convert, call, convert."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import grpc

from coordinator.oversight.drain_switch import DrainSwitch
from coordinator.oversight.overview import Overview
from coordinator.runs.checkpoints import RunModels
from coordinator.runs.runs import Runs
from hfmds.domain.devices import require_id
from hfmds.service.security.access import OPERATOR, OWNER, VIEWER
from hfmds.service.security.caller import caller
from hfmds.service.server.server import GrpcServer
from hfmds.v1 import admin_pb2 as pb
from hfmds.v1 import admin_pb2_grpc
from hfmds.wire.conversions.admin_calls import device_message, round_message, run_message, spec_from
from hfmds.wire.conversions.common import require_part
from hfmds.wire.conversions.events import event_message
from hfmds.wire.conversions.operations import drain_message, funnel_message, status_message
from hfmds.wire.pages import ASKED_FOR_A_PAGE, first_page, next_page

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


class AdminServicer(admin_pb2_grpc.AdminServiceServicer):
    """Answers AdminService."""

    def __init__(
        self, runs: Runs, models: RunModels, overview: Overview, drain: DrainSwitch
    ) -> None:
        self.runs = runs
        self.models = models
        self.overview = overview
        self.drain = drain

    def add_to(self, server: GrpcServer) -> None:
        register = admin_pb2_grpc.add_AdminServiceServicer_to_server
        server.add(register, self, "hfmds.v1.AdminService", ADMIN_ACCESS)

    async def CreateRun(
        self, request: pb.CreateRunRequest, context: grpc.aio.ServicerContext
    ) -> pb.CreateRunResponse:
        require_part(request, "spec")
        run = await asyncio.to_thread(
            self.runs.create, request.run_id, spec_from(request.spec), caller(context)
        )
        return pb.CreateRunResponse(run=run_message(run))

    async def ListRuns(
        self, request: pb.ListRunsRequest, context: grpc.aio.ServicerContext
    ) -> pb.ListRunsResponse:
        runs = await asyncio.to_thread(self.runs.list, request.page_token, ASKED_FOR_A_PAGE)
        page, token = next_page(map(run_message, runs), request.page_size, lambda run: run.run_id)
        return pb.ListRunsResponse(runs=page, next_page_token=token)

    async def GetRun(
        self, request: pb.GetRunRequest, context: grpc.aio.ServicerContext
    ) -> pb.GetRunResponse:
        run = await asyncio.to_thread(self.runs.get, request.run_id)
        return pb.GetRunResponse(run=run_message(run))

    async def ListRounds(
        self, request: pb.ListRoundsRequest, context: grpc.aio.ServicerContext
    ) -> pb.ListRoundsResponse:
        rounds = await asyncio.to_thread(self.runs.rounds, request.run_id, request.after_round)
        return pb.ListRoundsResponse(
            rounds=first_page([*map(round_message, rounds)], request.page_size)
        )

    async def WatchRun(
        self, request: pb.WatchRunRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[pb.WatchRunResponse]:
        async for run, rounds in self.runs.watch(request.run_id, request.after_round):
            messages = [*map(round_message, rounds)]
            while True:
                new_rounds = first_page(messages)
                yield pb.WatchRunResponse(run=run_message(run), new_rounds=new_rounds)
                messages = messages[len(new_rounds) :]
                if not messages:
                    break

    async def PauseRun(
        self, request: pb.PauseRunRequest, context: grpc.aio.ServicerContext
    ) -> pb.PauseRunResponse:
        run = await asyncio.to_thread(self.runs.pause, request.run_id, caller(context))
        return pb.PauseRunResponse(run=run_message(run))

    async def ResumeRun(
        self, request: pb.ResumeRunRequest, context: grpc.aio.ServicerContext
    ) -> pb.ResumeRunResponse:
        run = await asyncio.to_thread(self.runs.resume, request.run_id, caller(context))
        return pb.ResumeRunResponse(run=run_message(run))

    async def CancelRun(
        self, request: pb.CancelRunRequest, context: grpc.aio.ServicerContext
    ) -> pb.CancelRunResponse:
        run = await asyncio.to_thread(self.runs.cancel, request.run_id, caller(context))
        return pb.CancelRunResponse(run=run_message(run))

    async def DeleteRun(
        self, request: pb.DeleteRunRequest, context: grpc.aio.ServicerContext
    ) -> pb.DeleteRunResponse:
        run_id = require_id(request.run_id, "run_id")
        await asyncio.to_thread(self.runs.delete, run_id, caller(context))
        return pb.DeleteRunResponse()

    async def ListEvents(
        self, request: pb.ListEventsRequest, context: grpc.aio.ServicerContext
    ) -> pb.ListEventsResponse:
        run_uid, events = await asyncio.to_thread(
            self.overview.events, request.run_id, request.after_sequence
        )
        entries = first_page([*map(event_message, events)], request.page_size)
        return pb.ListEventsResponse(run_uid=run_uid, events=entries)

    async def GetFunnel(
        self, request: pb.GetFunnelRequest, context: grpc.aio.ServicerContext
    ) -> pb.GetFunnelResponse:
        funnels = await asyncio.to_thread(self.overview.funnels, request.run_id, request.round)
        return pb.GetFunnelResponse(funnels=map(funnel_message, funnels))

    async def SetDrain(
        self, request: pb.SetDrainRequest, context: grpc.aio.ServicerContext
    ) -> pb.SetDrainResponse:
        drain = await asyncio.to_thread(self.drain.set, request.on, caller(context))
        return pb.SetDrainResponse(drain=drain_message(drain))

    async def GetStatus(
        self, request: pb.GetStatusRequest, context: grpc.aio.ServicerContext
    ) -> pb.GetStatusResponse:
        return status_message(await asyncio.to_thread(self.overview.status))

    async def ListDevices(
        self, request: pb.ListDevicesRequest, context: grpc.aio.ServicerContext
    ) -> pb.ListDevicesResponse:
        devices = await asyncio.to_thread(
            self.overview.device_list.page, request.page_token, ASKED_FOR_A_PAGE
        )
        messages = map(device_message, devices)
        page, token = next_page(messages, request.page_size, lambda device: device.device_id)
        return pb.ListDevicesResponse(devices=page, next_page_token=token)

    async def DownloadModel(
        self, request: pb.DownloadModelRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[pb.DownloadModelResponse]:
        async for chunk in self.models.download(request.run_id, request.round, request.offset):
            yield pb.DownloadModelResponse(data=chunk)
