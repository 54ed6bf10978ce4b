"""A fleet's authorities and certificates as files: `NAME.crt` and `NAME.key`, PEM.

`authority.crt` has the certificates of all authorities, which all programs believe. Only the owner
can read keys. Nothing overwrites a file except a renewal.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import TypeVar

from hfmds.errors import ConfigurationError, Conflict
from hfmds.pki.authority import Authority, KeyPair, hosts_of, units_of
from hfmds.service.security.identity import DEVICES_UNIT, SERVICES_UNIT, Identity
from hfmds.storage.files import sync_folder

T = TypeVar("T")

_AUTHORITY = "authority"
_ISSUER = "device-issuer"
_SERVICE_ISSUER = "service-issuer"
_ISSUERS = (
    (_ISSUER, DEVICES_UNIT, Authority.create_issuer),
    (_SERVICE_ISSUER, SERVICES_UNIT, Authority.create_service_issuer),
)


def create_authority(folder: Path, fleet: str, now: datetime, lifetime: timedelta) -> Authority:
    """Create the fleet's authority and its issuers in a folder that has none.

    Conflict, with nothing written, if the folder has the certificate or the key of an authority:
    the other half may be in a safe place.
    """
    for path in (folder / f"{_AUTHORITY}.crt", folder / f"{_AUTHORITY}.key"):
        if path.exists():
            raise Conflict(
                f"{path} exists: {folder} has the authority of a fleet; make its certificates with "
                f"`hfmds pki issue` and `hfmds pki renew`, or choose another --folder for another "
                f"fleet"
            )
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    authority, pair = Authority.create(fleet, now, lifetime)
    _write(folder, _AUTHORITY, pair)
    complete_authority(folder, fleet, now, lifetime)
    return authority


def complete_authority(folder: Path, fleet: str, now: datetime, lifetime: timedelta) -> list[Path]:
    """Create the issuers that a folder lacks, and add them to `authority.crt`.

    Return the certificates that this added: none if there is no authority, or if it was complete.
    """
    believed = folder / f"{_AUTHORITY}.crt"
    if not believed.exists():
        return []
    added = []
    for name, unit, create in _ISSUERS:
        if unit in _read_file(believed, units_of):
            continue  # its files may have moved to the program that uses them
        certificate = folder / f"{name}.crt"
        if not certificate.exists():  # a killed process may have written it
            _write(folder, name, create(fleet, now, lifetime)[1])
        _replace(believed, believed.read_bytes() + certificate.read_bytes(), 0o644)
        added.append(certificate)
    return added


def open_authority(folder: Path) -> Authority:
    """Open the authority of a folder."""
    try:
        return _read(folder / f"{_AUTHORITY}.crt", folder / f"{_AUTHORITY}.key")
    except FileNotFoundError as error:
        missing = Path(error.filename).name
        has_other_half = any((folder / f"{_AUTHORITY}{end}").exists() for end in (".crt", ".key"))
        remedy = f"put {missing} there" if has_other_half else "`hfmds pki init` makes one"
        raise ConfigurationError(
            f"there is no authority in {folder} ({missing} is missing); {remedy}"
        ) from error


def read_issuer(certificate: Path, key: Path, believed: bytes) -> Authority:
    """Open the device issuer; ConfigurationError if these are not the files of one.

    `believed` has the certificates of the authorities that all parties believe, PEM.
    """
    try:
        issuer = _read(certificate, key)
    except OSError as error:
        raise ConfigurationError(
            f"cannot read the device issuer's {error.filename}: {error.strerror}; set "
            f"HFMDS_ISSUER_CERTIFICATE and HFMDS_ISSUER_KEY, or neither"
        ) from error
    if not issuer.signs_devices_only:
        raise ConfigurationError(
            f"{certificate} is not a device issuer's: it could sign for a service or an admin; "
            f"`hfmds pki init` makes {_ISSUER}.crt"
        )
    try:
        is_believed = issuer.is_believed_by(believed)
    except ConfigurationError as error:
        raise ConfigurationError(f"the file in HFMDS_TLS_AUTHORITY: {error}") from error
    if not is_believed:
        raise ConfigurationError(
            f"no program would believe the device issuer's certificates: add {certificate} to the "
            f"file in HFMDS_TLS_AUTHORITY of every program"
        )
    return issuer


def _read_file(path: Path, read: Callable[[bytes], T]) -> T:
    try:
        return read(path.read_bytes())
    except ConfigurationError as error:
        raise ConfigurationError(f"{path}: {error}") from error


def _read(certificate: Path, key: Path) -> Authority:
    pair = KeyPair(key.read_bytes(), certificate.read_bytes())
    try:
        return Authority(pair)
    except ConfigurationError as error:
        raise ConfigurationError(f"{certificate} and {key}: {error}") from error


def issue_pair(
    folder: Path,
    authority: Authority,
    identity: Identity,
    now: datetime,
    lifetime: timedelta,
    hosts: Sequence[str] = (),
) -> Path:
    """Write a new key and certificate of the identity; return the certificate's file."""
    return _write(folder, _name(identity), authority.pair(identity, now, lifetime, hosts))


def renew_pair(
    folder: Path,
    authority: Authority,
    identity: Identity,
    now: datetime,
    lifetime: timedelta,
    hosts: Sequence[str] = (),
) -> Path:
    """Replace a key and its certificate; return the certificate's file.

    Without `hosts`, the new certificate has the hosts of the old one.
    """
    name = _name(identity)
    certificate, key = folder / f"{name}.crt", folder / f"{name}.key"
    try:
        hosts = hosts or _read_file(certificate, hosts_of)
    except FileNotFoundError as error:
        raise ConfigurationError(
            f"there is no {certificate} to renew; `hfmds pki issue` makes one"
        ) from error
    pair = authority.pair(identity, now, lifetime, hosts)
    # A program that reads in between finds a key of another certificate, and keeps the old pair.
    for path, content, mode in ((key, pair.key, 0o600), (certificate, pair.certificate, 0o644)):
        _replace(path, content, mode)
    return certificate


def _name(identity: Identity) -> str:
    return identity.uri.removeprefix("spiffe://hfmds/").replace("/", "-")


def _write(folder: Path, name: str, pair: KeyPair) -> Path:
    certificate = folder / f"{name}.crt"
    _create(folder / f"{name}.key", pair.key, 0o600)
    _create(certificate, pair.certificate, 0o644)
    return certificate


def _replace(path: Path, content: bytes, mode: int) -> None:
    fresh = path.with_name(f".{path.name}.new")
    fresh.unlink(missing_ok=True)
    _create(fresh, content, mode)
    fresh.replace(path)
    sync_folder(path.parent)


def _create(path: Path, content: bytes, mode: int) -> None:
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    except FileExistsError as error:
        raise Conflict(
            f"{path} exists; replace it with `hfmds pki renew`, or delete it if no program uses it"
        ) from error
    with os.fdopen(file, "wb") as opened:
        opened.write(content)
        opened.flush()
        os.fsync(file)  # other parties may hold the certificate after a power cut
    sync_folder(path.parent)
