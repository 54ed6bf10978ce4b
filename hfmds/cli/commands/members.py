"""`hfmds pki ...`: the commands that let devices and people into the fleet, and revoke them."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from typing import Annotated

import typer

from hfmds.cli.connections import DEFAULT_COORDINATOR, CoordinatorOption, ask_fleet
from hfmds.cli.json_values import to_json
from hfmds.cli.tables.members import members_table, tokens_table
from hfmds.cli.terminal import output
from hfmds.domain.administration.fleet import AdminTerms, EnrolmentTerms, NewToken, Role
from hfmds.errors import InvalidInput
from hfmds.pki.token_text import TokenKind, id_of_token, new_token

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]
DeviceId = Annotated[str, typer.Argument(metavar="DEVICE", help="Id of the device.")]
Reason = Annotated[
    str, typer.Option(help="Reason, for the log. A device in quarantine receives it, too.")
]

_HOUR = 3600.0


def enrol_token(
    device: Annotated[
        str,
        typer.Option(
            help="Only this device id may use the token, also if the device existed before."
        ),
    ] = "",
    prefix: Annotated[str, typer.Option(help="Beginning that the ids of devices must have.")] = "",
    uses: Annotated[int, typer.Option(min=1, help="Number of devices that may use the token.")] = 1,
    name: Annotated[str, typer.Option(help="Name of the token.")] = "devices",
    hours: Annotated[float, typer.Option(min=0.01, help="Lifetime of the token.")] = 24.0,
    as_json: AsJson = False,
    coordinator: CoordinatorOption = DEFAULT_COORDINATOR,
) -> None:
    """Create a token with which devices enrol. The command shows it once."""
    terms = EnrolmentTerms(uses, device, prefix)
    _make(TokenKind.ENROL, terms, device or name, hours, coordinator, as_json=as_json)


def admin_token(
    role: Annotated[Role, typer.Argument(help="Role of the person.")],
    name: Annotated[str, typer.Argument(help="Name of the person, for logs.")],
    days: Annotated[float, typer.Option(min=0.01, max=365, help="Lifetime of the token.")] = 30.0,
    as_json: AsJson = False,
    coordinator: CoordinatorOption = DEFAULT_COORDINATOR,
) -> None:
    """Create a token for a person. The command shows it once."""
    _make(TokenKind.ADMIN, AdminTerms(role), name, 24 * days, coordinator, as_json=as_json)


def tokens(as_json: AsJson = False, coordinator: CoordinatorOption = DEFAULT_COORDINATOR) -> None:
    """Show the tokens that are still valid."""
    valid = ask_fleet(coordinator, lambda client: client.list_tokens())
    if as_json:
        typer.echo(to_json(valid))
    elif valid:
        output().print(tokens_table(valid, datetime.now(UTC)))
    else:
        output().print("no tokens; make one with: hfmds pki enrol-token")


def revoke(
    device: Annotated[
        str,
        typer.Argument(metavar="[DEVICE]", help="Id of a device, to revoke all its certificates."),
    ] = "",
    certificate: Annotated[
        str,
        typer.Option(metavar="SERIAL", help="Serial number of one certificate to revoke instead."),
    ] = "",
    token: Annotated[
        str,
        typer.Option(
            metavar="TOKEN-ID", help="Token to revoke instead, by its id or its full text."
        ),
    ] = "",
    reason: Reason = "",
    coordinator: CoordinatorOption = DEFAULT_COORDINATOR,
) -> None:
    """Revoke a device, a certificate or a token within seconds."""
    if sum(map(bool, (device, certificate, token))) != 1:
        raise InvalidInput(
            "name exactly one thing to revoke: a DEVICE, a --certificate or a --token"
        )
    serial = certificate.lower().replace(":", "").lstrip("0")

    if device:
        known = ask_fleet(coordinator, lambda client: client.revoke_device(device, reason))
        again = f"hfmds pki enrol-token --device {device}"
        _print(f"device {device} is revoked; to let it in again: {again}")
        _warn_if_unknown(device, known=known)
    elif certificate:
        ask_fleet(coordinator, lambda client: client.revoke_certificate(serial, reason))
        _print(f"certificate {serial} is revoked")
    else:
        token_id = id_of_token(token)
        ask_fleet(coordinator, lambda client: client.revoke_token(token_id))
        _print(f"token {token_id} is revoked; devices that enrolled with it stay in the fleet")


def quarantine(
    device: DeviceId, reason: Reason = "", coordinator: CoordinatorOption = DEFAULT_COORDINATOR
) -> None:
    """Stop giving work to a device, without revoking it."""
    known = ask_fleet(coordinator, lambda client: client.quarantine(device, reason))
    _print(f"device {device} is in quarantine; end it with: hfmds pki release {device}")
    _warn_if_unknown(device, known=known)


def release(device: DeviceId, coordinator: CoordinatorOption = DEFAULT_COORDINATOR) -> None:
    """End the quarantine of a device."""
    ask_fleet(coordinator, lambda client: client.release(device))
    _print(f"device {device} is no longer in quarantine")


def devices(as_json: AsJson = False, coordinator: CoordinatorOption = DEFAULT_COORDINATOR) -> None:
    """Show the devices that have enrolled, are revoked or are in quarantine."""
    members = ask_fleet(coordinator, lambda client: client.list_members())
    if as_json:
        typer.echo(to_json(members))
    elif members:
        output().print(members_table(members, datetime.now(UTC)))
    else:
        output().print("no device has enrolled; make a token with: hfmds pki enrol-token")


def add_to(app: typer.Typer) -> None:
    """Add these commands to a group."""
    for command in (enrol_token, admin_token, tokens, revoke, quarantine, release, devices):
        app.command()(command)


def _make(
    kind: TokenKind,
    terms: EnrolmentTerms | AdminTerms,
    name: str,
    hours: float,
    coordinator: str,
    *,
    as_json: bool,
) -> None:
    token = new_token(kind)
    new = NewToken(token.token_id, token.secret_sha256, name, hours * _HOUR, terms)
    record = ask_fleet(coordinator, lambda client: client.create_token(new))
    if as_json:
        typer.echo(to_json({"token": token.text, "record": record}))
        return
    typer.echo(token.text)
    if sys.stdout.isatty():  # a script in a pipe wants only the token
        _print(f"valid until {record.expires_at:%Y-%m-%d %H:%M} UTC; the token is not shown again")


def _warn_if_unknown(device: str, *, known: bool) -> None:
    if not known:
        _print(f"but no device {device} has ever enrolled or checked in: check the id")


def _print(text: str) -> None:
    output().print(text, markup=False, highlight=False, soft_wrap=True)
