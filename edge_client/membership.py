"""An enrolled device's place in the fleet, while it works."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack, closing

from edge_client.enrolment import Enrolment
from edge_client.patience import Patience
from edge_client.settings import EdgeSettings
from edge_client.state import kept_device_id
from hfmds.service.peer import Peer
from hfmds.wire.coordinator_client import CoordinatorClient
from hfmds.wire.enrolment_client import EnrolmentClient, RenewalClient
from hfmds.wire.store_client import StoreClient


class Membership:
    """What an enrolled device does to stay one."""

    def __init__(
        self, device_id: str, enrolment: Enrolment, registrar: EnrolmentClient, patience: Patience
    ) -> None:
        self.device_id = device_id
        self._enrolment = enrolment
        self._registrar = registrar
        self._patience = patience

    async def stay(self, peer: Peer, coordinator: CoordinatorClient, store: StoreClient) -> None:
        """Always have a good certificate, and show the newest, for ever."""

        async def renewed() -> None:
            await asyncio.gather(coordinator.reopen(), store.reopen())

        renewal = RenewalClient(peer, self.device_id)
        await self._enrolment.stay(renewal.renew, self._registrar, self._patience.call, renewed)


async def enrol(
    settings: EdgeSettings, stack: AsyncExitStack, patience_with: Callable[[Peer], Patience]
) -> Membership:
    """Be a device of the fleet; what is opened for it is closed with the stack."""
    peer, trust = settings.enrolment_peer, settings.enrolment_trust
    enrolment = stack.enter_context(closing(Enrolment(settings.identity_files, trust.authority)))
    registrar = EnrolmentClient(peer)
    stack.push_async_callback(registrar.close)
    patience = patience_with(peer)
    wished = settings.device_id or kept_device_id(settings.state_dir)
    if settings.once:  # whoever starts a device so wants to know that nobody answers
        device_id = await enrolment.enrol(registrar, settings.token, wished)
    else:
        device_id = await patience.call(enrolment.enrol, registrar, settings.token, wished)
    return Membership(device_id, enrolment, registrar, patience)
