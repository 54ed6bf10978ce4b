"""Identities of the fleet's parties.

A certificate names one identity, as a SPIFFE URI in its subject alternative names:

    spiffe://hfmds/device/ID            a device: may act for itself only
    spiffe://hfmds/service/NAME         a program of ours: coordinator, synthesis-store
    spiffe://hfmds/admin/ROLE/NAME      a person with a role
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable
from dataclasses import dataclass

from hfmds.domain.administration.fleet import Role
from hfmds.errors import InvalidInput

DEVICES_UNIT = "devices"
"""The organisational unit of an authority that may sign only for devices."""

SERVICES_UNIT = "services"
"""The organisational unit of an authority that may sign only for services."""


class Kind(enum.Enum):
    """The kind of a party: a device, a service, or a person by role. See `access.py`."""

    DEVICE = "device"
    SERVICE = "service"
    VIEWER = f"admin/{Role.VIEWER}"
    OPERATOR = f"admin/{Role.OPERATOR}"
    OWNER = f"admin/{Role.OWNER}"

    @property
    def word(self) -> str:
        """The word for it in commands: "device", "viewer"."""
        return self.value.removeprefix("admin/")


_KINDS = "|".join(kind.value for kind in Kind)
_URI = re.compile(rf"spiffe://hfmds/({_KINDS})/([A-Za-z0-9][A-Za-z0-9._-]{{0,127}})")
_KIND_OF_UNIT = {DEVICES_UNIT: Kind.DEVICE, SERVICES_UNIT: Kind.SERVICE}


def may_sign(units: Iterable[str], kind: Kind) -> bool:
    """Return whether an authority with these organisational units may sign for this kind.

    Case and white space make no difference: "DEVICES" is the same unit.
    """
    spelt = (" ".join(unit.split()).lower() for unit in units)
    return all(_KIND_OF_UNIT.get(unit, kind) is kind for unit in spelt)


@dataclass(frozen=True, slots=True)
class Identity:
    """One party: `Identity(Kind.DEVICE, "camera-7")`."""

    kind: Kind
    name: str

    @property
    def uri(self) -> str:
        """The text in certificates."""
        return f"spiffe://hfmds/{self.kind.value}/{self.name}"

    def __str__(self) -> str:
        return f"{self.kind.value} {self.name}"


def identity_from(uri: str) -> Identity:
    """Return the identity that a URI names; InvalidInput if it names none of this project."""
    match = _URI.fullmatch(uri)
    if match is None:
        raise InvalidInput(f"{uri[:200]!r} names no device, service or admin of a fleet")
    return Identity(Kind(match[1]), match[2])
