"""`hfmds pki ...`: the certificates by which the parties of a fleet know each other.

Here are those commands that only write files; the others, which ask the coordinator, are in
`member_commands`.
"""

from __future__ import annotations

import enum
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated

import typer

from hfmds.cli.commands import members
from hfmds.cli.terminal import output
from hfmds.pki.folder import (
    complete_authority,
    create_authority,
    issue_pair,
    open_authority,
    renew_pair,
)
from hfmds.service.security.identity import Identity, Kind, identity_from

app = typer.Typer(
    help="Say who belongs to the fleet: certificates, tokens, revocation, quarantine.",
    no_args_is_help=True,
)

_AUTHORITY_DAYS = 3650
_SERVICES = ("coordinator", "synthesis-store")

Folder = Annotated[Path, typer.Option(help="Where the authority and its keys are. Keep it safe.")]
Days = Annotated[int, typer.Option(min=1, max=3650, help="How long certificates are good for.")]
Hosts = Annotated[
    list[str] | None,
    typer.Option(
        "--host",
        metavar="NAME",
        help="A name or address by which callers reach the service; may be given again. "
        "Without: this machine, and the service's own name.",
    ),
]


class PartyKind(enum.StrEnum):
    """For whom a certificate is."""

    DEVICE = "device"
    SERVICE = "service"
    VIEWER = "viewer"
    OPERATOR = "operator"
    OWNER = "owner"


Kinds = Annotated[PartyKind, typer.Argument(help="For whom it is.")]
Name = Annotated[str, typer.Argument(help="Its name; of a device, its id.")]


@app.command()
def init(
    folder: Folder = Path("hfmds-pki"),
    fleet: Annotated[str, typer.Option(help="What the fleet is called.")] = "this fleet",
    host: Hosts = None,
    days: Days = 365,
) -> None:
    """Make a fleet's authorities, certificates of both services and of an owner `admin`.

    In the folder of a fleet that is there: only the issuers that an older version did not make.
    """
    now, for_long = datetime.now(UTC), timedelta(days=_AUTHORITY_DAYS)
    if added := complete_authority(folder, fleet, now, for_long):
        for certificate in added:
            _say(certificate)
        output().print(
            f"\n{folder / 'authority.crt'} has what was added: give it to every program before "
            f"anybody shows a certificate of the new issuer (docs/operations.md, Upgrade).",
            highlight=False,
        )
        return
    authority = create_authority(folder, fleet, now, for_long)
    lifetime = timedelta(days=days)
    for service in _SERVICES:
        identity = Identity(Kind.SERVICE, service)
        _say(issue_pair(folder, authority, identity, now, lifetime, _hosts(identity, host)))
    _say(issue_pair(folder, authority, Identity(Kind.OWNER, "admin"), now, lifetime))
    output().print(
        f"\nGive each program HFMDS_TLS_CERTIFICATE, HFMDS_TLS_KEY (the .key beside it) and "
        f"HFMDS_TLS_AUTHORITY={folder / 'authority.crt'}.\n"
        f"To let devices enrol by themselves, give the coordinator "
        f"HFMDS_ISSUER_CERTIFICATE={folder / 'device-issuer.crt'}, "
        f"HFMDS_ISSUER_KEY={folder / 'device-issuer.key'} and HFMDS_TOKEN_LISTEN.\n"
        f"Where a cluster makes certificates of services by itself, give it "
        f"{folder / 'service-issuer.crt'} and {folder / 'service-issuer.key'}.\n"
        f"{folder / 'authority.key'} can make certificates of anybody: keep it where no program "
        f"runs.",
        highlight=False,
    )


@app.command()
def issue(
    kind: Kinds,
    name: Name,
    folder: Folder = Path("hfmds-pki"),
    host: Hosts = None,
    days: Days = 90,
) -> None:
    """Make a key and a certificate for a device, a service or a person."""
    identity, authority = _identity(kind, name), open_authority(folder)
    now, lifetime = datetime.now(UTC), timedelta(days=days)
    _say(issue_pair(folder, authority, identity, now, lifetime, _hosts(identity, host)))


@app.command()
def renew(
    kind: Kinds,
    name: Name,
    folder: Folder = Path("hfmds-pki"),
    host: Annotated[
        list[str] | None,
        typer.Option("--host", metavar="NAME", help="As of `issue`. Without: those it has."),
    ] = None,
    days: Days = 90,
) -> None:
    """Put a new key and certificate in place of those in the folder; a server reads them by itself.

    The old ones are good until they run out.
    """
    identity, authority = _identity(kind, name), open_authority(folder)
    now, lifetime = datetime.now(UTC), timedelta(days=days)
    _say(renew_pair(folder, authority, identity, now, lifetime, host or ()))


def _identity(kind: PartyKind, name: str) -> Identity:
    of_people = kind not in (PartyKind.DEVICE, PartyKind.SERVICE)
    return identity_from(f"spiffe://hfmds/{'admin/' if of_people else ''}{kind.value}/{name}")


def _hosts(identity: Identity, given: list[str] | None) -> list[str]:
    if given or identity.kind is not Kind.SERVICE:
        return given or []
    return ["localhost", "127.0.0.1", identity.name]  # nobody could call a server without any


def _say(certificate: Path) -> None:
    output().print(str(certificate), highlight=False, soft_wrap=True)


members.add_to(app)
