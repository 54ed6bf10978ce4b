"""Keeps the certificate of an enrolled device valid while it works."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack, closing

from edge_client.device.device_folder import kept_device_id
from edge_client.identity.own_certificate import OwnCertificate
from edge_client.retry import Retry
from edge_client.settings import EdgeSettings
from hfmds.service.client.certificate_rotation import reopen
from hfmds.service.client.peer import Peer
from hfmds.wire.clients.coordinator_client import CoordinatorClient
from hfmds.wire.clients.enrolment_client import EnrolmentClient, RenewalClient
from hfmds.wire.clients.store_client import StoreClient


class EnrolledDevice:
    """A device with a certificate."""

    def __init__(
        self,
        device_id: str,
        certificate: OwnCertificate,
        registrar: EnrolmentClient,
        renewal: RenewalClient,
        retry: Retry,
    ) -> None:
        self.device_id = device_id
        self._certificate = certificate
        self._registrar = registrar
        self._renewal = renewal
        self._retry = retry

    async def catch_up(self) -> None:
        """Renew the certificate now if it is due."""
        await self._certificate.catch_up(self._renewal.renew, self._registrar)

    async def stay(self, coordinator: CoordinatorClient, store: StoreClient) -> None:
        """Renew the certificate in time, and reopen the clients with it, for ever."""
        reopening: set[asyncio.Task[None]] = set()

        async def renewed() -> None:
            # Not waited for: a call under way may last for longer than the new certificate.
            for client in (coordinator, store):
                task = asyncio.create_task(reopen(client, asyncio.sleep))
                reopening.add(task)
                task.add_done_callback(reopening.discard)

        await self._certificate.stay(
            self._renewal.renew, self._registrar, self._retry.call, renewed
        )


async def enrol(
    settings: EdgeSettings, stack: AsyncExitStack, retry_with: Callable[[Peer], Retry]
) -> EnrolledDevice:
    """Enrol this device, or find that it is enrolled; the stack closes its files and channels."""
    peer, trust = settings.enrolment_peer, settings.enrolment_trust
    certificate = stack.enter_context(
        closing(OwnCertificate(settings.identity_files, trust.authority))
    )
    registrar = EnrolmentClient(peer)
    stack.push_async_callback(registrar.close)
    retry = retry_with(peer)

    async def member() -> EnrolledDevice:
        wished = settings.device_id or kept_device_id(settings.state_dir)
        device_id = await certificate.enrol(registrar, settings.token, wished)
        renewal = RenewalClient(settings.coordinator_peer, device_id)
        device = EnrolledDevice(device_id, certificate, registrar, renewal, retry)
        await device.catch_up()
        return device

    # A device that works once must report that the coordinator does not answer.
    return await (member() if settings.once else retry.call(member))
