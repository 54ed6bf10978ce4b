"""Enrolment, renewal and the fleet's books as gRPC services: convert, call, convert."""

from __future__ import annotations

import asyncio
import time
from typing import Protocol

import grpc

from coordinator.identity.device_issuer import DeviceCertificate, DeviceIssuer
from coordinator.identity.enrolment import DeviceEnrolment
from coordinator.identity.members import Members
from coordinator.identity.nonces import LIFETIME_SECONDS
from coordinator.identity.revocation_sync import RevocationSync
from coordinator.identity.tokens import Tokens
from hfmds.domain.administration.fleet import require_token_id
from hfmds.domain.devices import require_id
from hfmds.errors import Unavailable, WrongState
from hfmds.service.limits.rate import Rate
from hfmds.service.security.access import DEVICE, OPERATOR, OWNER, STRANGERS_TOO, VIEWER
from hfmds.service.security.caller import caller, certificate_shown, may_as
from hfmds.service.security.identity import Kind
from hfmds.service.server.server import GrpcServer
from hfmds.v1 import enrolment_pb2, enrolment_pb2_grpc, fleet_pb2, fleet_pb2_grpc
from hfmds.wire.conversions.fleet_calls import (
    member_message,
    new_token_from,
    reason_from,
    require_serial,
    token_message,
)
from hfmds.wire.pages import ASKED_FOR_A_PAGE, next_page, page

ENROLMENT_ACCESS = {"BeginEnrolment": STRANGERS_TOO, "Enrol": STRANGERS_TOO}
RENEWAL_ACCESS = {"RenewCertificate": DEVICE}
FLEET_ACCESS = {
    "ListTokens": VIEWER,
    "ListMembers": VIEWER,
    "CreateEnrolmentToken": OPERATOR,
    "RevokeToken": OPERATOR,  # of people, only owners
    "RevokeDevice": OPERATOR,
    "QuarantineDevice": OPERATOR,
    "ReleaseDevice": OPERATOR,
    "CreateAdminToken": OWNER,
    "RevokeCertificate": OWNER,
}


class PresentDevices(Protocol):
    """The devices that work for rounds."""

    async def leave(self, device_id: str) -> None:
        """Let the rounds wait for this device no longer."""


class EnrolmentServicer(enrolment_pb2_grpc.EnrolmentServiceServicer):
    """Answers EnrolmentService, which devices without a certificate call."""

    def __init__(self, enrolment: DeviceEnrolment) -> None:
        self._enrolment = enrolment

    def add_to(self, server: GrpcServer) -> None:
        register = enrolment_pb2_grpc.add_EnrolmentServiceServicer_to_server
        server.add(register, self, "hfmds.v1.EnrolmentService", ENROLMENT_ACCESS)

    async def BeginEnrolment(
        self, request: enrolment_pb2.BeginEnrolmentRequest, context: grpc.aio.ServicerContext
    ) -> enrolment_pb2.BeginEnrolmentResponse:
        return enrolment_pb2.BeginEnrolmentResponse(
            nonce=self._enrolment.begin(), lifetime_seconds=LIFETIME_SECONDS
        )

    async def Enrol(
        self, request: enrolment_pb2.EnrolRequest, context: grpc.aio.ServicerContext
    ) -> enrolment_pb2.EnrolResponse:
        issued = await asyncio.to_thread(
            self._enrolment.enrol,
            request.token,
            request.nonce,
            request.device_id,
            request.csr,
            request.signature,
        )
        return enrolment_pb2.EnrolResponse(
            device_id=issued.device_id, certificate=_certificate_message(issued)
        )


class RenewalServicer(enrolment_pb2_grpc.RenewalServiceServicer):
    """Answers RenewalService, which devices with a certificate call."""

    def __init__(self, enrolment: DeviceEnrolment) -> None:
        self._enrolment = enrolment
        # A renewal takes the write lock of the database, so no device may renew in a loop.
        self._rate = Rate(per_second=1.0, burst_seconds=30.0)

    def add_to(self, server: GrpcServer) -> None:
        register = enrolment_pb2_grpc.add_RenewalServiceServicer_to_server
        server.add(register, self, "hfmds.v1.RenewalService", RENEWAL_ACCESS)

    async def RenewCertificate(
        self, request: enrolment_pb2.RenewCertificateRequest, context: grpc.aio.ServicerContext
    ) -> enrolment_pb2.RenewCertificateResponse:
        shown = certificate_shown()
        if shown is None:  # the call came to a port without TLS
            raise WrongState("certificates are renewed over TLS only")
        device_id = require_id(request.device_id, "device_id")
        if not self._rate.takes(device_id, time.monotonic()):
            raise Unavailable(
                f"device {device_id} renews more than once per second; try again in 30 s",
                retry_after_seconds=30.0,
            )
        issued = await asyncio.to_thread(self._enrolment.renew, device_id, shown, request.csr)
        return enrolment_pb2.RenewCertificateResponse(certificate=_certificate_message(issued))


