"""What the threat model names as proof is there, and its numbers are the code's."""

from __future__ import annotations

import re
from pathlib import Path

from coordinator.membership import _TOKEN_LIMITS
from hfmds.service import metrics_http
from hfmds.service.limits import Limits
from tests.test_readme import PROGRAMS

REPOSITORY = Path(__file__).resolve().parents[1]
TEXT = (REPOSITORY / "docs" / "threat-model.md").read_text()


def test_every_file_it_names_exists() -> None:
    named = {
        name
        for name in re.findall(r"`([a-z_0-9]+/[\w./-]+)`", TEXT)
        if not name.startswith("dist/")
    }
    assert len(named) > 30
    assert not [name for name in sorted(named) if not (REPOSITORY / name).exists()]
    links = re.findall(r"\]\(([\w.-]+)\)", TEXT)
    assert not [link for link in links if not (REPOSITORY / "docs" / link).exists()]


def test_every_setting_it_names_exists() -> None:
    known = {f"HFMDS_{name.upper()}" for kind in PROGRAMS.values() for name in kind.model_fields}
    assert set(re.findall(r"HFMDS_[A-Z_]+", TEXT)) <= known


def test_its_table_of_limits_is_that_of_the_code() -> None:
    main, token = Limits(), _TOKEN_LIMITS
    assert (
        f"| {main.connections:,} | {main.calls:,}, of a device {main.device_calls}, "
        f"on a connection {main.connection_calls} | {main.calls_per_second:,.0f} / "
        f"{main.address_calls_per_second:,.0f} / {main.device_calls_per_second:.0f} | "
        f"{main.message_bytes // 2**20} MiB | {main.handshake_seconds:.0f} s, "
        f"{main.message_seconds:.0f} s |"
    ) in TEXT
    assert (
        f"| {token.connections:,} | {token.calls}, on a connection {token.connection_calls} | "
        f"{token.calls_per_second:.0f} / {token.address_calls_per_second:.0f} / | "
        f"{token.message_bytes // 1024} KiB | {token.handshake_seconds:.0f} s, "
        f"{token.message_seconds:.0f} s |"
    ) in TEXT
    assert (
        f"| metrics | {metrics_http._CONNECTIONS} | one on a connection | | "
        f"{metrics_http._REQUEST_BYTES // 1024} KiB | "
        f"{metrics_http._EXCHANGE_SECONDS:.0f} s in all |"
    ) in TEXT
