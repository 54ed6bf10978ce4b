"""A fleet's authorities and its parties' certificates as files: `NAME.crt` and `NAME.key`, PEM.

`authority.crt` has the certificates of all authorities: it is what all programs believe. Keys are
readable by their owner alone. Nothing that is there is overwritten, unless it is renewed; an issuer
that comes later is added to what is believed.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path

from hfmds.errors import ConfigurationError, Conflict
from hfmds.pki.authority import Authority, KeyPair, hosts_of, units_of
from hfmds.service.security.identity import DEVICES_UNIT, SERVICES_UNIT, Identity
from hfmds.storage.files import sync_folder

_AUTHORITY = "authority"
_ISSUER = "device-issuer"
_SERVICE_ISSUER = "service-issuer"
_ISSUERS = (
    (_ISSUER, DEVICES_UNIT, Authority.create_issuer),
    (_SERVICE_ISSUER, SERVICES_UNIT, Authority.create_service_issuer),
)


def create_authority(folder: Path, fleet: str, now: datetime, lifetime: timedelta) -> Authority:
    """A new authority with the issuers beside it, in a folder that has none.

    Conflict, with nothing written, if it has one, or half of one: its key may be kept elsewhere.
    """
    for path in (folder / f"{_AUTHORITY}.crt", folder / f"{_AUTHORITY}.key"):
        if path.exists():
            raise Conflict(
                f"{path} exists: {folder} has the authority of a fleet, which stays as it is; "
                f"`hfmds pki issue` and `hfmds pki renew` make certificates by it, and for "
                f"another fleet give another --folder"
            )
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    authority, pair = Authority.create(fleet, now, lifetime)
    _write(folder, _AUTHORITY, pair)
    complete_authority(folder, fleet, now, lifetime)
    return authority


def complete_authority(folder: Path, fleet: str, now: datetime, lifetime: timedelta) -> list[Path]:
    """Make what a folder lacks of the issuers, as one does that an older version has made.

    The certificates of those that `authority.crt` did not have until now; none if it had all, or
    if there is no authority.
    """
    believed = folder / f"{_AUTHORITY}.crt"
    if not believed.exists():
        return []
    added = []
    for name, unit, create in _ISSUERS:
        if unit in units_of(believed.read_bytes()):
            continue  # its files may have been taken to where they are used
        certificate = folder / f"{name}.crt"
        if not certificate.exists():  # else somebody was killed before the next step
            _write(folder, name, create(fleet, now, lifetime)[1])
        _replace(believed, believed.read_bytes() + certificate.read_bytes(), 0o644)
        added.append(certificate)
    return added


def open_authority(folder: Path) -> Authority:
    """The authority of a folder."""
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
    """The device issuer whose files these are; ConfigurationError if they are not one's.

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
            f"{certificate} is not a device issuer's: what it signs could pass for a service or "
            f"an admin; `hfmds pki init` makes {_ISSUER}.crt"
        )
    if not issuer.is_believed_by(believed):
        raise ConfigurationError(
            f"nobody would believe what the device issuer signs: add {certificate} to the file "
            f"that HFMDS_TLS_AUTHORITY names, at every program"
        )
    return issuer


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
    """Put a new key and certificate of the identity there; the certificate's file."""
    return _write(folder, _name(identity), authority.pair(identity, now, lifetime, hosts))


def renew_pair(
    folder: Path,
    authority: Authority,
    identity: Identity,
    now: datetime,
    lifetime: timedelta,
    hosts: Sequence[str] = (),
) -> Path:
    """Put a new key and certificate in place of those that are there; the certificate's file.

    Without `hosts`, for those that the old one is for.
    """
    name = _name(identity)
    certificate, key = folder / f"{name}.crt", folder / f"{name}.key"
    try:
        hosts = hosts or hosts_of(certificate.read_bytes())
    except FileNotFoundError as error:
        raise ConfigurationError(
            f"there is no {certificate} to renew; `hfmds pki issue` makes one"
        ) from error
    pair = authority.pair(identity, now, lifetime, hosts)
    # Whoever reads in between finds two that do not belong together, and keeps what it has.
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
            f"{path} exists; `hfmds pki renew` puts another in its place, or delete it if nobody "
            f"uses it any more"
        ) from error
    with os.fdopen(file, "wb") as opened:
        opened.write(content)
        opened.flush()
        os.fsync(file)  # what it is of may be with others when the power comes back
    sync_folder(path.parent)