class FleetServicer(fleet_pb2_grpc.FleetServiceServicer):
    """Answers FleetService, which admins call."""

    def __init__(
        self,
        tokens: Tokens,
        members: Members,
        issuer: DeviceIssuer,
        revocations: RevocationSync,
        devices: PresentDevices,
    ) -> None:
        self._tokens = tokens
        self._members = members
        self._issuer = issuer
        self._revocations = revocations
        self._devices = devices

    def add_to(self, server: GrpcServer) -> None:
        register = fleet_pb2_grpc.add_FleetServiceServicer_to_server
        server.add(register, self, "hfmds.v1.FleetService", FLEET_ACCESS)

    async def CreateEnrolmentToken(
        self, request: fleet_pb2.CreateEnrolmentTokenRequest, context: grpc.aio.ServicerContext
    ) -> fleet_pb2.CreateEnrolmentTokenResponse:
        self._issuer.require()
        token = new_token_from(request)
        record = await asyncio.to_thread(self._tokens.create, token, caller(context))
        return fleet_pb2.CreateEnrolmentTokenResponse(token=token_message(record))

    async def CreateAdminToken(
        self, request: fleet_pb2.CreateAdminTokenRequest, context: grpc.aio.ServicerContext
    ) -> fleet_pb2.CreateAdminTokenResponse:
        token = new_token_from(request)
        record = await asyncio.to_thread(self._tokens.create, token, caller(context))
        return fleet_pb2.CreateAdminTokenResponse(token=token_message(record))

    async def ListTokens(
        self, request: fleet_pb2.ListTokensRequest, context: grpc.aio.ServicerContext
    ) -> fleet_pb2.ListTokensResponse:
        tokens = map(token_message, await asyncio.to_thread(self._tokens.list))
        size, after = request.page_size, request.page_token
        entries, token = page(tokens, size, after, lambda entry: entry.token_id)
        return fleet_pb2.ListTokensResponse(tokens=entries, next_page_token=token)

    async def RevokeToken(
        self, request: fleet_pb2.RevokeTokenRequest, context: grpc.aio.ServicerContext
    ) -> fleet_pb2.RevokeTokenResponse:
        token_id = require_token_id(request.token_id)
        self._revocations.token_gate.spare_own()  # it may be the token that the caller has shown
        is_owner = may_as(Kind.OWNER)
        await asyncio.to_thread(self._tokens.revoke, token_id, caller(context), of_people=is_owner)
        await self._revocations.apply()
        return fleet_pb2.RevokeTokenResponse()

    async def RevokeDevice(
        self, request: fleet_pb2.RevokeDeviceRequest, context: grpc.aio.ServicerContext
    ) -> fleet_pb2.RevokeDeviceResponse:
        device_id = require_id(request.device_id, "device_id")
        reason = reason_from(request.reason)
        known = await asyncio.to_thread(self._members.revoke, device_id, reason, caller(context))
        await self._revocations.apply()
        await self._devices.leave(device_id)
        return fleet_pb2.RevokeDeviceResponse(known=known)

    async def RevokeCertificate(
        self, request: fleet_pb2.RevokeCertificateRequest, context: grpc.aio.ServicerContext
    ) -> fleet_pb2.RevokeCertificateResponse:
        serial, reason = require_serial(request.serial), reason_from(request.reason)
        own = certificate_shown()
        if own is not None and own.serial == serial:
            raise WrongState("this is your own certificate; let another owner revoke it")
        await asyncio.to_thread(self._members.revoke_certificate, serial, reason, caller(context))
        await self._revocations.apply()
        return fleet_pb2.RevokeCertificateResponse()

    async def QuarantineDevice(
        self, request: fleet_pb2.QuarantineDeviceRequest, context: grpc.aio.ServicerContext
    ) -> fleet_pb2.QuarantineDeviceResponse:
        device_id = require_id(request.device_id, "device_id")
        reason = reason_from(request.reason)
        by = caller(context)
        known = await asyncio.to_thread(self._members.quarantine, device_id, reason, by)
        await self._revocations.apply()
        await self._devices.leave(device_id)
        return fleet_pb2.QuarantineDeviceResponse(known=known)

    async def ReleaseDevice(
        self, request: fleet_pb2.ReleaseDeviceRequest, context: grpc.aio.ServicerContext
    ) -> fleet_pb2.ReleaseDeviceResponse:
        device_id = require_id(request.device_id, "device_id")
        await asyncio.to_thread(self._members.release, device_id, caller(context))
        await self._revocations.apply()
        return fleet_pb2.ReleaseDeviceResponse()

    async def ListMembers(
        self, request: fleet_pb2.ListMembersRequest, context: grpc.aio.ServicerContext
    ) -> fleet_pb2.ListMembersResponse:
        members = await asyncio.to_thread(self._members.list, request.page_token, ASKED_FOR_A_PAGE)
        messages = map(member_message, members)
        entries, token = next_page(messages, request.page_size, lambda member: member.device_id)
        return fleet_pb2.ListMembersResponse(members=entries, next_page_token=token)


def _certificate_message(issued: DeviceCertificate) -> enrolment_pb2.IssuedCertificate:
    return enrolment_pb2.IssuedCertificate(
        chain=issued.chain,
        authority=issued.authority,
        renew_after_seconds=issued.renew_after_seconds,
        lifetime_seconds=issued.lifetime_seconds,
    )
