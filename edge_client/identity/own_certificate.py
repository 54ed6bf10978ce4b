"""The device's own key and certificate: the device enrols once and renews in time.

The device makes its key itself and sends it to nobody. With an operator's token it gets its first
certificate from the coordinator. It asks for the next one long before the certificate runs out. A
device that was off for too long proves that it has the key. Times are durations from receipt. The
wall clock only tells how long the device was off. A wrong clock makes it ask too early, which costs
nothing, or too late, and then the key helps.

    identity/key.pem          the device's key; a secret
    identity/next-key.pem     the key for a new token, until the coordinator certifies or refuses it
    identity/certificate.pem  the device's certificate
    identity/authority.pem    the authorities it trusts: HFMDS_TLS_AUTHORITY and the fleet's
    identity/terms.json       the device's id, and when to renew; written last
    identity/lock             held while a process uses the folder
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol, TypeAlias

from hfmds.errors import (
    ConfigurationError,
    Conflict,
    LimitExceeded,
    NotAllowed,
    TooLate,
    Unavailable,
    WrongState,
)
from hfmds.pki.device_key import DeviceKey
from hfmds.service.security.certificates import Certificate, read_own_certificate
from hfmds.service.security.tls import TlsFiles
from hfmds.storage.files import FolderLock, sync_folder, write_whole
from hfmds.wire.clients.enrolment_client import IssuedCertificate

log = logging.getLogger(__name__)

_LOOK_EVERY_SECONDS = 60.0  # the monotonic clock may stand still while a machine sleeps


Renew: TypeAlias = Callable[[bytes], Awaitable[IssuedCertificate]]
"""Asks for the next certificate, authenticated by the current one."""


class Registrar(Protocol):
    """The coordinator's enrolment calls."""

    async def begin(self) -> bytes: ...

    async def enrol(
        self, token: str, nonce: bytes, device_id: str, csr: bytes, signature: bytes
    ) -> tuple[str, IssuedCertificate]: ...


@dataclass(frozen=True, slots=True)
class _Terms:
    device_id: str
    key_sha256: str  # of the certified key
    token_sha256: str  # of the token that the device enrolled with
    received_at: float  # by the wall clock
    renew_after_seconds: float


