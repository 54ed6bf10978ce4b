"""Each method says which kinds of callers may call it, and the contract says the same."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from coordinator.api.admin_service import ADMIN_ACCESS
from coordinator.api.device_service import DEVICE_ACCESS
from coordinator.api.fleet_service import ENROLMENT_ACCESS, FLEET_ACCESS, RENEWAL_ACCESS
from hfmds.domain.administration.fleet import Role
from hfmds.service.security import access
from hfmds.service.security.access import DEVICE, SERVICE, Access
from hfmds.service.security.identity import Kind
from hfmds.v1 import admin_pb2, coordinator_pb2, enrolment_pb2, fleet_pb2, synthesis_store_pb2
from synthesis_store.api.store_service import ACCESS as STORE_ACCESS

CONTRACT = Path(__file__).resolve().parents[2] / "protos/hfmds/v1/synthesis_store.proto"
KINDS = {"device": DEVICE, "coordinator": SERVICE}
KINDS |= {role.value: getattr(access, role.name) for role in Role}


def said_callers(method: str) -> list[str]:
    """The kinds of callers that the comment of a method names."""
    comment = re.search(rf"((?: *//.*\n)+) *rpc {method}\(", CONTRACT.read_text())
    assert comment
    text = " ".join(line.strip(" /") for line in comment[1].splitlines())
    said = re.search(r"Caller: ([^.]*)", text)
    assert said, f"{method} does not say who calls it"
    return [word for word in re.findall(r"\w+", said[1]) if word in KINDS]


@pytest.mark.parametrize("method", STORE_ACCESS)
def test_those_may_call_who_are_said_to(method: str) -> None:
    callers = (KINDS[word] for word in said_callers(method))
    assert frozenset().union(*callers) == STORE_ACCESS[method]


@pytest.mark.parametrize(
    ("table", "module", "service"),
    [
        (DEVICE_ACCESS, coordinator_pb2, "CoordinatorService"),
        (ADMIN_ACCESS, admin_pb2, "AdminService"),
        (ENROLMENT_ACCESS, enrolment_pb2, "EnrolmentService"),
        (RENEWAL_ACCESS, enrolment_pb2, "RenewalService"),
        (FLEET_ACCESS, fleet_pb2, "FleetService"),
        (STORE_ACCESS, synthesis_store_pb2, "SynthesisStoreService"),
    ],
)
def test_every_method_says_for_whom_it_is(table: Access, module: Any, service: str) -> None:
    methods = module.DESCRIPTOR.services_by_name[service].methods
    assert table.keys() == {method.name for method in methods}


def test_devices_cannot_list_what_they_were_not_told_of() -> None:
    by_name = {"PutBatch", "QueryBatch", "GetShare", "DownloadShard"}
    assert {method for method, who in STORE_ACCESS.items() if Kind.DEVICE in who} == by_name
    assert not any(Kind.DEVICE in who for who in (*ADMIN_ACCESS.values(), *FLEET_ACCESS.values()))


def test_a_service_steers_the_store_alone() -> None:
    others = (DEVICE_ACCESS, ADMIN_ACCESS, FLEET_ACCESS, RENEWAL_ACCESS)
    assert not any(Kind.SERVICE in who for table in others for who in table.values())
