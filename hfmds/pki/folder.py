"""An authority and its parties' certificates as files: `NAME.crt` and `NAME.key`, PEM.

Keys are readable by their owner alone. Nothing that is there is ever overwritten.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path

from hfmds.errors import ConfigurationError, Conflict
from hfmds.pki.authority import Authority, KeyPair
from hfmds.service.identity import Identity

_AUTHORITY = "authority"


def create_authority(folder: Path, fleet: str, now: datetime, lifetime: timedelta) -> Authority:
    """A new authority in a folder that has none."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    authority, pair = Authority.create(fleet, now, lifetime)
    _write(folder, _AUTHORITY, pair)
    return authority


def open_authority(folder: Path) -> Authority:
    """The authority of a folder."""
    try:
        return Authority(
            KeyPair(
                (folder / f"{_AUTHORITY}.key").read_bytes(),
                (folder / f"{_AUTHORITY}.crt").read_bytes(),
            )
        )
    except FileNotFoundError as error:
        raise ConfigurationError(
            f"there is no authority in {folder} ({Path(error.filename).name} is missing); "
            f"`hfmds pki init` makes one"
        ) from error


def issue_pair(
    folder: Path,
    authority: Authority,
    identity: Identity,
    now: datetime,
    lifetime: timedelta,
    hosts: Sequence[str] = (),
) -> Path:
    """Put a new key and certificate of the identity there; the certificate's file."""
    name = identity.uri.removeprefix("spiffe://hfmds/").replace("/", "-")
    return _write(folder, name, authority.pair(identity, now, lifetime, hosts))


def _write(folder: Path, name: str, pair: KeyPair) -> Path:
    certificate = folder / f"{name}.crt"
    for path, content, mode in (
        (folder / f"{name}.key", pair.key, 0o600),
        (certificate, pair.certificate, 0o644),
    ):
        try:
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        except FileExistsError as error:
            raise Conflict(f"{path} exists; delete it first if nobody uses it any more") from error
        with os.fdopen(file, "wb") as opened:
            opened.write(content)
    return certificate
