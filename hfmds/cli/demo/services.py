"""Starts the three programs of the demo as child processes on loopback, each on free ports."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from hfmds.cli.demo.data import DemoData
from hfmds.errors import Unavailable
from hfmds.processes import Supervisor

_ANY_PORT = "127.0.0.1:0"
_READY_SECONDS = 60.0
_POLL_SECONDS = 0.02

# One thread each: the machine already runs one process for each device.
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


@dataclass(frozen=True, slots=True)
class Addresses:
    """The addresses of a process."""

    grpc: str
    metrics: str
    web: str = ""  # of the coordinator


class DemoServices:
    """Starts the programs in the order in which they need each other's addresses."""

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
                engine="torch",  # installed here, and needs no plan
                coordinator=coordinator.grpc,
                store=store.grpc,
                data=str(shard),
                state_dir=str(self._folder / device_id),
                retry_max_seconds="1",
            )

    async def addresses(self, name: str) -> Addresses:
        """Return the addresses of a started process once it is ready."""
        file = self._address_file(name)
        try:
            async with asyncio.timeout(_READY_SECONDS):
                while not file.exists():  # noqa: ASYNC110 (another process makes it)
                    await asyncio.sleep(_POLL_SECONDS)
        except TimeoutError:
            raise Unavailable(
                f"{name} was not ready after {_READY_SECONDS:.0f} s; is the machine very busy?"
            ) from None
        addresses = json.loads(file.read_text())
        return Addresses(addresses["grpc"], addresses["metrics"], addresses.get("web", ""))

    def _start(self, name: str, module: str, **settings: str) -> None:
        settings |= {
            "metrics_listen": _ANY_PORT,
            "address_file": str(self._address_file(name)),
        }
        own = {f"HFMDS_{key.upper()}": value for key, value in settings.items()}
        # The operator's own HFMDS_ variables belong to another fleet.
        theirs = {key: v for key, v in os.environ.items() if not key.startswith("HFMDS_")}
        command = [sys.executable, "-m", module]
        self._supervisor.start(name, command, {**theirs, **_ONE_THREAD, **own})

    def _address_file(self, name: str) -> Path:
        return self._folder / f"{name}.json"
