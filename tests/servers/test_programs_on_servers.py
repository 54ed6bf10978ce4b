"""The three programs on PostgreSQL and S3, while the test kills those servers."""

from __future__ import annotations

import re
import shutil
import signal
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from sqlalchemy import make_url

from hfmds.cli.main import main
from hfmds.wire.tensors import encode_weights
from tests.support.digits_experiment import (
    Experiment,
    admin_of,
    completed,
    experiment,
    model,
    programs,
    simulated,
    spec_of,
    start_devices,
    until_round,
)
from tests.support.postgres import PostgresServer
from tests.support.programs import Program, Programs
from tests.support.s3 import S3Server
from tests.support.server_processes import free_address
from tests.support.waiting import wait_until

__all__ = ["experiment", "programs"]  # fixtures

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]


async def test_killing_the_servers_and_a_coordinator_without_its_folder_changes_nothing(
    experiment: Experiment,
    programs: Programs,
    postgres_server: PostgresServer,
    postgres_url: str,
    s3_server: S3Server,
    s3_blobs_url: str,
    tmp_path: Path,
) -> None:
    expected = simulated(experiment)[-1].checkpoint.weights
    for program in ("coordinator", "synthesis_store"):
        assert main(["database", "upgrade", program, "--database-url", postgres_url]) == 0
    shared = {"database_url": postgres_url, "blobs_url": s3_blobs_url}
    data_dir = tmp_path / "coordinator-data"
    store = programs.start(
        "store",
        "synthesis_store",
        listen="127.0.0.1:0",
        data_dir=str(tmp_path / "store-data"),
        **shared,
    ).address("grpc")

    def start_coordinator(listen: str) -> Program:
        held_out = str(experiment.file("held-out"))
        return programs.start(
            "coordinator",
            "coordinator",
            listen=listen,
            data_dir=str(data_dir),
            store=store,
            held_out=held_out,
            **shared,
        )

    first = start_coordinator(free_address())
    coordinator = first.address("grpc")
    start_devices(programs, experiment, coordinator, store)
    async with admin_of(coordinator) as client:
        await client.create_run(spec_of(experiment), "run")
    await until_round(coordinator, 1)
    postgres_server.restart(signal.SIGKILL)
    await until_round(coordinator, 2)
    s3_server.restart(signal.SIGKILL)
    await until_round(coordinator, 3)
    first.stop(signal.SIGKILL)
    shutil.rmtree(data_dir)  # as on another machine
    start_coordinator(coordinator).address("grpc")

    async with admin_of(coordinator) as client:
        await completed(client, "run")
        last_model = await model(client, "run", experiment.recipe.rounds)
    assert last_model == encode_weights(expected)
    assert "pssst" not in first.log.read_text()
    assert "hfmds-secret" not in first.log.read_text()


@pytest.mark.parametrize("package", ["coordinator", "synthesis_store"])
def test_a_program_without_its_storage_is_not_ready(
    package: str,
    programs: Programs,
    postgres_server: PostgresServer,
    postgres_url: str,
    s3_server: S3Server,
    s3_blobs_url: str,
    tmp_path: Path,
) -> None:
    assert main(["database", "upgrade", package, "--database-url", postgres_url]) == 0
    program = programs.start(
        package,
        package,
        listen="127.0.0.1:0",
        data_dir=str(tmp_path / "data"),
        database_url=postgres_url,
        blobs_url=s3_blobs_url,
        storage_patience_seconds="0.5",
    )
    pages = f"http://{program.address('metrics')}"

    def ready() -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"{pages}/readyz") as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as refusal:
            return refusal.code, refusal.read().decode()

    def shown() -> float:
        """Return the readiness metric, which works without storage."""
        with urllib.request.urlopen(f"{pages}/metrics") as answer:
            (value,) = re.findall(r"^hfmds_\w+_ready (\S+)$", answer.read().decode(), re.MULTILINE)
        return float(value)

    def until_ready_is(status: int, what: str) -> None:
        def is_so() -> bool:
            code, text = ready()
            return code == status and what in text and shown() == (status == 200)

        wait_until(is_so)

    until_ready_is(200, "ready")
    place = make_url(postgres_url).set(query={}).render_as_string(hide_password=True)
    (opened,) = (line for line in program.log.open() if "database opened" in line)
    assert place in opened
    for server, name in ((postgres_server, "the database"), (s3_server, "content")):
        server.stop()
        try:
            until_ready_is(503, f"{name} has not answered for")
        finally:
            server.start()
        until_ready_is(200, "ready")
