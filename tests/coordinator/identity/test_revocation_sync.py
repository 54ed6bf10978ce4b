"""Exclusions reach the gate of this coordinator and the store."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from coordinator.identity import revocation_sync
from coordinator.identity.revocation_sync import RevocationSync
from hfmds.errors import Unavailable
from hfmds.service.security.exclusions import Exclusions
from hfmds.service.security.revocation_gate import Gate
from tests.coordinator.identity.registry_office import OLGA, START, Office
from tests.support.waiting import eventually


class Store:
    """A store that records its list and its calls."""

    def __init__(self) -> None:
        self.held: Exclusions | None = None
        self.away = False
        self.asked: list[str] = []

    async def set_exclusions(self, version: str, exclusions: Exclusions | None = None) -> str:
        if self.away:
            raise Unavailable("away")
        self.asked.append("list" if exclusions else "version")
        if exclusions is not None:
            assert version == exclusions.version
            self.held = exclusions
        return self.held.version if self.held else ""


class Post:
    """A revocation sync with its collaborators."""

    def __init__(self, folder: Path) -> None:
        self.office = Office(folder)
        self.gate, self.store = Gate(), Store()
        books = self.office.fleet, self.office.members, self.office.tokens
        self.revocations = RevocationSync(*books, self.gate, self.store)


@pytest.fixture
def post(tmp_path: Path) -> Post:
    return Post(tmp_path)


async def test_the_store_gets_no_list_before_the_first_exclusion(post: Post) -> None:
    post.revocations.refresh()
    await post.revocations.push_to_store()
    assert post.store.asked == []


async def test_a_revocation_applies_at_once(post: Post) -> None:
    post.office.members.revoke("camera", "stolen", OLGA)
    await post.revocations.apply()
    assert post.gate.exclusions == Exclusions({"camera": int(START)})
    post.office.members.revoke_certificate("ab12", "", OLGA)
    await post.revocations.apply()
    assert post.gate.exclusions.serials == {"ab12"}


def test_a_revoked_token_reaches_the_gate_of_the_token_port(post: Post) -> None:
    token = post.office.admin()
    post.office.tokens.revoke(token.token_id, OLGA)
    post.revocations.refresh()
    assert post.revocations.token_gate.exclusions == Exclusions(serials=frozenset({token.token_id}))
    assert post.gate.exclusions == Exclusions()


async def test_the_store_gets_the_list_once_and_then_only_its_digest(post: Post) -> None:
    post.office.members.quarantine("phone", "noisy", OLGA)
    post.revocations.refresh()
    for _ in range(3):
        await post.revocations.push_to_store()
    assert post.store.asked == ["version", "list", "version", "version"]
    assert post.store.held == Exclusions(quarantined={"phone": "noisy"})


async def test_an_empty_list_is_sent_too(post: Post) -> None:
    post.office.members.quarantine("phone", "noisy", OLGA)
    post.office.members.release("phone", OLGA)
    post.revocations.refresh()
    post.store.held = Exclusions(quarantined={"phone": "noisy"})
    await post.revocations.push_to_store()
    assert post.store.held == Exclusions()


async def test_a_store_that_lost_its_list_gets_it_again(post: Post) -> None:
    post.office.members.revoke("camera", "", OLGA)
    post.revocations.refresh()
    await post.revocations.push_to_store()
    post.store.held = None
    await post.revocations.push_to_store()
    assert post.store.held == post.office.members.exclusions()


async def test_a_change_by_another_coordinator_is_sent(
    post: Post, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Office(tmp_path)
    for name in ("_READ_EVERY_SECONDS", "_PUSH_EVERY_SECONDS"):
        monkeypatch.setattr(revocation_sync, name, 0.02)

    async with post.revocations.following():
        post.store.away = True
        await asyncio.to_thread(other.members.revoke, "camera", "", OLGA)
        await eventually(lambda: post.gate.exclusions.dead_until)
        post.store.away = False
        await eventually(lambda: post.store.held is not None)
    assert post.store.held == other.members.exclusions()
