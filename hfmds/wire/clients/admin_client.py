"""The operator's side of AdminService: values in, values out, hfmds.errors raised."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from google.protobuf.message import Message

from hfmds.domain.devices import Device
from hfmds.domain.runs import Round, Run, RunSpec, UnreadableRun
from hfmds.errors import InvalidInput
from hfmds.event_chain import Event
from hfmds.service.client.channel import call, open_channel, translating
from hfmds.service.client.peer import Peer
from hfmds.v1 import admin_pb2 as pb
from hfmds.v1.admin_pb2_grpc import AdminServiceStub
from hfmds.wire.conversions.admin_calls import (
    device_from,
    new_run_id,
    round_from,
    run_from,
    spec_message,
)
from hfmds.wire.conversions.events import event_from
from hfmds.wire.conversions.operations import (
    Drain,
    Funnel,
    Status,
    drain_from,
    funnel_from,
    status_from,
)

_CALL_SECONDS = 30.0
_CREATION_SECONDS = 120.0  # the first has the coordinator load torch


class AdminClient:
    """An operator talking to the coordinator."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self._channel = open_channel(peer)
        self._stub = AdminServiceStub(self._channel)

    async def close(self) -> None:
        await self._channel.close()

    async def create_run(self, spec: RunSpec, run_id: str = "") -> Run:
        """Create a run; it starts by itself. Without an id it gets one."""
        # Here, not there: a call whose answer is lost is repeated, and would make another run.
        request = pb.CreateRunRequest(run_id=run_id or new_run_id(spec), spec=spec_message(spec))
        response = await call(
            self._peer, self._stub.CreateRun, request, timeout_seconds=_CREATION_SECONDS
        )
        return run_from(response.run)

    async def list_runs(self) -> tuple[tuple[Run, ...], tuple[UnreadableRun, ...]]:
        """All runs, newest first: those that can be read, and those that cannot."""
        runs: list[Run] = []
        unreadable: list[UnreadableRun] = []
        request = pb.ListRunsRequest()
        while True:
            response = await self._call(self._stub.ListRuns, request)
            for message in response.runs:
                try:
                    runs.append(run_from(message))
                except InvalidInput as error:  # of a later version: no reason to hide the others
                    unreadable.append(UnreadableRun(message.run_id, str(error)))
            if not response.next_page_token:
                return tuple(runs), tuple(unreadable)
            request.page_token = response.next_page_token

    async def get_run(self, run_id: str) -> Run:
        """A run."""
        return run_from((await self._call(self._stub.GetRun, pb.GetRunRequest(run_id=run_id))).run)

    async def list_rounds(self, run_id: str) -> tuple[Round, ...]:
        """The completed rounds of a run, in order."""
        rounds: list[Round] = []
        request = pb.ListRoundsRequest(run_id=run_id)
        while page := (await self._call(self._stub.ListRounds, request)).rounds:
            rounds += map(round_from, page)
            request.after_round = rounds[-1].number
        return tuple(rounds)

    async def watch_run(
        self, run_id: str, after_round: int = 0
    ) -> AsyncIterator[tuple[Run, tuple[Round, ...]]]:
        """The run at every change, with the rounds completed since; ends with the run."""
        request = pb.WatchRunRequest(run_id=run_id, after_round=after_round)
        with translating(self._peer):
            async for change in self._stub.WatchRun(request):
                yield run_from(change.run), tuple(round_from(item) for item in change.new_rounds)

    async def pause_run(self, run_id: str) -> Run:
        """Stop handing out its work."""
        return run_from(
            (await self._call(self._stub.PauseRun, pb.PauseRunRequest(run_id=run_id))).run
        )

    async def resume_run(self, run_id: str) -> Run:
        """Go on with a paused run."""
        return run_from(
            (await self._call(self._stub.ResumeRun, pb.ResumeRunRequest(run_id=run_id))).run
        )

    async def cancel_run(self, run_id: str) -> Run:
        """End a run for good."""
        return run_from(
            (await self._call(self._stub.CancelRun, pb.CancelRunRequest(run_id=run_id))).run
        )

    async def delete_run(self, run_id: str) -> None:
        """Delete a run that has ended, all but its log."""
        await self._call(self._stub.DeleteRun, pb.DeleteRunRequest(run_id=run_id))

    async def list_events(self, run: str) -> tuple[str, tuple[Event, ...]]:
        """The unique id of a run, also of a deleted one, and its whole event log."""
        events: list[Event] = []
        request = pb.ListEventsRequest(run_id=run)
        while True:
            response = await self._call(self._stub.ListEvents, request)
            if not response.events:
                return response.run_uid, tuple(events)
            events += (event_from(response.run_uid, event) for event in response.events)
            request.run_id, request.after_sequence = response.run_uid, events[-1].sequence

    async def funnels(self, run_id: str = "", round_number: int = 0) -> tuple[Funnel, ...]:
        """How far tasks came, by kind."""
        request = pb.GetFunnelRequest(run_id=run_id, round=round_number)
        return tuple(map(funnel_from, (await self._call(self._stub.GetFunnel, request)).funnels))

    async def set_drain(self, on: bool) -> Drain:
        """Drain the coordinator, or end that."""
        return drain_from((await self._call(self._stub.SetDrain, pb.SetDrainRequest(on=on))).drain)

    async def status(self) -> Status:
        """How the coordinator is."""
        return status_from(await self._call(self._stub.GetStatus, pb.GetStatusRequest()))

    async def list_devices(self) -> tuple[Device, ...]:
        """The devices the coordinator has seen, by id."""
        devices: list[Device] = []
        request = pb.ListDevicesRequest()
        while True:
            response = await self._call(self._stub.ListDevices, request)
            devices += map(device_from, response.devices)
            if not response.next_page_token:
                return tuple(devices)
            request.page_token = response.next_page_token

    async def download_model(self, run_id: str, round_number: int = 0) -> AsyncIterator[bytes]:
        """The model after a round (0: the last completed one), in chunks of safetensors bytes."""
        request = pb.DownloadModelRequest(run_id=run_id, round=round_number)
        with translating(self._peer):
            async for part in self._stub.DownloadModel(request):
                yield part.data

    async def _call(self, method: Any, request: Message) -> Any:
        return await call(self._peer, method, request, timeout_seconds=_CALL_SECONDS)