class OwnCertificate:
    """One device's key and certificate, in their own folder."""

    def __init__(
        self,
        files: TlsFiles,
        initial_authority: Path,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Open or make the folder of `files`.

        `initial_authority` is the file of HFMDS_TLS_AUTHORITY.
        """
        folder = files.certificate.parent
        self._files = files
        self._next_key_path = folder / "next-key.pem"
        self._terms_path = folder / "terms.json"
        self._initial_authority = initial_authority
        self._clock = clock
        self._monotonic = monotonic
        self._received: float | None = None  # by the monotonic clock; None: not by this process
        self._lock = FolderLock(folder, setting="HFMDS_STATE_DIR")
        try:
            folder.chmod(0o700)
            self._terms = self._kept_terms()
            self._key = self._own_key()
            if self._terms:
                self._trust(self._files.authority.read_bytes())
        except BaseException:
            self._lock.close()
            raise

    def close(self) -> None:
        """Unlock the folder."""
        self._lock.close()

    async def enrol(self, registrar: Registrar, token: str, wished_id: str) -> str:
        """Enrol unless the device has a certificate; return its id.

        The device uses a token once. With a new token it enrols again, which is how a revoked
        device comes back. It then makes a new key, because somebody else may have the old one.
        """
        fresh_token = bool(token) and (
            self._terms is None or self._terms.token_sha256 != _sha256(token)
        )
        if self._terms and wished_id not in ("", self._terms.device_id):
            raise ConfigurationError(
                f"this device is enrolled as {self._terms.device_id!r}, not as HFMDS_DEVICE_ID "
                f"{wished_id!r}; set HFMDS_STATE_DIR to a folder of that device's own"
            )
        if self._terms and not fresh_token:
            return self._terms.device_id
        if not token:
            raise ConfigurationError(
                "this device has no certificate yet; set HFMDS_ENROL_TOKEN or "
                "HFMDS_ENROL_TOKEN_FILE to a token (`hfmds pki enrol-token` makes one)"
            )
        if self._terms is None:
            device_id, issued = await self._ask(registrar, self._key, token, wished_id)
            self._keep(issued, device_id, _sha256(token), self._key)
        else:
            device_id = self._terms.device_id
            if not await self._come_back(registrar, token, device_id):
                return device_id
        log.info("enrolled", extra={"device": device_id})
        return device_id

    async def _come_back(self, registrar: Registrar, token: str, device_id: str) -> bool:
        key = _key_at(self._next_key_path)
        try:
            _, issued = await self._ask(registrar, key, token, device_id)
        except (Conflict, LimitExceeded, NotAllowed) as error:
            # The token may be for other devices. If the device's certificate is no longer valid,
            # the coordinator refuses its calls and says why.
            log.warning("the coordinator refuses the token, going on without it: %s", error)
            if isinstance(error, NotAllowed):
                # A lost answer may have certified the key before an operator revoked the device.
                self._next_key_path.unlink()
            return False
        self._keep(issued, device_id, _sha256(token), key)
        return True

    async def catch_up(self, renew: Renew, registrar: Registrar) -> None:
        """Renew a certificate that is due or damaged, at the start of the device.

        If the coordinator is away, a certificate that is still valid will do: `stay` asks again.
        """
        try:
            if self.renew_in_seconds() <= 0 or self._certificate_of(self._key) is None:
                await self._renew(renew, registrar)
        except Unavailable as error:
            if not self._has_good_certificate():
                raise
            log.warning("going on with the current certificate: %s", error)

    def _has_good_certificate(self) -> bool:
        """Return whether the certificate is valid by the wall clock."""
        certificate = self._certificate_of(self._key)
        return certificate is not None and certificate.ends > self._clock()

    async def stay(
        self,
        renew: Renew,
        registrar: Registrar,
        retry: Callable[[Callable[[], Awaitable[None]]], Awaitable[None]],
        renewed: Callable[[], Awaitable[None]],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """Renew the certificate in time, for ever, and call `renewed` each time.

        `retry` repeats a call until the coordinator answers.
        """

        async def once() -> None:
            if self.renew_in_seconds() <= 0:
                await self._renew(renew, registrar)

        while True:
            remaining = self.renew_in_seconds()
            if remaining > 0:
                await sleep(min(remaining, _LOOK_EVERY_SECONDS))
                continue
            await retry(once)
            await renewed()

    def renew_in_seconds(self) -> float:
        """Return the time until the renewal; 0 or less: now."""
        terms = self._own_terms()
        by_wall = self._clock() - terms.received_at
        if not 0 <= by_wall < terms.renew_after_seconds:
            return 0.0
        here = 0.0 if self._received is None else self._monotonic() - self._received
        return terms.renew_after_seconds - max(by_wall, here)

    async def _renew(self, renew: Renew, registrar: Registrar) -> None:
        terms = self._own_terms()
        try:
            issued = await self._next(renew, registrar, terms.device_id)
        except (WrongState, LimitExceeded) as error:
            # The operators have to fix the coordinator; the current certificate may still be valid.
            raise Unavailable(f"the coordinator issues no certificate now: {error}") from error
        try:
            self._keep(issued, terms.device_id, terms.token_sha256, self._key)
        except (OSError, ConfigurationError) as error:
            # A full disk must not end a device whose certificate is valid.
            folder = self._terms_path.parent
            raise Unavailable(f"cannot write a certificate to {folder}: {error}") from error
        log.info("certificate renewed")

    async def _next(self, renew: Renew, registrar: Registrar, device_id: str) -> IssuedCertificate:
        try:
            return await renew(self._key.request())
        except (Unavailable, ConfigurationError) as error:
            # The coordinator is away, or the certificate ran out or is damaged: the device cannot
            # tell these apart.
            log.debug("not renewed by certificate, trying by key: %s", error)
        _, issued = await self._ask(registrar, self._key, "", device_id)
        return issued

    async def _ask(
        self, registrar: Registrar, key: DeviceKey, token: str, device_id: str
    ) -> tuple[str, IssuedCertificate]:
        request = key.request()
        nonce = await registrar.begin()
        try:
            return await registrar.enrol(
                token, nonce, device_id, request, key.proof(nonce, request)
            )
        except TooLate as error:  # the network was slow; the next nonce is another attempt
            raise Unavailable(f"the coordinator's nonce ran out: {error}") from error

    def _keep(
        self, issued: IssuedCertificate, device_id: str, token_sha256: str, key: DeviceKey
    ) -> None:
        """Store the certificate; a device killed in between asks again."""
        terms = _Terms(
            device_id, key.sha256, token_sha256, self._clock(), issued.renew_after_seconds
        )
        self._trust(issued.authority)
        write_whole(self._files.certificate, issued.chain)
        write_whole(self._terms_path, json.dumps(asdict(terms)).encode())
        self._terms = terms
        self._key = self._own_key()
        self._received = self._monotonic()

    def _trust(self, authority: bytes) -> None:
        """Trust the initial authority and the fleet's."""
        try:
            initial = self._initial_authority.read_bytes().strip()
        except OSError as error:
            raise ConfigurationError(
                f"cannot read {self._initial_authority}: {error.strerror}; set HFMDS_TLS_AUTHORITY"
            ) from error
        both = authority if initial in authority else initial + b"\n" + authority
        write_whole(self._files.authority, both)

    def _own_terms(self) -> _Terms:
        if self._terms is None:
            raise RuntimeError("the device has not enrolled")
        return self._terms

    def _own_key(self) -> DeviceKey:
        """Return the certified key; the next key replaces it once it is certified."""
        if self._terms and self._next_key_path.exists():
            following = _key_at(self._next_key_path)
            # Also by the certificate: a kill may have come before the terms were written.
            certified = following.sha256 == self._terms.key_sha256
            if certified or self._certificate_of(following):
                self._next_key_path.replace(self._files.key)
                sync_folder(self._files.key.parent)
        return _key_at(self._files.key)

    def _certificate_of(self, key: DeviceKey) -> Certificate | None:
        """Return the certificate if it is for this key and readable."""
        try:
            certificate = read_own_certificate(self._files.certificate.read_bytes())
        except (OSError, ConfigurationError) as error:
            log.warning("cannot read %s: %s", self._files.certificate, error)
            return None
        return certificate if certificate.key_sha256 == key.sha256 else None

    def _kept_terms(self) -> _Terms | None:
        try:
            return _Terms(**json.loads(self._terms_path.read_bytes()))
        except FileNotFoundError:
            return None
        except (ValueError, TypeError) as error:
            raise ConfigurationError(
                f"{self._terms_path} is not readable ({error}); delete it, and enrol the device "
                f"again with a token for its id"
            ) from error


def _key_at(path: Path) -> DeviceKey:
    """Return the key in a file; make it if there is none."""
    if not path.exists():
        write_whole(path, DeviceKey.create().pem)
        path.chmod(0o600)
    try:
        return DeviceKey(path.read_bytes())
    except ConfigurationError as error:
        raise ConfigurationError(
            f"{path}: {error}; delete the folder it is in, and enrol the device again with a token "
            "for its id"
        ) from error


def _sha256(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()
