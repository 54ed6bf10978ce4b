"""The coordinator's settings."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Self

from pydantic import Field, model_validator

from hfmds.service.process.address import is_loopback, split_address
from hfmds.service.process.settings import ListenAddress, PeerAddresses, ServerSettings


class CoordinatorSettings(ServerSettings):
    """What the coordinator can be told."""

    listen: ListenAddress = Field(
        "127.0.0.1:7401", description="host:port to serve gRPC on; port 0 takes a free one"
    )
    metrics_listen: ListenAddress = Field(
        "127.0.0.1:7402",
        description="host:port for /metrics, /healthz and /readyz, in plain HTTP for whoever "
        "reaches it; port 0 takes a free one",
    )
    web_listen: ListenAddress | None = Field(
        None,
        description="host:port to serve the web page on; with TLS it is HTTPS, for admins; "
        "unset: there is no page",
    )
    token_listen: ListenAddress | None = Field(
        None,
        description="host:port for devices and admins that have a token and no certificate; "
        "unset: nobody is let in by a token",
    )
    issuer_certificate: Path | None = Field(
        None,
        description="PEM file of the device issuer's certificate, by which devices that enrol get "
        "theirs; unset: devices get them elsewhere",
    )
    issuer_key: Path | None = Field(None, description="PEM file of the device issuer's key")
    certificate_seconds: float = Field(
        24 * 3600.0, gt=0, description="how long certificates of devices are good for"
    )
    data_dir: Path = Field(
        Path("hfmds-data/coordinator"),
        description="folder of the embedded database, of stored content and of uploads under way",
    )
    store: PeerAddresses = Field(
        "127.0.0.1:7411",
        description="host:port of the synthesis store; of several, IP addresses separated by "
        "commas",
    )
    held_out: str | None = Field(
        None,
        description="images to evaluate models on: a folder with one folder per class, an .npz "
        "file, or digits[:SIZE][#train|#test]; unset: models are not evaluated",
    )
    plans_dir: Path | None = Field(
        None,
        description="folder where coordinators of this machine keep plans for each other; unset: "
        "each makes its own",
    )
    plans_max_bytes: int = Field(
        256 * 1024 * 1024,
        ge=1024 * 1024,
        description="size above which the least recently used plans leave; they are made again if "
        "need be",
    )
    device_away_seconds: float = Field(
        90.0, gt=0, description="a device not heard of for so long counts as away"
    )
    retry_seconds: float = Field(
        5.0, gt=0, description="when a device that was sent away should ask again, at the earliest"
    )
    check_ins_per_second: float = Field(
        100.0,
        gt=0,
        le=1e6,
        description="at which rate devices that were sent away are asked back, at most",
    )
    max_waiting_devices: int = Field(
        1000,
        ge=0,
        description="most devices that wait for work in an open call; others are asked back",
    )
    leader_lease_seconds: float = Field(
        6.0,
        ge=1,
        description="of several coordinators on one PostgreSQL one leads; another takes over when "
        "nothing was heard of it for so long; below 3 it may be while it loads torch",
    )
    threads: int = Field(
        1,
        ge=1,
        description="processor threads for evaluating models, and for what the server learns",
    )

    @property
    def calls(self) -> Mapping[str, str]:
        """The store."""
        return {"HFMDS_STORE": self.store}

    @model_validator(mode="after")
    def _tokens_need_tls(self) -> Self:
        if (self.issuer_certificate is None) != (self.issuer_key is None):
            raise ValueError(
                "HFMDS_ISSUER_CERTIFICATE and HFMDS_ISSUER_KEY belong together; set both, or none"
            )
        if (self.token_listen or self.issuer_key) and not self.tls:
            raise ValueError(
                "tokens and certificates are given out over TLS only: set HFMDS_TLS_CERTIFICATE, "
                "HFMDS_TLS_KEY and HFMDS_TLS_AUTHORITY, or unset HFMDS_TOKEN_LISTEN and "
                "HFMDS_ISSUER_CERTIFICATE"
            )
        return self

    @model_validator(mode="after")
    def _others_see_the_page_by_tls(self) -> Self:
        host = split_address(self.web_listen)[0] if self.web_listen else "localhost"
        if not (self.tls or self.insecure or is_loopback(host)):
            raise ValueError(
                f"HFMDS_WEB_LISTEN is {self.web_listen}, which other machines can reach, and there "
                f"is no TLS: set HFMDS_TLS_CERTIFICATE, HFMDS_TLS_KEY and HFMDS_TLS_AUTHORITY, or "
                f"HFMDS_INSECURE=true where the network is trusted"
            )
        return self
