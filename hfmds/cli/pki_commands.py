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

from hfmds.cli import member_commands
from hfmds.cli.console import output
from hfmds.pki.folder import create_authority, issue_pair, open_authority
from hfmds.service.identity import Identity, Kind, identity_from

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
        "Without: this machine only.",
    ),
]


class PartyKind(enum.StrEnum):
    """For whom a certificate is."""

    DEVICE = "device"
    SERVICE = "service"
    VIEWER = "viewer"
    OPERATOR = "operator"
    OWNER = "owner"


@app.command()
def init(
    folder: Folder = Path("hfmds-pki"),
    fleet: Annotated[str, typer.Option(help="What the fleet is called.")] = "this fleet",
    host: Hosts = None,
    days: Days = 365,
) -> None:
    """Make an authority, a device issuer, certificates of both services and of an owner `admin`."""
    now = datetime.now(UTC)
    authority = create_authority(folder, fleet, now, timedelta(days=_AUTHORITY_DAYS))
    lifetime = timedelta(days=days)
    for service in _SERVICES:
        identity = Identity(Kind.SERVICE, service)
        hosts = host or ["localhost", "127.0.0.1", service]
        _say(issue_pair(folder, authority, identity, now, lifetime, hosts))
    _say(issue_pair(folder, authority, Identity(Kind.OWNER, "admin"), now, lifetime))
    output().print(
        f"\nGive each program HFMDS_TLS_CERTIFICATE, HFMDS_TLS_KEY (the .key beside it) and "
        f"HFMDS_TLS_AUTHORITY={folder / 'authority.crt'}.\n"
        f"To let devices enrol by themselves, give the coordinator "
        f"HFMDS_ISSUER_CERTIFICATE={folder / 'device-issuer.crt'}, "
        f"HFMDS_ISSUER_KEY={folder / 'device-issuer.key'} and HFMDS_TOKEN_LISTEN.\n"
        f"{folder / 'authority.key'} can make certificates of anybody: keep it where no program "
        f"runs.",
        highlight=False,
    )


@app.command()
def issue(
    kind: Annotated[PartyKind, typer.Argument(help="For whom it is.")],
    name: Annotated[str, typer.Argument(help="Its name; of a device, its id.")],
    folder: Folder = Path("hfmds-pki"),
    host: Hosts = None,
    days: Days = 90,
) -> None:
    """Make a key and a certificate for a device, a service or a person."""
    of_people = kind not in (PartyKind.DEVICE, PartyKind.SERVICE)
    identity = identity_from(f"spiffe://hfmds/{'admin/' if of_people else ''}{kind.value}/{name}")
    now, lifetime = datetime.now(UTC), timedelta(days=days)
    _say(issue_pair(folder, open_authority(folder), identity, now, lifetime, host or ()))


def _say(certificate: Path) -> None:
    output().print(str(certificate), highlight=False, soft_wrap=True)


member_commands.add_to(app)
