"""The coordinator's settings."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from hfmds.service.settings import ListenAddress, PeerAddress, ServerSettings


class CoordinatorSettings(ServerSettings):
    """Federated learning coordinator: drives rounds and averages models."""

    listen: ListenAddress = Field(
        "127.0.0.1:7401", description="Where devices and operators reach the coordinator."
    )
    metrics_listen: ListenAddress = Field(
        "127.0.0.1:7402", description="Where /metrics, /healthz and /readyz are served."
    )
    data_dir: Path = Field(
        Path("hfmds-data/coordinator"), description="Folder of the embedded storage."
    )
    store: PeerAddress = Field(
        "127.0.0.1:7411", description="Where the synthesis store is reached."
    )
    held_out: str | None = Field(
        None,
        description="Images to evaluate each model on: a folder of <class>/*.png, an .npz file or "
        "digits:SIZE#test. Unset: models are not evaluated.",
    )
    device_away_seconds: float = Field(
        90.0, gt=0, description="A device not heard of for so long counts as away."
    )
    retry_seconds: float = Field(
        5.0, gt=0, description="When a device that did not wait for work should ask again."
    )
    threads: int = Field(1, ge=1, description="CPU threads for evaluating models.")
