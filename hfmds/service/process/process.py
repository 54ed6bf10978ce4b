"""The life of a process outside its event loop: settings, logs, signals, exit code."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import TypeVar

from hfmds.errors import ConfigurationError, HfmdsError
from hfmds.service.limits.open_files import connections_allowed, raise_open_files
from hfmds.service.monitoring.logs import configure_logging
from hfmds.service.monitoring.program_metrics import software_version
from hfmds.service.monitoring.tracing import start_tracing, stop_tracing
from hfmds.service.process.settings import (
    ServerSettings,
    ServiceSettings,
    describe,
    load_settings,
    unknown_environment,
)

log = logging.getLogger(__name__)

S = TypeVar("S", bound=ServiceSettings)

_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def run(
    name: str,
    settings_class: type[S],
    main: Callable[[S, asyncio.Event], Awaitable[None]],
    argv: Sequence[str] | None = None,
) -> int:
    """Load settings, run `main(settings, stop)` and return the process's exit code.

    SIGTERM or SIGINT sets `stop`, and `main` should then finish in good order. A second signal ends
    the process at once. An `HfmdsError` from `main` becomes one line on stderr and its exit code.
    With `--version` among the arguments, `run` only prints the version.
    """
    arguments = sys.argv[1:] if argv is None else argv
    if "--version" in arguments:
        sys.stdout.write(f"{name} {software_version()}\n")
        return 0
    try:
        settings = load_settings(settings_class, arguments, program=name)
    except HfmdsError as error:
        sys.stderr.write(f"{name}: {error}\n")
        return error.exit_code
    configure_logging(settings.log_level, settings.log_format, name)
    process_fields = {"pid": os.getpid(), "version": software_version()}
    log.info("%s starts", name, extra={**process_fields, **describe(settings)})
    for unknown, nearest in unknown_environment(settings_class, os.environ).items():
        log.warning(
            "%s in the environment is no setting of %s%s",
            unknown,
            name,
            f"; did you mean {nearest}?" if nearest else "",
        )
    allowed = raise_open_files()
    connections = connections_allowed()
    if isinstance(settings, ServerSettings) and connections < settings.max_connections:
        log.warning(
            "%s may open only %d files, so it takes %d connections; raise the limit "
            "(ulimit -Hn, LimitNOFILE=), or lower HFMDS_MAX_CONNECTIONS",
            name,
            allowed,
            connections,
        )
    _remove_stale(settings.address_file)
    try:
        start_tracing(settings.otlp_endpoint, name)
        asyncio.run(_until_done(main, settings))
    except HfmdsError as error:
        log.error("%s stops: %s", name, error)  # expected: no traceback
        return error.exit_code
    except Exception:
        log.exception("%s stops: unexpected error", name)
        return 1
    finally:
        stop_tracing()
    log.info("%s stopped", name)
    return 0


@contextmanager
def published_addresses(path: Path | None, **addresses: str) -> Iterator[None]:
    """Inside the block, the file has the addresses of this process: {"grpc": ..., "pid": ...}.

    A reader never sees half a file. Without a path, nothing happens.
    """
    if path is None:
        yield
        return
    content = json.dumps({**addresses, "pid": os.getpid()}) + "\n"
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(content)
        temporary.replace(path)
    except OSError as error:
        raise ConfigurationError(
            f"cannot write the address file {path}: {error.strerror}; set HFMDS_ADDRESS_FILE"
        ) from error
    try:
        yield
    finally:
        # The file of a successor, which may start during our grace period, stays.
        if path.exists() and path.read_text() == content:
            path.unlink()


def _remove_stale(address_file: Path | None) -> None:
    """Remove the file of a killed predecessor, which would claim that this process is ready."""
    if address_file is not None:
        with suppress(OSError):  # `published_addresses` reports the fault
            address_file.unlink()


async def _until_done(main: Callable[[S, asyncio.Event], Awaitable[None]], settings: S) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def request_stop(signum: int, _: FrameType | None) -> None:
        for stop_signal in _STOP_SIGNALS:
            signal.signal(stop_signal, signal.SIG_DFL)  # the next one ends the process at once
        log.info("stopping on %s", signal.Signals(signum).name)
        loop.call_soon_threadsafe(stop.set)

    # loop.add_signal_handler would ignore the second signal while the loop is stuck.
    previous = {number: signal.signal(number, request_stop) for number in _STOP_SIGNALS}
    try:
        await main(settings, stop)
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
