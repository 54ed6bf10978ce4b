"""The cache keeps content in use and evicts the rest."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from edge_client.device.content_cache import ContentCache
from hfmds.domain.digest import digest_of
from hfmds.errors import LimitExceeded


def test_added_content_is_found(tmp_path: Path) -> None:
    cache = ContentCache(tmp_path, 100)
    digest = cache.put(b"hello")
    assert cache.claim(digest)
    assert cache.path(digest).read_bytes() == b"hello"
    assert not cache.claim(digest_of(b"other"))


def test_the_least_recently_used_content_is_evicted_first(tmp_path: Path) -> None:
    cache = ContentCache(tmp_path, 25)
    old, middle, new = (cache.put(letter * 10) for letter in (b"a", b"b", b"c"))
    assert cache.claim(old)  # this makes `middle` the oldest
    cache.evict(keep=())
    assert [cache.content.blobs.contains(d) for d in (old, middle, new)] == [True, False, True]


def test_content_in_use_is_never_evicted(tmp_path: Path) -> None:
    cache = ContentCache(tmp_path, 5)
    used, unused = cache.put(b"a" * 10), cache.put(b"b" * 10)
    cache.evict(keep={used})
    assert cache.content.blobs.contains(used)
    assert not cache.content.blobs.contains(unused)


def test_a_cache_below_its_limit_evicts_nothing(tmp_path: Path) -> None:
    cache = ContentCache(tmp_path, 20)
    digests = [cache.put(b"a" * 10), cache.put(b"b" * 10)]
    cache.evict(keep=())
    assert all(map(cache.claim, digests))


def test_altered_content_is_not_found(tmp_path: Path) -> None:
    cache = ContentCache(tmp_path, 100)
    digest = cache.put(b"hello")
    cache.path(digest).write_bytes(b"hellO")
    assert not cache.claim(digest)
    assert not cache.content.blobs.contains(digest)


def test_new_content_replaces_altered_content(tmp_path: Path) -> None:
    cache = ContentCache(tmp_path, 100)
    path = cache.path(cache.put(b"hello"))
    path.write_bytes(b"hellO")
    assert cache.path(cache.put(b"hello")).read_bytes() == b"hello"


def test_cache_outlives_the_process(tmp_path: Path) -> None:
    digest = ContentCache(tmp_path, 100).put(b"a" * 10)
    again = ContentCache(tmp_path, 5)
    assert again.claim(digest)
    again.evict(keep=())
    assert not again.claim(digest)


def cache_on_a_disk_of(
    size_bytes: int, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> ContentCache:
    """Return a cache on a disk without other files."""

    def usage(path: Path) -> SimpleNamespace:
        used = sum(digest.size_bytes for digest in cache.content.blobs.digests())
        return SimpleNamespace(free=size_bytes - used)

    cache = ContentCache(folder, 1000)
    monkeypatch.setattr(shutil, "disk_usage", usage)
    return cache


def test_a_full_disk_evicts_unused_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = cache_on_a_disk_of(30, tmp_path, monkeypatch)
    used, unused = cache.put(b"a" * 10), cache.put(b"b" * 10)
    cache.make_room(10, keep={used})
    assert cache.claim(unused)  # the disk had room
    cache.make_room(11, keep={used})
    assert cache.claim(used)
    assert not cache.claim(unused)


def test_a_disk_filled_by_other_files_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = cache_on_a_disk_of(30, tmp_path, monkeypatch)
    used = cache.put(b"a" * 10)
    with pytest.raises(LimitExceeded, match=r"21 bytes.*20"):
        cache.make_room(21, keep={used})


def test_content_that_cannot_be_read_is_fetched_anew(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = ContentCache(tmp_path, 100)
    digest = cache.put(b"hello")

    def refuse(path: Path) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr("hfmds.storage.blobs.digest_of_file", refuse)
    assert not cache.claim(digest)
    assert not cache.content.blobs.contains(digest)
    assert "Input/output error" in caplog.text


def test_unrelated_files_are_left_alone(tmp_path: Path) -> None:
    cache = ContentCache(tmp_path, 5)
    digest = cache.put(b"a" * 10)
    other = tmp_path / "uses" / "a copy"
    other.touch()
    cache.evict(keep=())
    assert not cache.claim(digest)
    assert other.exists()
