"""A replica: one of several coordinators on one PostgreSQL.

One of them leads and drives the runs. All of them answer devices and operators.
"""

from __future__ import annotations

import secrets
import socket

from sqlalchemy import Engine

from coordinator.devices.registry import Registry
from coordinator.monitoring.metrics import Metrics
from coordinator.replicas.leadership import Leader, Leadership, LeaseRecords
from coordinator.replicas.notices import SharedNotices
from coordinator.replicas.presence import Presence
from coordinator.replicas.shared_content import require_shared_content
from hfmds.storage.blobs import Blobs


class Replica:
    """Connects this coordinator to the others. The runs use its notices."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._name = f"{socket.gethostname()[:100]}-{secrets.token_hex(4)}"  # unique
        self.notices = SharedNotices(engine, self._name)

    def join(
        self,
        leader: Leader,
        registry: Registry,
        marks: Blobs,
        metrics: Metrics,
        lease_seconds: float,
    ) -> None:
        """Join the others. From now on this coordinator may become the leader at any time."""
        require_shared_content(self._engine, marks)
        self._presence = Presence(self._engine, self._name, registry, self.notices)
        lease = LeaseRecords(self._engine, self._name, lease_seconds)
        self._leadership = Leadership(lease, leader, self.notices, metrics)
        self.notices.start()
        self._presence.start()
        self._leadership.start()

    def leave(self) -> None:
        """Leave the others, and let another coordinator lead at once."""
        self._leadership.close()
        self._presence.close()
        self.notices.close()
