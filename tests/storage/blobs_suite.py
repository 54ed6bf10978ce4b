"""What every blob store must do: subclass `BlobsSuite` and give a `blobs` fixture."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hfmds.domain.digest import Digest, digest_of
from hfmds.errors import InvalidInput, NotFound
from hfmds.storage.blobs import Blobs, check_blobs, verify_blob

CONTENT = bytes(range(256)) * 40
ABSENT = digest_of(b"never put")


def file_with(folder: Path, content: bytes) -> Path:
    path = folder / "made elsewhere"
    path.write_bytes(content)
    return path


def content_of(blobs: Blobs, digest: Digest, **where: int) -> bytes:
    return b"".join(blobs.read(digest, **where))


class BlobsSuite:
    """The contract of `Blobs`, test by test."""

    def test_bytes_come_back_under_their_digest(self, blobs: Blobs) -> None:
        digest = blobs.put_bytes(CONTENT)
        assert digest == digest_of(CONTENT)
        assert blobs.contains(digest)
        assert content_of(blobs, digest) == CONTENT
        verify_blob(blobs, digest)

    def test_a_check_leaves_nothing(self, blobs: Blobs) -> None:
        check_blobs(blobs)
        assert not list(blobs.digests())

    def test_a_view_of_memory_can_be_put(self, blobs: Blobs) -> None:
        digest = blobs.put_bytes(memoryview(CONTENT)[1:])
        assert content_of(blobs, digest) == CONTENT[1:]

    def test_no_bytes_are_content_too(self, blobs: Blobs) -> None:
        digest = blobs.put_bytes(b"")
        assert blobs.contains(digest)
        assert content_of(blobs, digest) == b""

    def test_a_file_is_moved_in(self, blobs: Blobs, tmp_path: Path) -> None:
        path = file_with(tmp_path, CONTENT)
        digest = digest_of(CONTENT)
        blobs.put_file(digest, path)
        assert content_of(blobs, digest) == CONTENT
        assert not path.exists()

    def test_a_file_of_another_size_is_refused(self, blobs: Blobs, tmp_path: Path) -> None:
        digest = digest_of(CONTENT)
        with pytest.raises(InvalidInput) as refusal:
            blobs.put_file(digest, file_with(tmp_path, CONTENT[:-1]))
        assert str(refusal.value) == f"blob {digest} cannot be made of a file of 10239 bytes"
        assert not blobs.contains(digest)

    def test_putting_again_changes_nothing(self, blobs: Blobs, tmp_path: Path) -> None:
        digest = blobs.put_bytes(CONTENT)
        assert blobs.put_bytes(CONTENT) == digest
        path = file_with(tmp_path, CONTENT)
        blobs.put_file(digest, path)
        assert not path.exists()
        assert content_of(blobs, digest) == CONTENT
        assert sum(blob.size_bytes for blob in blobs.digests()) == len(CONTENT)

    def test_many_threads_may_put_the_same(self, blobs: Blobs) -> None:
        with ThreadPoolExecutor(8) as threads:
            digests = set(threads.map(blobs.put_bytes, [CONTENT] * 32))
        assert digests == {digest_of(CONTENT)}
        verify_blob(blobs, digest_of(CONTENT))
        assert sum(blob.size_bytes for blob in blobs.digests()) == len(CONTENT)

    def test_reading_goes_on_from_an_offset_in_chunks(self, blobs: Blobs) -> None:
        digest = blobs.put_bytes(CONTENT)
        chunks = list(blobs.read(digest, offset=100, chunk_bytes=4000))
        assert b"".join(chunks) == CONTENT[100:]
        assert [len(chunk) for chunk in chunks] == [4000, 4000, 2140]
        assert list(blobs.read(digest, offset=len(CONTENT))) == []

    @pytest.mark.parametrize("offset", [-1, len(CONTENT) + 1])
    def test_an_offset_outside_is_refused(self, blobs: Blobs, offset: int) -> None:
        digest = blobs.put_bytes(CONTENT)
        with pytest.raises(InvalidInput) as refusal:
            blobs.read(digest, offset=offset)
        assert str(refusal.value) == f"blob {digest} has no offset {offset}"

    def test_a_local_file_can_be_had(self, blobs: Blobs) -> None:
        digest = blobs.put_bytes(CONTENT)
        assert blobs.local_path(digest).read_bytes() == CONTENT

    def test_what_is_missing_is_named_at_the_call(self, blobs: Blobs) -> None:
        assert not blobs.contains(ABSENT)
        for use in (blobs.read, blobs.local_path):
            with pytest.raises(NotFound) as refusal:
                use(ABSENT)
            assert str(refusal.value) == f"blob {ABSENT} is not here"

    def test_the_right_hash_with_the_wrong_size_is_missing(self, blobs: Blobs) -> None:
        digest = blobs.put_bytes(CONTENT)
        assert not blobs.contains(Digest(digest.sha256, digest.size_bytes + 1))

    def test_deleting_forgets_and_may_be_repeated(self, blobs: Blobs) -> None:
        digest = blobs.put_bytes(CONTENT)
        blobs.delete(digest)
        blobs.delete(digest)
        assert not blobs.contains(digest)
        assert sum(blob.size_bytes for blob in blobs.digests()) == 0

    def test_the_total_counts_every_blob(self, blobs: Blobs) -> None:
        assert sum(blob.size_bytes for blob in blobs.digests()) == 0
        blobs.put_bytes(b"four")
        blobs.put_bytes(b"seven77")
        assert sum(blob.size_bytes for blob in blobs.digests()) == 11
