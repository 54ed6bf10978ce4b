"""Every change that an operator can make to the fleet, also while servers are killed."""

from __future__ import annotations

import grpc

from hfmds.domain.administration.fleet import AdminTerms, NewToken, Role
from hfmds.pki.token_text import Token, TokenKind
from hfmds.service.client.channel import open_channel
from hfmds.v1 import common_pb2, synthesis_store_pb2
from hfmds.v1.synthesis_store_pb2_grpc import SynthesisStoreServiceStub
from hfmds.wire.clients.fleet_client import FleetClient
from tests.support.scripted_devices import peer, retrying
from tests.support.waiting import eventually

_TOKEN = Token(TokenKind.ADMIN, "0123456789ab", "0" * 64)
_SERIAL = "abc"


async def change_the_fleet(coordinator: str, store: str) -> None:
    """Create and revoke a token, revoke, quarantine and release devices, and check the result."""
    fleet, persist = FleetClient(peer("coordinator", coordinator)), retrying("coordinator").call
    terms = AdminTerms(Role.VIEWER)
    try:
        token = NewToken(_TOKEN.token_id, _TOKEN.secret_sha256, "vera", 3600.0, terms)
        await persist(fleet.create_token, token)
        await persist(fleet.revoke_token, _TOKEN.token_id)
        await persist(fleet.revoke_device, "lost", "in a taxi")
        await persist(fleet.revoke_certificate, _SERIAL)
        await persist(fleet.quarantine, "odd")
        await persist(fleet.release, "odd")
        await persist(fleet.quarantine, "strange", "too good")
        members = {member.device_id: member for member in await persist(fleet.list_members)}
        assert members["lost"].revoked
        assert members["lost"].reason == "in a taxi"
        assert not members["odd"].quarantined
        assert members["strange"].quarantined
        assert await persist(fleet.list_tokens) == ()
    finally:
        await fleet.close()
    await _until_kept_out(store, "strange")


async def _until_kept_out(store: str, device_id: str) -> None:
    """Of the store, too, which is execution by the coordinator."""
    batch = common_pb2.Digest(sha256=bytes(32), size_bytes=1)
    request = synthesis_store_pb2.QueryBatchRequest(
        pool_id="none", device_id=device_id, batch=batch
    )
    async with open_channel(peer("store", store)) as channel:
        query = SynthesisStoreServiceStub(channel).QueryBatch

        async def refused() -> bool:
            try:
                await query(request, timeout=5)
            except grpc.aio.AioRpcError as error:
                return error.code() is grpc.StatusCode.ABORTED
            return False

        await eventually(refused)
