"""The cache keeps what is used and lets go of what is not."""

from __future__ import annotations

from pathlib import Path

from edge_client.cache import ContentCache
from hfmds.digest import digest_of


def test_content_put_is_here(tmp_path: Path) -> None:
    cache = ContentCache(tmp_path, 100)
    digest = cache.put(b"hello")
    assert cache.claim(digest)
    assert cache.path(digest).read_bytes() == b"hello"
    assert not cache.claim(digest_of(b"other"))


def test_least_recently_used_goes_first(tmp_path: Path) -> None:
    cache = ContentCache(tmp_path, 25)
    old, middle, new = (cache.put(letter * 10) for letter in (b"a", b"b", b"c"))
    assert cache.claim(old)  # used again: `middle` is the oldest now
    cache.evict(keep=())
    assert [cache.content.blobs.contains(d) for d in (old, middle, new)] == [True, False, True]


def test_content_in_use_stays_whatever_the_limit(tmp_path: Path) -> None:
    cache = ContentCache(tmp_path, 5)
    used, unused = cache.put(b"a" * 10), cache.put(b"b" * 10)
    cache.evict(keep={used})
    assert cache.content.blobs.contains(used)
    assert not cache.content.blobs.contains(unused)


def test_cache_below_its_limit_is_left_alone(tmp_path: Path) -> None:
    cache = ContentCache(tmp_path, 20)
    digests = [cache.put(b"a" * 10), cache.put(b"b" * 10)]
    cache.evict(keep=())
    assert all(map(cache.claim, digests))


def test_altered_content_is_not_here(tmp_path: Path) -> None:
    cache = ContentCache(tmp_path, 100)
    digest = cache.put(b"hello")
    cache.path(digest).write_bytes(b"hellO")
    assert not cache.claim(digest)
    assert not cache.content.blobs.contains(digest)


def test_cache_outlives_the_process(tmp_path: Path) -> None:
    digest = ContentCache(tmp_path, 100).put(b"a" * 10)
    again = ContentCache(tmp_path, 5)
    assert again.claim(digest)
    again.evict(keep=())
    assert not again.claim(digest)
