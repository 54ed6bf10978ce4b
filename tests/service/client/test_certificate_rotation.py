"""Clients show a replaced certificate."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from hfmds.errors import ConfigurationError
from hfmds.pki.folder import create_authority, issue_pair
from hfmds.service.client.certificate_rotation import follow_rotation, reopen
from hfmds.service.security.identity import Identity, Kind
from hfmds.service.security.tls import TlsFiles

NOW = datetime.now(UTC)
DAY = timedelta(days=1)


class Client:
    """Counts how often it was reopened."""

    reopened = 0

    async def reopen(self) -> None:
        self.reopened += 1


class EndOfTest(Exception):
    """Raised by the last pause."""


def certificate(folder: Path, name: str) -> TlsFiles:
    authority = create_authority(folder / name, "tests", NOW, DAY)
    path = issue_pair(folder / name, authority, Identity(Kind.SERVICE, "a"), NOW, DAY)
    return TlsFiles(path, path.with_suffix(".key"), folder / name / "authority.crt")


async def test_clients_are_opened_anew_once_for_each_new_certificate(tmp_path: Path) -> None:
    files, later = certificate(tmp_path, "now"), certificate(tmp_path, "later")
    client, seen = Client(), []

    def replace_key() -> None:  # the certificate is still that of the other key
        later.key.replace(files.key)
        os.utime(files.key, ns=(1, 1))  # whatever the clock's grain

    def replace_certificate() -> None:
        later.certificate.replace(files.certificate)
        os.utime(files.certificate, ns=(2, 2))

    steps = iter([lambda: None, replace_key, replace_certificate, lambda: None])

    async def sleep(_: float) -> None:
        seen.append(client.reopened)
        try:
            next(steps)()
        except StopIteration:
            raise EndOfTest from None

    with pytest.raises(EndOfTest):
        await follow_rotation(files, (client,), sleep)
    assert seen == [0, 0, 0, 1, 1]


async def test_a_client_that_cannot_be_opened_anew_is_tried_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    failures = [ConfigurationError("half replaced"), RuntimeError("strange")]
    pauses: list[float] = []

    class Failing(Client):
        async def reopen(self) -> None:
            if failures:
                raise failures.pop(0)
            await super().reopen()

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    client = Failing()
    await reopen(client, sleep)
    assert (client.reopened, len(pauses)) == (1, 2)
    assert "half replaced" in caplog.text
    assert "strange" in caplog.text
