"""The device's clients of enrolment and renewal: take and return values, raise hfmds.errors."""

from __future__ import annotations

import math
from dataclasses import dataclass

from hfmds.errors import InvalidInput
from hfmds.service.client.channel import call, open_channel
from hfmds.service.client.peer import Peer
from hfmds.v1 import enrolment_pb2 as pb
from hfmds.v1.enrolment_pb2_grpc import EnrolmentServiceStub, RenewalServiceStub
from hfmds.wire.clients.service_client import CALL_SECONDS, ServiceClient

_LONGEST_SECONDS = 10 * 365 * 24 * 3600.0


@dataclass(frozen=True, slots=True)
class IssuedCertificate:
    """A new certificate as PEM; its times are durations from receipt."""

    chain: bytes
    authority: bytes
    renew_after_seconds: float
    lifetime_seconds: float


class EnrolmentClient(ServiceClient):
    """A device's calls to the token port, where only the server shows a certificate."""

    def __init__(self, peer: Peer) -> None:
        super().__init__(peer, EnrolmentServiceStub)

    async def begin(self) -> bytes:
        """Return a nonce that is valid for one attempt."""
        response = await self._call(self._stub.BeginEnrolment, pb.BeginEnrolmentRequest())
        return bytes(response.nonce)

    async def enrol(
        self, token: str, nonce: bytes, device_id: str, csr: bytes, signature: bytes
    ) -> tuple[str, IssuedCertificate]:
        """Join the fleet; return the device's id and certificate.

        Without a token, the key of `csr` must be the device's.
        """
        request = pb.EnrolRequest(
            token=token, nonce=nonce, device_id=device_id, csr=csr, signature=signature
        )
        response = await self._call(self._stub.Enrol, request)
        return response.device_id, _issued_from(response.certificate)


class RenewalClient:
    """A certified device's calls to renew its certificate."""

    def __init__(self, peer: Peer, device_id: str) -> None:
        self._peer = peer
        self._device_id = device_id

    async def renew(self, csr: bytes) -> IssuedCertificate:
        """Return a new certificate; each call shows the certificate that is on disk now."""
        request = pb.RenewCertificateRequest(device_id=self._device_id, csr=csr)
        channel = open_channel(self._peer)
        try:
            renew = RenewalServiceStub(channel).RenewCertificate
            response = await call(self._peer, renew, request, timeout_seconds=CALL_SECONDS)
        finally:
            await channel.close()
        return _issued_from(response.certificate)


def _issued_from(message: pb.IssuedCertificate) -> IssuedCertificate:
    for name in ("renew_after_seconds", "lifetime_seconds"):
        seconds = getattr(message, name)
        if not (math.isfinite(seconds) and 0 < seconds <= _LONGEST_SECONDS):
            raise InvalidInput(f"{name} of a certificate is {seconds}; it must be above 0")
    if not (message.chain and message.authority):
        raise InvalidInput("the coordinator sent a certificate that is empty")
    return IssuedCertificate(
        message.chain,
        message.authority,
        message.renew_after_seconds,
        message.lifetime_seconds,
    )
