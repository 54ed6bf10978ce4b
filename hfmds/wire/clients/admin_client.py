"""The operator's client of AdminService: takes and returns values, raises hfmds.errors."""

from __future__ import annotations

from collections.abc import AsyncIterator

from hfmds.domain.administration.operations import Drain, Funnel, Status
from hfmds.domain.devices import Device
from hfmds.domain.runs import Round, Run, RunSpec, UnreadableRun
from hfmds.errors import InvalidInput
from hfmds.event_chain import Event
from hfmds.service.client.peer import Peer
from hfmds.v1 import admin_pb2 as pb
from hfmds.v1.admin_pb2_grpc import AdminServiceStub
from hfmds.wire.clients.service_client import ServiceClient
from hfmds.wire.conversions.admin_calls import (
    device_from,
    new_run_id,
    round_from,
    run_from,
    spec_message,
)
from hfmds.wire.conversions.events import event_from
from hfmds.wire.conversions.operations import drain_from, funnel_from, status_from

_CREATION_SECONDS = 120.0  # the coordinator loads torch for its first run


class AdminClient(ServiceClient):
    """An operator's calls to the coordinator."""

    def __init__(self, peer: Peer) -> None:
        super().__init__(peer, AdminServiceStub)

    async def create_run(self, spec: RunSpec, run_id: str = "") -> Run:
        """Create and start a run; an empty id is replaced by a new one."""
        # The client makes the id, because repeating a call must not create a second run.
        request = pb.CreateRunRequest(run_id=run_id or new_run_id(spec), spec=spec_message(spec))
        response = await self._call(
            self._stub.CreateRun, request, timeout_seconds=_CREATION_SECONDS
        )
        return run_from(response.run)

    async def list_runs(self) -> tuple[tuple[Run, ...], tuple[UnreadableRun, ...]]:
        """Return all runs, newest first: the readable ones, and the unreadable ones."""
        runs: list[Run] = []
        unreadable: list[UnreadableRun] = []
        request = pb.ListRunsRequest()
        while True:
            response = await self._call(self._stub.ListRuns, request)
            for message in response.runs:
                try:
                    runs.append(run_from(message))
                except InvalidInput as error:  # of a later version; the others are still listed
                    unreadable.append(UnreadableRun(message.run_id, str(error)))
            if not response.next_page_token:
                return tuple(runs), tuple(unreadable)
            request.page_token = response.next_page_token

    async def get_run(self, run_id: str) -> Run:
        """Return a run."""
        return run_from((await self._call(self._stub.GetRun, pb.GetRunRequest(run_id=run_id))).run)

    async def list_rounds(self, run_id: str) -> tuple[Round, ...]:
        """Return the completed rounds of a run, in order."""
        rounds: list[Round] = []
        request = pb.ListRoundsRequest(run_id=run_id)
        while page := (await self._call(self._stub.ListRounds, request)).rounds:
            rounds += map(round_from, page)
            request.after_round = rounds[-1].number
        return tuple(rounds)

    async def watch_run(
        self, run_id: str, after_round: int = 0
    ) -> AsyncIterator[tuple[Run, tuple[Round, ...]]]:
        """Yield the run at every change, with the newly completed rounds; end with the run."""
        request = pb.WatchRunRequest(run_id=run_id, after_round=after_round)
        async for change in self._stream(self._stub.WatchRun, request):
            yield run_from(change.run), tuple(map(round_from, change.new_rounds))

    async def pause_run(self, run_id: str) -> Run:
        """Pause a run."""
        return run_from(
            (await self._call(self._stub.PauseRun, pb.PauseRunRequest(run_id=run_id))).run
        )

    async def resume_run(self, run_id: str) -> Run:
        """Resume a paused run."""
        return run_from(
            (await self._call(self._stub.ResumeRun, pb.ResumeRunRequest(run_id=run_id))).run
        )

    async def cancel_run(self, run_id: str) -> Run:
        """Cancel a run for good."""
        return run_from(
            (await self._call(self._stub.CancelRun, pb.CancelRunRequest(run_id=run_id))).run
        )

    async def delete_run(self, run_id: str) -> None:
        """Delete an ended run; its event log stays."""
        await self._call(self._stub.DeleteRun, pb.DeleteRunRequest(run_id=run_id))

    async def list_events(self, run: str) -> tuple[str, tuple[Event, ...]]:
        """Return the unique id of a run, deleted or not, and its complete event log."""
        events: list[Event] = []
        request = pb.ListEventsRequest(run_id=run)
        while True:
            response = await self._call(self._stub.ListEvents, request)
            if not response.events:
                return response.run_uid, tuple(events)
            events += (event_from(response.run_uid, event) for event in response.events)
            request.run_id, request.after_sequence = response.run_uid, events[-1].sequence

    async def funnels(self, run_id: str = "", round_number: int = 0) -> tuple[Funnel, ...]:
        """Return how far tasks came, by kind."""
        request = pb.GetFunnelRequest(run_id=run_id, round=round_number)
        return tuple(map(funnel_from, (await self._call(self._stub.GetFunnel, request)).funnels))

    async def set_drain(self, on: bool) -> Drain:
        """Start or end the drain of the coordinator."""
        return drain_from((await self._call(self._stub.SetDrain, pb.SetDrainRequest(on=on))).drain)

    async def status(self) -> Status:
        """Return the coordinator's status."""
        return status_from(await self._call(self._stub.GetStatus, pb.GetStatusRequest()))

    async def list_devices(self) -> tuple[Device, ...]:
        """Return the devices that the coordinator has seen, by id."""
        devices: list[Device] = []
        request = pb.ListDevicesRequest()
        while True:
            response = await self._call(self._stub.ListDevices, request)
            devices += map(device_from, response.devices)
            if not response.next_page_token:
                return tuple(devices)
            request.page_token = response.next_page_token

    async def download_model(self, run_id: str, round_number: int = 0) -> AsyncIterator[bytes]:
        """Yield the model after a round (0: the last one) in chunks of safetensors bytes."""
        request = pb.DownloadModelRequest(run_id=run_id, round=round_number)
        async for part in self._stream(self._stub.DownloadModel, request):
            yield part.data
