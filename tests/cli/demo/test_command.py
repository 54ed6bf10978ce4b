"""The demo without services. test_demo_interrupted.py starts them."""

import io
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from rich.console import Console

from hfmds.cli.connections import admin_client
from hfmds.cli.demo.demo import show_all
from hfmds.cli.watch_run import FollowedRun
from hfmds.domain.runs import RunState
from hfmds.errors import WrongState
from hfmds.v1 import admin_pb2
from hfmds.wire.conversions.admin_calls import run_message
from tests.cli.fake_services import FakeCoordinator, serving
from tests.cli.values import a_run


class OneStuck(FakeCoordinator):
    """A coordinator that pauses one run and sends one message about the others."""

    def WatchRun(self, request: Any, context: Any) -> Iterator[Any]:
        yield admin_pb2.WatchRunResponse(run=run_message(a_run(request.run_id)))
        if request.run_id == "stuck":
            paused = a_run("stuck", RunState.PAUSED, state_reason="no luck")
            yield admin_pb2.WatchRunResponse(run=run_message(paused))
        hung_up = threading.Event()
        context.add_callback(hung_up.set)
        hung_up.wait(30)


async def test_a_run_that_the_coordinator_pauses_ends_the_demo(
    caplog: pytest.LogCaptureFixture,
) -> None:
    runs = [FollowedRun("FedAvg", a_run("going")), FollowedRun("HFMDS-FL", a_run("stuck"))]

    async def show(address: str) -> None:
        async with admin_client(address) as client:
            await show_all(client, runs, Console(file=io.StringIO()))

    with serving(OneStuck()) as address, pytest.raises(WrongState) as error:
        await show(address)
    assert str(error.value) == "run stuck (HFMDS-FL) was paused: no luck"
    assert error.value.exit_code == 1
    assert not caplog.records
