"""`hfmds pki ...`: the certificates of a fleet's devices, services and people.

The commands of this module only write files. Those of `members` call the coordinator.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated

import typer

from hfmds.cli.commands import members
from hfmds.cli.terminal import output
from hfmds.errors import InvalidInput
from hfmds.pki.folder import (
    complete_authority,
    create_authority,
    issue_pair,
    open_authority,
    renew_pair,
)
from hfmds.service.security.identity import Identity, Kind, identity_from

app = typer.Typer(
    help="Manage the members of the fleet: certificates, tokens, revocation, quarantine.",
    no_args_is_help=True,
)

_AUTHORITY_DAYS = 3650
_SERVICES = ("coordinator", "synthesis-store")

Folder = Annotated[Path, typer.Option(help="Folder of the authority and its keys. Keep it safe.")]
Days = Annotated[int, typer.Option(min=1, max=3650, help="Lifetime of certificates.")]
Hosts = Annotated[
    list[str] | None,
    typer.Option(
        "--host",
        metavar="NAME",
        help="Name or address of the service. The option may be repeated. Default: this "
        "machine and the name of the service.",
    ),
]


_KINDS = {kind.word: kind for kind in Kind}


def _kind(word: str) -> Kind:
    if word not in _KINDS:
        raise InvalidInput(f"{word!r} is not one of {', '.join(_KINDS)}")
    return _KINDS[word]


PartyKind = Annotated[
    Kind,
    typer.Argument(parser=_kind, metavar="KIND", help=f"Kind of the party: {', '.join(_KINDS)}."),
]
Name = Annotated[str, typer.Argument(help="Name of the party; for a device, its id.")]


@app.command()
def init(
    folder: Folder = Path("hfmds-pki"),
    fleet: Annotated[str, typer.Option(help="Name of the fleet.")] = "this fleet",
    host: Hosts = None,
    days: Days = 365,
) -> None:
    """Create the authorities of a fleet, and certificates of both services and an owner `admin`.

    In the folder of an existing fleet the command only adds missing issuers.
    """
    now, for_long = datetime.now(UTC), timedelta(days=_AUTHORITY_DAYS)
    if added := complete_authority(folder, fleet, now, for_long):
        for certificate in added:
            _print(certificate)
        output().print(
            f"\n{folder / 'authority.crt'} has the new issuers: give it to every program before "
            f"you use a certificate of a new issuer (docs/operations.md, Upgrade).",
            highlight=False,
        )
        return
    authority = create_authority(folder, fleet, now, for_long)
    lifetime = timedelta(days=days)
    for service in _SERVICES:
        identity = Identity(Kind.SERVICE, service)
        _print(issue_pair(folder, authority, identity, now, lifetime, _hosts(identity, host)))
    _print(issue_pair(folder, authority, Identity(Kind.OWNER, "admin"), now, lifetime))
    output().print(
        f"\nGive each program HFMDS_TLS_CERTIFICATE, HFMDS_TLS_KEY (the .key of the same name) and "
        f"HFMDS_TLS_AUTHORITY={folder / 'authority.crt'}.\n"
        f"To let devices enrol, give the coordinator "
        f"HFMDS_ISSUER_CERTIFICATE={folder / 'device-issuer.crt'}, "
        f"HFMDS_ISSUER_KEY={folder / 'device-issuer.key'} and HFMDS_TOKEN_LISTEN.\n"
        f"If a cluster issues the certificates of services, give it "
        f"{folder / 'service-issuer.crt'} and {folder / 'service-issuer.key'}.\n"
        f"{folder / 'authority.key'} can sign any certificate: keep it on a machine without "
        f"these programs.",
        highlight=False,
    )


@app.command()
def issue(
    kind: PartyKind,
    name: Name,
    folder: Folder = Path("hfmds-pki"),
    host: Hosts = None,
    days: Days = 90,
) -> None:
    """Create a key and a certificate for a device, a service or a person."""
    identity, authority = _identity(kind, name), open_authority(folder)
    now, lifetime = datetime.now(UTC), timedelta(days=days)
    _print(issue_pair(folder, authority, identity, now, lifetime, _hosts(identity, host)))


@app.command()
def renew(
    kind: PartyKind,
    name: Name,
    folder: Folder = Path("hfmds-pki"),
    host: Annotated[
        list[str] | None,
        typer.Option(
            "--host",
            metavar="NAME",
            help="As for `issue`. Default: the names of the old certificate.",
        ),
    ] = None,
    days: Days = 90,
) -> None:
    """Replace a key and a certificate in the folder. A running server reads the new ones itself.

    The old certificate stays valid until it expires.
    """
    identity, authority = _identity(kind, name), open_authority(folder)
    now, lifetime = datetime.now(UTC), timedelta(days=days)
    _print(renew_pair(folder, authority, identity, now, lifetime, host or ()))


def _identity(kind: Kind, name: str) -> Identity:
    return identity_from(Identity(kind, name).uri)


def _hosts(identity: Identity, given: list[str] | None) -> list[str]:
    if given or identity.kind is not Kind.SERVICE:
        return given or []
    return ["localhost", "127.0.0.1", identity.name]  # callers need at least one name


def _print(certificate: Path) -> None:
    output().print(str(certificate), highlight=False, soft_wrap=True)


members.add_to(app)
