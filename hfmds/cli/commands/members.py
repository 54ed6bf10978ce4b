"""`hfmds pki ...`: who is let into the fleet, and who is shut out, at the coordinator."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from typing import Annotated

import typer

from hfmds.cli.connections import DEFAULT_COORDINATOR, CoordinatorOption, ask_fleet
from hfmds.cli.json_values import to_json
from hfmds.cli.tables.members import members_table, tokens_table
from hfmds.cli.terminal import output
from hfmds.cli.text import counted
from hfmds.domain.fleet import AdminTerms, EnrolmentTerms, Forgetting, NewToken, Role
from hfmds.errors import InvalidInput
from hfmds.pki.token_text import TokenKind, id_of_token, new_token

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]
DeviceId = Annotated[str, typer.Argument(metavar="DEVICE", help="Id of the device.")]
Reason = Annotated[str, typer.Option(help="Why, for the log; a device in quarantine is told.")]

_HOUR = 3600.0
_DAY = 24 * _HOUR


def enrol_token(
    device: Annotated[
        str, typer.Option(help="The one device id it is for, also if there was such a device.")
    ] = "",
    prefix: Annotated[str, typer.Option(help="What the ids of devices must begin with.")] = "",
    uses: Annotated[int, typer.Option(min=1, help="How many devices may use it.")] = 1,
    name: Annotated[str, typer.Option(help="What to call it.")] = "devices",
    hours: Annotated[float, typer.Option(min=0.01, help="How long it is good for.")] = 24.0,
    as_json: AsJson = False,
    coordinator: CoordinatorOption = DEFAULT_COORDINATOR,
) -> None:
    """Make a token that lets devices into the fleet; it is shown now, and never again."""
    terms = EnrolmentTerms(uses, device, prefix)
    _make(TokenKind.ENROL, terms, device or name, hours, coordinator, as_json=as_json)


def admin_token(
    role: Annotated[Role, typer.Argument(help="What its holder may do.")],
    name: Annotated[str, typer.Argument(help="The holder's name, as logs have it.")],
    days: Annotated[float, typer.Option(min=0.01, max=365, help="How long it is good for.")] = 30.0,
    as_json: AsJson = False,
    coordinator: CoordinatorOption = DEFAULT_COORDINATOR,
) -> None:
    """Make a token for a person; it is shown now, and never again."""
    _make(TokenKind.ADMIN, AdminTerms(role), name, 24 * days, coordinator, as_json=as_json)


def tokens(as_json: AsJson = False, coordinator: CoordinatorOption = DEFAULT_COORDINATOR) -> None:
    """List the tokens that are not over."""
    found = ask_fleet(coordinator, lambda client: client.list_tokens())
    if as_json:
        typer.echo(to_json(found))
    elif found:
        output().print(tokens_table(found, datetime.now(UTC)))
    else:
        output().print("no tokens; make one with: hfmds pki enrol-token")


def revoke(
    device: Annotated[
        str, typer.Argument(metavar="[DEVICE]", help="Id of a device; all its certificates end.")
    ] = "",
    certificate: Annotated[
        str, typer.Option(metavar="SERIAL", help="One certificate instead, of anybody.")
    ] = "",
    token: Annotated[
        str, typer.Option(metavar="TOKEN-ID", help="A token instead; of a whole one, its id.")
    ] = "",
    reason: Reason = "",
    coordinator: CoordinatorOption = DEFAULT_COORDINATOR,
) -> None:
    """Shut out a device, or whoever shows a certificate or a token, within seconds."""
    if sum(map(bool, (device, certificate, token))) != 1:
        raise InvalidInput("say whom to shut out: a DEVICE, a --certificate or a --token")
    serial = certificate.lower().replace(":", "").lstrip("0")

    if device:
        known = ask_fleet(coordinator, lambda client: client.revoke_device(device, reason))
        again = f"hfmds pki enrol-token --device {device}"
        _say(f"device {device} is shut out; to let it in again: {again}")
        _doubt(device, known=known)
    elif certificate:
        ask_fleet(coordinator, lambda client: client.revoke_certificate(serial, reason))
        _say(f"certificate {serial} is dead")
    else:
        token_id = id_of_token(token)
        ask_fleet(coordinator, lambda client: client.revoke_token(token_id))
        _say(f"token {token_id} is over; who was let in by it stays in")


def quarantine(
    device: DeviceId, reason: Reason = "", coordinator: CoordinatorOption = DEFAULT_COORDINATOR
) -> None:
    """Keep a device from working, without shutting it out."""
    known = ask_fleet(coordinator, lambda client: client.quarantine(device, reason))
    _say(f"device {device} is in quarantine; end it with: hfmds pki release {device}")
    _doubt(device, known=known)


def release(device: DeviceId, coordinator: CoordinatorOption = DEFAULT_COORDINATOR) -> None:
    """End a quarantine."""
    ask_fleet(coordinator, lambda client: client.release(device))
    _say(f"device {device} is in no quarantine")


def forget(
    devices: Annotated[
        float | None,
        typer.Option(metavar="DAYS", min=0.01, help="Devices that were revoked so long ago."),
    ] = None,
    certificates: Annotated[
        float | None,
        typer.Option(metavar="DAYS", min=0.01, help="Certificates that were, by their numbers."),
    ] = None,
    coordinator: CoordinatorOption = DEFAULT_COORDINATOR,
) -> None:
    """Forget old revocations: longer ago than any certificate of then is good for."""
    if devices is None and certificates is None:
        raise InvalidInput("say what to forget: --devices DAYS or --certificates DAYS")
    terms = Forgetting(devices and devices * _DAY, certificates and certificates * _DAY)
    done = ask_fleet(coordinator, lambda client: client.forget_revoked(terms))
    certificates_gone = counted(done.certificates, "certificate")
    _say(f"forgotten: {counted(done.devices, 'device')} and {certificates_gone}")


def devices(as_json: AsJson = False, coordinator: CoordinatorOption = DEFAULT_COORDINATOR) -> None:
    """List the devices that have enrolled, were revoked or are in quarantine."""
    found = ask_fleet(coordinator, lambda client: client.list_members())
    if as_json:
        typer.echo(to_json(found))
    elif found:
        output().print(members_table(found, datetime.now(UTC)))
    else:
        output().print("no device has enrolled; make a token with: hfmds pki enrol-token")


def add_to(app: typer.Typer) -> None:
    """Make these commands of a group."""
    for command in (enrol_token, admin_token, tokens, revoke, quarantine, release, forget, devices):
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
    made = ask_fleet(coordinator, lambda client: client.create_token(new))
    if as_json:
        typer.echo(to_json({"token": token.text, "record": made}))
        return
    typer.echo(token.text)
    if sys.stdout.isatty():  # in a pipe, the token is all that is wanted
        _say(f"good until {made.expires_at:%Y-%m-%d %H:%M} UTC; it is not shown again")


def _doubt(device: str, *, known: bool) -> None:
    if not known:
        _say(f"but no device {device} has ever enrolled or checked in: is that its id?")


def _say(text: str) -> None:
    output().print(text, markup=False, highlight=False, soft_wrap=True)
