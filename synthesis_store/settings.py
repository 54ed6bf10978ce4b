"""Settings of the synthesis store."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from hfmds.service.process.settings import ListenAddress, ServerSettings


class StoreSettings(ServerSettings):
    """What the synthesis store can be told."""

    listen: ListenAddress = Field(
        "127.0.0.1:7411", description="host:port to serve gRPC on; port 0 takes a free one"
    )
    metrics_listen: ListenAddress = Field(
        "127.0.0.1:7412",
        description="host:port for /metrics, /healthz and /readyz, in plain HTTP for whoever "
        "reaches it; port 0 takes a free one",
    )
    data_dir: Path = Field(
        Path("hfmds-data/store"),
        description="folder of the embedded database, of stored content and of uploads under way",
    )
    look_every_seconds: float = Field(
        1.0, gt=0, description="how often it looks for pools that are to be sealed by themselves"
    )
    keep_snapshots: int = Field(
        3, ge=1, description="newest snapshots of a run that stay until the run is deleted"
    )
    collect_every_seconds: float = Field(
        3600.0,
        ge=0,
        description="how often snapshots that no run needs are removed; 0: only when told to",
    )
