"""Every method of the coordinator and the store, called with hostile requests.

The tests use the real services on real storage, without sockets.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import AsyncExitStack, aclosing, suppress
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from hypothesis import given
from hypothesis import strategies as st

from coordinator.api.fleet_service import EnrolmentServicer, FleetServicer, RenewalServicer
from coordinator.identity.revocation_sync import RevocationSync
from hfmds.domain.digest import digest_of
from hfmds.errors import HfmdsError
from hfmds.pki.device_key import DeviceKey
from hfmds.service.security.exclusions import Exclusions
from hfmds.service.security.revocation_gate import Gate
from hfmds.v1 import admin_pb2, coordinator_pb2, enrolment_pb2, fleet_pb2, synthesis_store_pb2
from hfmds.wire.conversions.common import digest_message
from hfmds.wire.conversions.device_calls import profile_message
from hfmds.wire.conversions.store_calls import pool_spec_message
from hfmds.wire.tensors import encode_batch
from tests.coordinator.identity.registry_office import Office, new_issuer
from tests.coordinator.workbench import PROFILE, make_spec, workbench
from tests.fuzz.budget import tried
from tests.fuzz.protobuf import anything, changed
from tests.support.databases import use_database
from tests.synthesis_store.examples import SPEC, Store, make_batch, new_servicer

SERVICES = {
    "EnrolmentService": enrolment_pb2,
    "RenewalService": enrolment_pb2,
    "FleetService": fleet_pb2,
    "CoordinatorService": coordinator_pb2,
    "AdminService": admin_pb2,
    "SynthesisStoreService": synthesis_store_pb2,
}
METHODS = {
    method.name: method
    for name, module in SERVICES.items()
    for method in module.DESCRIPTOR.services_by_name[name].methods
    if method.name != "CreateRun"  # operators call it; tests/fuzz/test_messages.py covers it
}
BATCH = encode_batch(make_batch(1))
WAITS_SECONDS = 0.01


class Context:
    """The parts of a call that handlers use."""

    def peer(self) -> str:
        return "ipv4:127.0.0.1:1"

    def auth_context(self) -> dict[str, list[bytes]]:
        return {}

    def invocation_metadata(self) -> tuple[()]:
        return ()


class NoStore:
    """A store client for servers that send no exclusions."""

    async def set_exclusions(self, version: str, exclusions: Exclusions | None = None) -> str:
        return version


class NoDevices:
    """Sends no device away."""

    async def leave(self, device_id: str) -> None:
        pass


class Servers:
    """A coordinator with an open task, and a store with a pool and a snapshot."""

    def __init__(self, folders: Callable[[str], Path]) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._open = AsyncExitStack()
        self.methods: dict[str, Callable[..., Any]] = {}
        self.known: dict[str, Any] = {}  # values of honest requests by field name
        self.run(self._start(folders))

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    async def _start(self, folders: Callable[[str], Path]) -> None:
        bench = await self._open.enter_async_context(workbench(folders("coordinator")))
        await bench.create(make_spec(lease_seconds=600))
        task = await bench.check_in("device")
        office = await asyncio.to_thread(Office, folders("office"), issuer=new_issuer())
        books = office.fleet, office.members, office.tokens
        revocations = RevocationSync(*books, Gate(), NoStore())
        store = await asyncio.to_thread(self._store, folders("store"))
        for servicer in (
            bench.servicer(),
            bench.app.admin,
            EnrolmentServicer(office.enrolment),
            RenewalServicer(office.enrolment),
            FleetServicer(office.tokens, office.members, office.issuer, revocations, NoDevices()),
            new_servicer(store),
        ):
            self.methods |= {n: getattr(servicer, n) for n in METHODS if hasattr(servicer, n)}
        self.known |= {
            "device_id": "device",
            "task_id": task.task_id,
            "run_id": "run",
            "digest": digest_message(task.weights),
            "update": digest_message(task.weights),
            "profile": profile_message(PROFILE),
            "samples": 5,
            "pool_id": "open-pool",
            "spec": pool_spec_message(SPEC),
            "snapshot_id": store.app.snapshots.list(None)[0].snapshot_id,
            "batch": digest_message(digest_of(BATCH)),
            "weights": digest_message(SPEC.weights),
            "token": office.token(uses=1000).text,
            "nonce": office.enrolment.begin(),
            "csr": DeviceKey.create().request(),
            "name": "north",
            "lifetime_seconds": 100.0,
        }

    def _store(self, folder: Path) -> Store:
        store = Store(folder)
        for pool_id in ("pool-1", "open-pool"):
            store.pools.open(pool_id, SPEC)
        store.seal(device=store.put("device", BATCH))
        return store

    def close(self) -> None:
        self.run(self._open.aclose())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def honest(self, kind: type[Message]) -> Message:
        """Make a request that names existing objects."""
        names = {field.name for field in kind.DESCRIPTOR.fields}
        if "header" in names:
            header = GetMessageClass(kind.DESCRIPTOR.fields_by_name["header"].message_type)
            return kind(header=self.honest(header))
        return kind(**{name: value for name, value in self.known.items() if name in names})

    async def ask(self, name: str, requests: list[Any]) -> None:
        method, streams = METHODS[name], METHODS[name].server_streaming
        argument = _stream(requests) if method.client_streaming else requests[0]
        answer = self.methods[name](argument, Context())
        if not streams:
            await answer
            return
        async with aclosing(answer) as responses, asyncio.timeout(30):
            async for _ in responses:
                if name.startswith("Watch"):
                    return


async def _stream(requests: list[Any]) -> AsyncIterator[Any]:
    for request in requests:
        yield request


@pytest.fixture(
    scope="module",
    params=["sqlite", pytest.param("postgresql", marks=pytest.mark.integration)],
)
def servers(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Servers]:
    def folder(name: str) -> Path:
        place = tmp_path_factory.mktemp(name)
        if request.param == "postgresql":
            use_database(place, request.getfixturevalue("postgres_server").new_database())
        return place

    servers = Servers(folder)
    yield servers
    servers.close()


@pytest.mark.parametrize("name", ["RenewLease", "QueryUpload", "GetRun", "GetPool", "GetShare"])
def test_honest_requests_succeed(servers: Servers, name: str) -> None:
    """Prove that the fuzzed requests start from valid ones."""
    servers.run(servers.ask(name, [servers.honest(GetMessageClass(METHODS[name].input_type))]))


@pytest.mark.parametrize("name", METHODS)
@tried(12)
@given(data=st.data())
@pytest.mark.matrix(one_in=3)
def test_a_call_is_answered_or_refused(servers: Servers, name: str, data: st.DataObject) -> None:
    kind = GetMessageClass(METHODS[name].input_type)
    message = (
        changed(servers.honest(kind)) | anything(kind)
        if kind.DESCRIPTOR.fields
        else st.just(kind())
    )
    requests = data.draw(st.lists(message, min_size=1, max_size=3))
    for request in requests:
        if getattr(request, "wait_seconds", 0) > WAITS_SECONDS:
            request.wait_seconds = WAITS_SECONDS
    with suppress(HfmdsError):
        servers.run(servers.ask(name, requests))
