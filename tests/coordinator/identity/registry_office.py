"""The identity objects of a coordinator on real tables, with a clock that the test moves."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from coordinator.identity.device_issuer import DeviceCertificate, DeviceIssuer
from coordinator.identity.enrolment import DeviceEnrolment
from coordinator.identity.fleet_records import FleetRecords
from coordinator.identity.members import Members
from coordinator.identity.nonces import Nonces
from coordinator.identity.tokens import Tokens
from coordinator.records.events import EventRecords
from coordinator.records.tables import Base
from hfmds.domain.administration.fleet import AdminTerms, EnrolmentTerms, NewToken, Role
from hfmds.pki.authority import Authority
from hfmds.pki.device_key import DeviceKey
from hfmds.pki.token_text import Token, TokenKind, new_token
from hfmds.service.security.certificates import Certificate, read_own_certificate
from hfmds.service.security.identity import Identity, Kind
from hfmds.storage.database import open_database
from tests.support.databases import database_of

START = 1_800_000_000.25
DAY = 24 * 3600.0
OLGA = "admin/owner olga"


class Office:
    """The identity objects of one coordinator. A second one on the same folder is a replica."""

    def __init__(self, folder: Path, *, issuer: Authority | None = None) -> None:
        self.now = START
        engine = open_database(database_of(folder))
        Base.metadata.create_all(engine)
        self.fleet = FleetRecords(engine, self.clock)
        self.tokens, self.members = Tokens(self.fleet), Members(self.fleet)
        self.nonces = Nonces(self.fleet.nonce_key, self.clock)
        self.issuer = DeviceIssuer(issuer, lambda: b"whom all believe", DAY)
        self.enrolment = DeviceEnrolment(self.fleet, self.tokens, self.nonces, self.issuer)
        self._events = EventRecords(engine)

    def clock(self) -> float:
        return self.now

    def token(self, seconds: float = DAY, **terms: object) -> Token:
        """Create a valid enrolment token."""
        token = new_token(TokenKind.ENROL)
        enrolment_terms = EnrolmentTerms(**terms)  # type: ignore[arg-type]
        self.tokens.create(new(token, enrolment_terms, seconds), OLGA)
        return token

    def admin(self, role: Role = Role.VIEWER, name: str = "vera", seconds: float = DAY) -> Token:
        """Create a valid admin token."""
        token = new_token(TokenKind.ADMIN)
        self.tokens.create(new(token, AdminTerms(role), seconds, name), OLGA)
        return token

    def enrol(
        self, key: DeviceKey, token: Token | None = None, device_id: str = ""
    ) -> DeviceCertificate:
        """Enrol as a device does."""
        nonce, request = self.enrolment.begin(), key.request()
        text = token.text if token else ""
        return self.enrolment.enrol(text, nonce, device_id, request, key.proof(nonce, request))

    def renew(self, shown: DeviceCertificate, key: DeviceKey) -> DeviceCertificate:
        """Renew a certificate as a device does."""
        return self.enrolment.renew(shown.device_id, certificate(shown), key.request())

    def log(self) -> list[str]:
        """Return the kinds of the fleet's events."""
        return [event.kind for event in self._events.events(self.fleet.log_id, 0, 1000)]


def new(
    token: Token, terms: EnrolmentTerms | AdminTerms, seconds: float = DAY, name: str = "north"
) -> NewToken:
    return NewToken(token.token_id, token.secret_sha256, name, seconds, terms)


def new_issuer(days: float = 10) -> Authority:
    start = datetime.fromtimestamp(START, UTC)
    return Authority.create_issuer("tests", start, timedelta(days=days))[0]


def certificate(issued: DeviceCertificate) -> Certificate:
    identity = Identity(Kind.DEVICE, issued.device_id)
    return replace(read_own_certificate(issued.chain), identity=identity)
