"""The operator's client of FleetService: takes and returns values, raises hfmds.errors."""

from __future__ import annotations

from typing import Any

from hfmds.domain.administration.fleet import (
    AdminTerms,
    Member,
    NewToken,
    TokenRecord,
)
from hfmds.service.client.peer import Peer
from hfmds.v1 import fleet_pb2 as pb
from hfmds.v1.fleet_pb2_grpc import FleetServiceStub
from hfmds.wire.clients.service_client import ServiceClient
from hfmds.wire.conversions.fleet_calls import (
    enrolment_terms_message,
    member_from,
    token_from,
)


class FleetClient(ServiceClient):
    """An operator's calls about tokens, members and revocations."""

    def __init__(self, peer: Peer) -> None:
        super().__init__(peer, FleetServiceStub)

    async def create_token(self, token: NewToken) -> TokenRecord:
        """Create a token that admits its holder."""
        fields: dict[str, Any] = {
            "token_id": token.token_id,
            "secret_sha256": token.secret_sha256,
            "name": token.name,
            "lifetime_seconds": token.lifetime_seconds,
        }
        if isinstance(token.terms, AdminTerms):
            terms = pb.AdminTerms(role=token.terms.role.value)
            admin = pb.CreateAdminTokenRequest(terms=terms, **fields)
            return token_from((await self._call(self._stub.CreateAdminToken, admin)).token)
        devices = pb.CreateEnrolmentTokenRequest(
            terms=enrolment_terms_message(token.terms), **fields
        )
        return token_from((await self._call(self._stub.CreateEnrolmentToken, devices)).token)

    async def list_tokens(self) -> tuple[TokenRecord, ...]:
        """Return the tokens that are still valid, by id."""
        tokens: list[TokenRecord] = []
        request = pb.ListTokensRequest()
        while True:
            response = await self._call(self._stub.ListTokens, request)
            tokens += map(token_from, response.tokens)
            if not response.next_page_token:
                return tuple(tokens)
            request.page_token = response.next_page_token

    async def revoke_token(self, token_id: str) -> None:
        """Revoke a token."""
        await self._call(self._stub.RevokeToken, pb.RevokeTokenRequest(token_id=token_id))

    async def revoke_device(self, device_id: str, reason: str = "") -> bool:
        """Revoke a device; return whether the coordinator knew it."""
        request = pb.RevokeDeviceRequest(device_id=device_id, reason=reason)
        return bool((await self._call(self._stub.RevokeDevice, request)).known)

    async def revoke_certificate(self, serial: str, reason: str = "") -> None:
        """Revoke one certificate."""
        request = pb.RevokeCertificateRequest(serial=serial, reason=reason)
        await self._call(self._stub.RevokeCertificate, request)

    async def quarantine(self, device_id: str, reason: str = "") -> bool:
        """Put a device into quarantine; return whether the coordinator knew it."""
        request = pb.QuarantineDeviceRequest(device_id=device_id, reason=reason)
        return bool((await self._call(self._stub.QuarantineDevice, request)).known)

    async def release(self, device_id: str) -> None:
        """End a device's quarantine."""
        await self._call(self._stub.ReleaseDevice, pb.ReleaseDeviceRequest(device_id=device_id))

    async def list_members(self) -> tuple[Member, ...]:
        """Return the enrolled devices, by id."""
        members: list[Member] = []
        request = pb.ListMembersRequest()
        while True:
            response = await self._call(self._stub.ListMembers, request)
            members += map(member_from, response.members)
            if not response.next_page_token:
                return tuple(members)
            request.page_token = response.next_page_token
