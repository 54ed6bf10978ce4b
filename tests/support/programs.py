"""The three programs as processes on loopback, for tests."""

from __future__ import annotations

import json
import os
import signal
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support.forking import Forks
from tests.support.server_processes import free_address
from tests.support.waiting import wait_until

START_SECONDS = 90.0


@cache
def _forks() -> Forks:
    return Forks("tests.support.forking")


class Program:
    """One process. It writes to `log`, and has addresses when it is ready."""

    def __init__(self, name: str, module: str, folder: Path, settings: dict[str, str]) -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        self._address_file = folder / f"{name}.json"
        self._address_file.unlink(missing_ok=True)  # a killed process leaves its file
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("HFMDS_")}
        given = {
            "ADDRESS_FILE": str(self._address_file),
            "LOG_FORMAT": "json",
            "METRICS_LISTEN": "127.0.0.1:0",
            **settings,
        }
        ours = {f"HFMDS_{key}": value for key, value in given.items()}
        environment = {**inherited, "OMP_NUM_THREADS": "1", **ours}
        self.process = _forks().start(
            {"module": module, "environment": environment, "log": str(self.log)}
        )

    def address(self, kind: str) -> str:
        """Wait until the program is ready, and return its address for "grpc" or "metrics"."""

        def ready() -> bool:
            assert self.process.poll() is None, f"{self.name} ended:\n{self.log.read_text()}"
            return self._address_file.exists()

        wait_until(ready, START_SECONDS)
        address: str = json.loads(self._address_file.read_text())[kind]
        return address

    def stop(self, signum: int = signal.SIGTERM) -> int:
        """Send the signal, wait for the end, and return the exit code."""
        self.process.send_signal(signum)
        return self.process.wait(30)

    def records(self) -> list[dict[str, object]]:
        """The structured log."""
        return [json.loads(line) for line in self.log.read_text().splitlines() if line[:1] == "{"]


class Programs:
    """Programs in one folder. They end with the test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._started: list[Program] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for program in self._started:
            program.process.kill()

    def start(self, name: str, module: str, **settings: str) -> Program:
        """Start a program with these HFMDS_ settings."""
        program = Program(
            name, module, self.folder, {key.upper(): value for key, value in settings.items()}
        )
        self._started.append(program)
        return program

    def store(self, listen: str = "") -> Program:
        """Start the synthesis store. A second call with its address is a restart."""
        return self.start(
            "store",
            "synthesis_store",
            listen=listen or free_address(),
            data_dir=str(self.folder / "store-data"),
        )

    def coordinator(
        self,
        store: str,
        held_out: Path | None = None,
        listen: str = "",
        plans_dir: Path | None = None,
    ) -> Program:
        """Start the coordinator. A second call with its address is a restart."""
        optional = {"held_out": held_out, "plans_dir": plans_dir}
        return self.start(
            "coordinator",
            "coordinator",
            listen=listen or free_address(),
            data_dir=str(self.folder / "coordinator-data"),
            store=store,
            **{name: str(path) for name, path in optional.items() if path},
        )

    def device(self, device_id: str, data: Path, coordinator: str, store: str) -> Program:
        """Start a device with the torch engine. A second call with its id is a restart."""
        return self.start(
            device_id,
            "edge_client",
            device_id=device_id,
            engine="torch",
            data=str(data),
            coordinator=coordinator,
            store=store,
            state_dir=str(self.folder / f"{device_id}-state"),
            retry_max_seconds="1",
        )
