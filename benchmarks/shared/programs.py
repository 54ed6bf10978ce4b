"""The three programs as child processes, and their cost.

Benchmarks of the coordinator, the store and devices use it to measure the programs that an operator
runs, on a real file system, over gRPC on loopback. It reads /proc, so it needs Linux.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from hfmds.errors import ConfigurationError, Unavailable
from hfmds.processes import Child, Supervisor
from hfmds.service.client.peer import Peer

ANY_PORT = "127.0.0.1:0"
MEGABYTE = 1e6
_READY_SECONDS = 90.0
_POLL_SECONDS = 0.002
_QUIET_LOAD = 0.3  # processes that run besides us, above which times are not to be trusted
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
# One thread each, as in the demo: what is measured here is not torch.
# The image (k8s/Dockerfile) and docs/operations.md set these for servers.
_AS_IN_THE_IMAGE = {
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_TRIM_THRESHOLD_": "67108864",
    "MALLOC_MMAP_THRESHOLD_": "33554432",
}
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


@dataclass(frozen=True, slots=True)
class Usage:
    """The resources that a process has used."""

    cpu_seconds: float
    rss_bytes: int
    peak_rss_bytes: int


def usage(pid: int) -> Usage:
    """Return what a process has used since its start, with its peak since `forget_peak`."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    ticks = int(fields[11]) + int(fields[12])  # utime, stime
    status = dict(
        line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines()
    )

    def kilobytes(name: str) -> int:
        return 1024 * int(status[name].split()[0])

    return Usage(ticks / _TICKS_PER_SECOND, kilobytes("VmRSS"), kilobytes("VmHWM"))


def forget_peak(pid: int) -> None:
    """Reset the peak of a process's memory to its current memory."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def warn_if_busy() -> bool:
    """Warn and return true if other programs keep the machine busy."""
    load = os.getloadavg()[0]
    if load > _QUIET_LOAD:
        sys.stderr.write(
            f"other programs keep {load:.1f} processors busy: times will be too long; "
            "measure again when the machine is idle\n"
        )
    return load > _QUIET_LOAD


def print_progress(text: str) -> None:
    """Print progress to stderr."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def print_result(text: str) -> None:
    """Print a part of the result as Markdown."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def allow_open_files(wanted: int) -> None:
    """Raise the limit of open files for this process and its children, or raise."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most != resource.RLIM_INFINITY and most < wanted:
        raise ConfigurationError(
            f"{wanted} open files are needed, this user may have {most}; raise it (ulimit -Hn), "
            "or ask for fewer devices"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))


class Programs:
    """Starts programs in a folder; leaving `programs` ends all of them."""

    def __init__(self, folder: Path, supervisor: Supervisor) -> None:
        self.folder = folder
        self._supervisor = supervisor

    def start_store(self, name: str = "store") -> StartedProgram:
        """Start a synthesis store in its own folder and wait until it is ready."""
        return self._start(
            name, "synthesis_store", listen=ANY_PORT, data_dir=str(self.folder / name)
        )

    def start_coordinator(
        self,
        *,
        store: str = "127.0.0.1:1",  # FedAvg never calls it
        listen: str = ANY_PORT,
        wait: bool = True,
        **settings: str,
    ) -> StartedProgram:
        """Start the coordinator; the address of a killed one makes it a restart."""
        given = {"listen": listen, "data_dir": str(self.folder / "coordinator"), "store": store}
        return self._start("coordinator", "coordinator", wait=wait, **given, **settings)

    def start_device(self, name: str, *, wait: bool = True, **settings: str) -> StartedProgram:
        """Start an edge client."""
        given = {"device_id": name, "state_dir": str(self.folder / name)}
        return self._start(name, "edge_client", wait=wait, **given, **settings)

    def _start(
        self, name: str, module: str, *, wait: bool = True, **settings: str
    ) -> StartedProgram:
        file = self.folder / f"{name}.json"
        file.unlink(missing_ok=True)
        settings = {
            "metrics_listen": ANY_PORT,
            "address_file": str(file),
            "log_level": "warning",  # lines that nobody reads would be measured, too
            **settings,
        }
        ours = {f"HFMDS_{key.upper()}": value for key, value in settings.items()}
        theirs = {key: v for key, v in os.environ.items() if not key.startswith("HFMDS_")}
        child = self._supervisor.start(
            name,
            [sys.executable, "-m", module],
            {**theirs, **_ONE_THREAD, **_AS_IN_THE_IMAGE, **ours},
        )
        program = StartedProgram(child, file)
        if wait:
            program.wait_until_ready()
        return program


class StartedProgram:
    """A started program."""

    def __init__(self, child: Child, address_file: Path) -> None:
        self._child = child
        self._address_file = address_file

    @property
    def pid(self) -> int:
        """Return the process id of the program."""
        return self._child.process.pid

    @property
    def peer(self) -> Peer:
        """Return its address once it is ready."""
        address = json.loads(self._address_file.read_text())["grpc"]
        return Peer(self._child.name, address, "HFMDS_LISTEN")

    @property
    def is_ready(self) -> bool:
        return self._address_file.exists()

    def wait_until_ready(self) -> None:
        """Wait until it answers; raise with its log if it never does."""
        give_up_at = time.monotonic() + _READY_SECONDS
        while not self.is_ready:
            if self._child.exit_code() is not None:
                raise Unavailable(self._child.describe_end())
            if time.monotonic() > give_up_at:
                raise Unavailable(f"{self._child.name} was not ready after {_READY_SECONDS:.0f} s")
            time.sleep(_POLL_SECONDS)

    def stop(self) -> None:
        """Stop it in good order."""
        self._child.signal_group(signal.SIGTERM)
        self._child.process.wait()

    def kill(self) -> None:
        """Kill it and wait for its end."""
        self._child.signal_group(signal.SIGKILL)
        self._child.process.wait()


@contextmanager
def programs() -> Iterator[Programs]:
    """Give programs a folder on the disk of TMPDIR, whose syncs are part of the measurement."""
    with (
        tempfile.TemporaryDirectory(prefix="hfmds-benchmark-") as name,
        Supervisor(Path(name) / "logs") as supervisor,
    ):
        yield Programs(Path(name), supervisor)
