"""A device's side of enrolment and renewal: values in, values out, hfmds.errors raised."""

from __future__ import annotations

import math
from dataclasses import dataclass

from hfmds.errors import InvalidInput
from hfmds.service.client.channel import call, open_channel
from hfmds.service.client.peer import Peer
from hfmds.v1 import enrolment_pb2 as pb
from hfmds.v1.enrolment_pb2_grpc import EnrolmentServiceStub, RenewalServiceStub

_CALL_SECONDS = 30.0
_LONGEST_SECONDS = 10 * 365 * 24 * 3600.0  # whatever a server says


@dataclass(frozen=True, slots=True)
class IssuedCertificate:
    """A certificate that was just made, PEM; its times are durations from receipt."""

    chain: bytes
    authority: bytes
    renew_after_seconds: float
    lifetime_seconds: float


class EnrolmentClient:
    """A device at the coordinator's token port, where only the server shows a certificate."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self._channel = open_channel(peer)
        self._stub = EnrolmentServiceStub(self._channel)

    async def close(self) -> None:
        await self._channel.close()

    async def begin(self) -> bytes:
        """A nonce, good for one try."""
        request = pb.BeginEnrolmentRequest()
        response = await call(
            self._peer, self._stub.BeginEnrolment, request, timeout_seconds=_CALL_SECONDS
        )
        return bytes(response.nonce)

    async def enrol(
        self, token: str, nonce: bytes, device_id: str, csr: bytes, signature: bytes
    ) -> tuple[str, IssuedCertificate]:
        """Become a device of the fleet: its id and its certificate.

        Without a token, the key of `csr` must be the device's.
        """
        request = pb.EnrolRequest(
            token=token, nonce=nonce, device_id=device_id, csr=csr, signature=signature
        )
        response = await call(self._peer, self._stub.Enrol, request, timeout_seconds=_CALL_SECONDS)
        return response.device_id, _issued_from(response.certificate)


class RenewalClient:
    """A device that has a certificate, at the coordinator's main port."""

    def __init__(self, peer: Peer, device_id: str) -> None:
        self._peer = peer
        self._device_id = device_id

    async def renew(self, csr: bytes) -> IssuedCertificate:
        """Another certificate; the one that is shown is read anew for each call."""
        request = pb.RenewCertificateRequest(device_id=self._device_id, csr=csr)
        channel = open_channel(self._peer)
        try:
            renew = RenewalServiceStub(channel).RenewCertificate
            response = await call(self._peer, renew, request, timeout_seconds=_CALL_SECONDS)
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
