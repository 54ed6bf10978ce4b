"""The store applies the coordinator's exclusion list, also after a restart and at replicas."""

from __future__ import annotations

from pathlib import Path

import pytest

from hfmds.errors import InvalidInput, NotAllowed
from hfmds.service.security.certificates import Certificate
from hfmds.service.security.exclusions import Exclusions
from hfmds.service.security.identity import Identity, Kind
from hfmds.service.security.revocation_gate import Gate
from hfmds.storage.database import open_database
from hfmds.v1 import synthesis_store_pb2 as pb
from hfmds.wire.conversions.fleet_calls import exclusions_from
from synthesis_store.contributors.exclusion_list import ExclusionList
from synthesis_store.tables import StoreBase
from tests.support.databases import database_of
from tests.synthesis_store.api.test_store_service import over_grpc
from tests.synthesis_store.examples import Store

LIST = Exclusions({"camera": 1_800_000_000}, frozenset({"ab12"}), {"phone": "noisy"})
CAMERA = Certificate(Identity(Kind.DEVICE, "camera"), "1", 1_799_999_000, 2_000_000_000)


def records(folder: Path) -> tuple[ExclusionList, Gate]:
    """Those of a process of its own."""
    engine, gate = open_database(database_of(folder)), Gate()
    StoreBase.metadata.create_all(engine)
    return ExclusionList(engine, gate), gate


def test_a_list_holds_at_once_after_a_restart_and_at_a_replica(tmp_path: Path) -> None:
    (store, gate), (replica, others) = records(tmp_path), records(tmp_path)
    assert store.version() == ""
    store.replace(LIST.version, LIST)
    with pytest.raises(NotAllowed):
        gate.exclusions.require_alive(CAMERA)
    assert others.exclusions == Exclusions()
    replica.refresh()
    restarted, again = records(tmp_path)
    assert others.exclusions == again.exclusions == LIST
    assert restarted.version() == LIST.version


def test_a_later_list_takes_the_place_of_the_one_before(tmp_path: Path) -> None:
    store, gate = records(tmp_path)
    store.replace(LIST.version, LIST)
    store.replace(Exclusions().version, Exclusions())
    assert gate.exclusions == Exclusions()
    assert records(tmp_path)[1].exclusions == Exclusions()


async def test_the_coordinator_asks_and_tells(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")

    async with over_grpc(store, tmp_path) as caller:
        assert await caller.client.set_exclusions(LIST.version) == ""
        assert await caller.client.set_exclusions(LIST.version, LIST) == LIST.version
        assert await caller.client.set_exclusions("0" * 64) == LIST.version
        with pytest.raises(InvalidInput, match="64 lower-case hex digits"):
            await caller.client.set_exclusions("newest", LIST)


@pytest.mark.parametrize(
    "message",
    [
        pb.Exclusions(dead_until={"../camera": 1}),
        pb.Exclusions(quarantined={"": "noisy"}),
        pb.Exclusions(quarantined={"phone": "a\nb"}),
        pb.Exclusions(serials=["00ab"]),
        pb.Exclusions(serials=["f" * 41]),
    ],
)
def test_a_list_that_is_none_is_refused(message: pb.Exclusions) -> None:
    with pytest.raises(InvalidInput):
        exclusions_from(message)
