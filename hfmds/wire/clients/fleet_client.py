"""The operator's side of FleetService: values in, values out, hfmds.errors raised."""

from __future__ import annotations

from typing import Any

from google.protobuf.message import Message

from hfmds.service.client.channel import call, open_channel
from hfmds.service.client.peer import Peer
from hfmds.v1 import fleet_pb2 as pb
from hfmds.v1.fleet_pb2_grpc import FleetServiceStub
from hfmds.wire.conversions.fleet_calls import (
    AdminTerms,
    Forgetting,
    Forgotten,
    Member,
    NewToken,
    TokenRecord,
    enrolment_terms_message,
    forgetting_message,
    member_from,
    token_from,
)

_CALL_SECONDS = 30.0


class FleetClient:
    """An operator at the fleet's books."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self._channel = open_channel(peer)
        self._stub = FleetServiceStub(self._channel)

    async def close(self) -> None:
        await self._channel.close()

    async def create_token(self, token: NewToken) -> TokenRecord:
        """Let in who has this token."""
        given: dict[str, Any] = {
            "token_id": token.token_id,
            "secret_sha256": token.secret_sha256,
            "name": token.name,
            "lifetime_seconds": token.lifetime_seconds,
        }
        if isinstance(token.terms, AdminTerms):
            terms = pb.AdminTerms(role=token.terms.role.value)
            admin = pb.CreateAdminTokenRequest(terms=terms, **given)
            return token_from((await self._call(self._stub.CreateAdminToken, admin)).token)
        devices = pb.CreateEnrolmentTokenRequest(
            terms=enrolment_terms_message(token.terms), **given
        )
        return token_from((await self._call(self._stub.CreateEnrolmentToken, devices)).token)

    async def list_tokens(self) -> tuple[TokenRecord, ...]:
        """Those that are not over, by id."""
        tokens: list[TokenRecord] = []
        request = pb.ListTokensRequest()
        while True:
            response = await self._call(self._stub.ListTokens, request)
            tokens += map(token_from, response.tokens)
            if not response.next_page_token:
                return tuple(tokens)
            request.page_token = response.next_page_token

    async def revoke_token(self, token_id: str) -> None:
        """End a token."""
        await self._call(self._stub.RevokeToken, pb.RevokeTokenRequest(token_id=token_id))

    async def revoke_device(self, device_id: str, reason: str = "") -> bool:
        """Shut a device out; whether one of that id was known."""
        request = pb.RevokeDeviceRequest(device_id=device_id, reason=reason)
        return bool((await self._call(self._stub.RevokeDevice, request)).known)

    async def revoke_certificate(self, serial: str, reason: str = "") -> None:
        """Shut out whoever shows one certificate."""
        request = pb.RevokeCertificateRequest(serial=serial, reason=reason)
        await self._call(self._stub.RevokeCertificate, request)

    async def quarantine(self, device_id: str, reason: str = "") -> bool:
        """Keep a device from working; whether one of that id was known."""
        request = pb.QuarantineDeviceRequest(device_id=device_id, reason=reason)
        return bool((await self._call(self._stub.QuarantineDevice, request)).known)

    async def release(self, device_id: str) -> None:
        """End a quarantine."""
        await self._call(self._stub.ReleaseDevice, pb.ReleaseDeviceRequest(device_id=device_id))

    async def forget_revoked(self, terms: Forgetting) -> Forgotten:
        """Make room for other revocations."""
        response = await self._call(self._stub.ForgetRevoked, forgetting_message(terms))
        return Forgotten(response.devices, response.certificates)

    async def list_members(self) -> tuple[Member, ...]:
        """The devices in the fleet's books, by id."""
        members: list[Member] = []
        request = pb.ListMembersRequest()
        while True:
            response = await self._call(self._stub.ListMembers, request)
            members += map(member_from, response.members)
            if not response.next_page_token:
                return tuple(members)
            request.page_token = response.next_page_token

    async def _call(self, method: Any, request: Message) -> Any:
        return await call(self._peer, method, request, timeout_seconds=_CALL_SECONDS)
