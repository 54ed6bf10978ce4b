from pathlib import Path

import numpy as np
import pytest

from hfmds.domain.digest import digest_of
from hfmds.storage.blob_cache import BlobCache

A, B, C = b"a" * 40, b"b" * 40, b"c" * 40


class Clock:
    """A clock the test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def cache(tmp_path: Path, clock: Clock) -> BlobCache:
    return BlobCache(tmp_path / "cache", 100, clock=clock)


def here(cache: BlobCache, *contents: bytes) -> list[bool]:
    return [cache.find(digest_of(content)) is not None for content in contents]


def test_copies_are_found_by_digest(cache: BlobCache, tmp_path: Path) -> None:
    assert cache.keep_bytes(A).read_bytes() == A
    (tmp_path / "made elsewhere").write_bytes(B)
    path = cache.keep_file(digest_of(B), tmp_path / "made elsewhere")
    assert cache.find(digest_of(B)) == path
    assert path.read_bytes() == B
    assert here(cache, A, B, C) == [True, True, False]


def test_the_least_recently_used_copy_leaves(cache: BlobCache, clock: Clock) -> None:
    cache.keep_bytes(A)
    cache.keep_bytes(B)
    clock.now += 1
    cache.find(digest_of(A))
    clock.now += 60
    cache.keep_bytes(C)
    assert here(cache, A, B, C) == [True, False, True]


def test_a_copy_asked_for_in_the_last_minute_stays(cache: BlobCache, clock: Clock) -> None:
    cache.keep_bytes(A)
    clock.now += 59
    cache.keep_bytes(B)
    cache.keep_bytes(C)
    assert here(cache, A, B, C) == [True, True, True]
    clock.now += 60
    cache.keep_bytes(b"d")
    assert here(cache, A, B, C) == [False, True, True]


def test_a_copy_that_is_mapped_can_be_read_after_it_has_left(cache: BlobCache) -> None:
    mapped = np.memmap(cache.keep_bytes(A), mode="r")
    cache.forget(digest_of(A))
    assert here(cache, A) == [False]
    assert bytes(mapped) == A


def test_copies_of_an_earlier_process_are_used_and_leave_first(
    cache: BlobCache, tmp_path: Path, clock: Clock
) -> None:
    cache.keep_bytes(A)
    cache.keep_bytes(B)
    later = BlobCache(tmp_path / "cache", 100, clock=clock)
    assert later.find(digest_of(A)) is not None
    later.keep_bytes(C)
    assert here(later, A, B, C) == [True, False, True]


def test_a_cache_made_smaller_shrinks_at_once(cache: BlobCache, tmp_path: Path) -> None:
    cache.keep_bytes(A)
    cache.keep_bytes(B)
    smaller = BlobCache(tmp_path / "cache", 50)
    assert sorted(here(smaller, A, B)) == [False, True]


def test_a_copy_that_somebody_deleted_is_not_found(cache: BlobCache) -> None:
    cache.keep_bytes(A).unlink()
    assert here(cache, A) == [False]
    assert cache.keep_bytes(A).read_bytes() == A
