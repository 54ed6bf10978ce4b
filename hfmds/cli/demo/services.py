"""The three programs of the demo as child processes on loopback, each on ports of its own."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from hfmds.cli.demo.data import DemoData
from hfmds.cli.demo.processes import Supervisor
from hfmds.errors import Unavailable

_ANY_PORT = "127.0.0.1:0"
_READY_SECONDS = 60.0
_POLL_SECONDS = 0.02

# One thread each: as many processes as devices share the machine already.
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where a process answers."""

    grpc: str
    metrics: str
    web: str = ""  # of the coordinator


class DemoServices:
    """Starts the programs, in the order in which they need each other's addresses."""

    def __init__(self, supervisor: Supervisor, folder: Path) -> None:
        self._supervisor = supervisor
        self._folder = folder

    def start_store(self) -> None:
        """Start the synthesis store."""
        self._start(
            "store", "synthesis_store", listen=_ANY_PORT, data_dir=str(self._folder / "store")
        )

    def start_coordinator(self, store: Addresses, data: DemoData) -> None:
        """Start the coordinator."""
        self._start(
            "coordinator",
            "coordinator",
            listen=_ANY_PORT,
            data_dir=str(self._folder / "coordinator"),
            store=store.grpc,
            held_out=str(data.held_out),
            web_listen=_ANY_PORT,
        )

    def start_devices(self, coordinator: Addresses, store: Addresses, data: DemoData) -> None:
        """Start an edge client for each shard."""
        for device_id, shard in data.shards.items():
            self._start(
                device_id,
                "edge_client",
                device_id=device_id,
                engine="torch",  # it is here, and nobody has to wait for a plan
                coordinator=coordinator.grpc,
                store=store.grpc,
                data=str(shard),
                state_dir=str(self._folder / device_id),
                retry_max_seconds="1",
            )

    async def addresses(self, name: str) -> Addresses:
        """Where a started process answers, once it is ready."""
        file = self._address_file(name)
        try:
            async with asyncio.timeout(_READY_SECONDS):
                while not file.exists():  # noqa: ASYNC110 (another process makes it)
                    await asyncio.sleep(_POLL_SECONDS)
        except TimeoutError:
            raise Unavailable(
                f"{name} was not ready after {_READY_SECONDS:.0f} s; is the machine very busy?"
            ) from None
        found = json.loads(file.read_text())
        return Addresses(found["grpc"], found["metrics"], found.get("web", ""))

    def _start(self, name: str, module: str, **settings: str) -> None:
        settings |= {
            "metrics_listen": _ANY_PORT,
            "address_file": str(self._address_file(name)),
        }
        ours = {f"HFMDS_{key.upper()}": value for key, value in settings.items()}
        # An HFMDS_ variable of the operator's is about some other system than this demo's.
        theirs = {key: v for key, v in os.environ.items() if not key.startswith("HFMDS_")}
        command = [sys.executable, "-m", module]
        self._supervisor.start(name, command, {**theirs, **_ONE_THREAD, **ours})

    def _address_file(self, name: str) -> Path:
        return self._folder / f"{name}.json"
