"""Settings of the synthesis store."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from hfmds.service.process.settings import ListenAddress, ServerSettings


class StoreSettings(ServerSettings):
    """Run the synthesis store: it takes synthetic batches and serves sealed snapshots."""

    listen: ListenAddress = Field(
        "127.0.0.1:7411", description="host:port to serve gRPC on; port 0 takes a free one."
    )
    metrics_listen: ListenAddress = Field(
        "127.0.0.1:7412",
        description="host:port for /metrics, /healthz and /readyz, as plain HTTP without access "
        "control; port 0 takes a free one.",
    )
    data_dir: Path = Field(
        Path("hfmds-data/store"),
        description="Folder of the embedded database, of stored content and of uploads.",
    )
    look_every_seconds: float = Field(
        1.0, gt=0, description="Seconds between two searches for pools that are due to be sealed."
    )
    keep_snapshots: int = Field(
        3, ge=1, description="Newest snapshots that the store keeps until their run is deleted."
    )
    collect_every_seconds: float = Field(
        3600.0,
        ge=0,
        description="Seconds between two removals of unneeded snapshots; 0: only on command.",
    )
    orphan_grace_seconds: float = Field(
        24 * 3600.0,
        gt=0,
        description="Seconds after which the store deletes content that a crash left behind.",
    )
