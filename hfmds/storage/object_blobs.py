"""Blobs in an S3-compatible object store, with local copies.

An object is named by its SHA-256, so writing it twice writes the same bytes. No write needs a
condition, so stores without conditional writes are good enough. An object is complete or absent,
and it stays after the store has acknowledged it.

obstore reads the keys and the endpoint from the usual variables: `AWS_ACCESS_KEY_ID`,
`AWS_SECRET_ACCESS_KEY`, `AWS_ENDPOINT_URL`, `AWS_REGION` and so on.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import BinaryIO

import obstore
from obstore.exceptions import BaseError, PermissionDeniedError, UnauthenticatedError
from obstore.store import S3Store

from hfmds.domain.digest import Digest, digest_of
from hfmds.errors import ConfigurationError, CorruptData, Unavailable
from hfmds.storage.blob_cache import BlobCache
from hfmds.storage.blobs import CHUNK_BYTES, missing_blob, require_offset, require_size
from hfmds.storage.files import full_disk_is_unavailable

log = logging.getLogger(__name__)

# Memory holds one part of a download, and this many of an upload.
_PART_BYTES = 8 * 1024 * 1024
_PARTS_AT_ONCE = 4

_PROBE = "hfmds-was-here"
_HEX_SHA256 = re.compile(r"[0-9a-f]{64}")
_CODE = re.compile(r"<Code>(\w+)</Code>")  # in S3's answer to a failed request


class Bucket:
    """A bucket, or the part of it below a prefix."""

    def __init__(self, bucket: str, prefix: str, cache: BlobCache) -> None:
        """Try the bucket: ConfigurationError if it is unusable, Unavailable if it is away."""
        self._prefix = f"{prefix}/" if prefix else ""
        self._shown = f"s3://{bucket}/{prefix}".rstrip("/")
        self._cache = cache
        try:
            self._store = S3Store(
                bucket,
                client_options={
                    "allow_http": True,  # for an operator's endpoint without TLS
                    "connect_timeout": timedelta(seconds=5),
                    "timeout": timedelta(seconds=60),
                },
                retry_config={"max_retries": 4, "retry_timeout": timedelta(seconds=20)},
            )
        except (BaseError, ValueError) as error:
            raise ConfigurationError(
                f"HFMDS_BLOBS_URL: {self._shown} cannot be opened: {_reason(error)}; check the "
                f"variables that begin with AWS_"
            ) from None
        self._try_out(bucket)
        log.info("content is kept in %s", self._shown)

    def place(self, name: str = "") -> ObjectBlobs:
        """Return the blobs below a name."""
        prefix = f"{self._prefix}{name}/" if name else self._prefix
        return ObjectBlobs(self._store, self._shown, prefix, self._cache)

    def remove(self, name: str) -> None:
        """Delete all blobs below a name."""
        blobs = self.place(name)
        for digest in list(blobs.digests()) if name else ():
            blobs.delete(digest)

    def _try_out(self, bucket: str) -> None:
        """Write, list and delete, so that wrong keys fail at the start, not at the first update."""
        key = f"{self._prefix}{_PROBE}"
        try:
            obstore.put(self._store, key, b"")
            next(iter(obstore.list(self._store, self._prefix or None, chunk_size=1)), None)
            obstore.delete(self._store, key)
        except FileNotFoundError:
            raise ConfigurationError(
                f"HFMDS_BLOBS_URL: there is no bucket {bucket!r}; make it, or name another"
            ) from None
        except BaseError as error:
            if not _is_refusal(error):
                raise _away(self._shown, error) from None
            raise ConfigurationError(
                f"HFMDS_BLOBS_URL: {self._shown} may not be used with these keys "
                f"({_reason(error)}); check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, and that "
                f"they may put, get, list and delete"
            ) from None


class ObjectBlobs:
    """Blobs as objects whose keys begin with `prefix`, with a local copy of each blob in use."""

    def __init__(self, store: S3Store, shown: str, prefix: str, cache: BlobCache) -> None:
        self._store = store
        self._shown = shown
        self._prefix = prefix
        self._cache = cache

    def contains(self, digest: Digest) -> bool:
        return self._size_bytes(digest) == digest.size_bytes

    def put_bytes(self, data: bytes | memoryview) -> Digest:
        digest = digest_of(data)
        if not self.contains(digest):
            with self._cache.keep_bytes(data).open("rb") as file:
                self._upload(digest, file)
        return digest

    def put_file(self, digest: Digest, path: Path) -> None:
        require_size(digest, path)
        with path.open("rb") as file:
            self._upload(digest, file)
        self._cache.keep_file(digest, path)

    def read(
        self, digest: Digest, offset: int = 0, chunk_bytes: int = CHUNK_BYTES
    ) -> Iterator[bytes]:
        path = self.local_path(digest)
        require_offset(digest, offset)
        file = path.open("rb")  # opened now, because the copy may leave before the first chunk
        file.seek(offset)
        return _chunks(file, chunk_bytes)

    def local_path(self, digest: Digest) -> Path:
        # A copy is never out of date, because its name is its content.
        path = self._cache.find(digest)
        if path is None:
            with self._cache.fetching(digest):
                path = self._cache.find(digest) or self._fetch(digest)
        return path

    def delete(self, digest: Digest) -> None:
        if self.contains(digest):  # the same hash with another size is no blob
            with self._errors_are_ours():
                obstore.delete(self._store, self._key(digest))
        self._cache.forget(digest)

    def forget_deleted(self) -> int:
        copies = self._cache.digests()  # before the listing, which lacks later blobs
        deleted = copies.difference(self.digests()) if copies else set()
        for digest in deleted:
            self._cache.forget(digest)
        return len(deleted)

    def digests(self) -> Iterator[Digest]:
        with self._errors_are_ours():
            for page in obstore.list(self._store, self._prefix or None):
                for entry in page:
                    name = entry["path"].removeprefix(self._prefix)
                    if _HEX_SHA256.fullmatch(name):  # not an object of a place below this one
                        yield Digest(name, entry["size"])

    def _key(self, digest: Digest) -> str:
        return f"{self._prefix}{digest.sha256}"

    def _size_bytes(self, digest: Digest) -> int | None:
        with self._errors_are_ours():
            try:
                return obstore.head(self._store, self._key(digest))["size"]
            except FileNotFoundError:
                return None

    def _upload(self, digest: Digest, file: BinaryIO) -> None:
        with self._errors_are_ours():
            obstore.put(
                self._store,
                self._key(digest),
                file,
                chunk_size=_PART_BYTES,
                max_concurrency=_PARTS_AT_ONCE,
            )

    def _fetch(self, digest: Digest) -> Path:
        """Make a copy, and compare it with its digest."""
        if not self.contains(digest):
            raise missing_blob(digest)
        sha256, draft = hashlib.sha256(), self._cache.new_file()
        try:
            with full_disk_is_unavailable(draft.parent), draft.open("wb") as file:
                for part in self._parts(digest):
                    sha256.update(part)
                    file.write(part)
            actual = Digest(sha256.hexdigest(), digest.size_bytes)
            if actual != digest:
                raise CorruptData(
                    f"blob {digest} has changed: {self._key(digest)} in {self._shown} now holds "
                    f"{actual}; delete it",
                    public=f"blob {digest} has changed in its storage",
                )
            return self._cache.keep_file(digest, draft)
        finally:
            draft.unlink(missing_ok=True)

    def _parts(self, digest: Digest) -> Iterator[memoryview]:
        """Yield the content. Each part is a request of its own, so no request takes long."""
        for start in range(0, digest.size_bytes, _PART_BYTES):
            length = min(_PART_BYTES, digest.size_bytes - start)
            with self._errors_are_ours():
                try:
                    part = obstore.get_range(
                        self._store, self._key(digest), start=start, length=length
                    )
                except FileNotFoundError:  # another machine deleted it
                    raise missing_blob(digest) from None
            yield memoryview(part)

    @contextmanager
    def _errors_are_ours(self) -> Iterator[None]:
        try:
            yield
        except (BaseError, FileNotFoundError) as error:  # not found means that the bucket is gone
            raise _away(self._shown, error) from None


def _chunks(file: BinaryIO, chunk_bytes: int) -> Iterator[bytes]:
    with file:
        while chunk := file.read(chunk_bytes):
            yield chunk


def _away(shown: str, error: Exception) -> Unavailable:
    return Unavailable(
        f"the object store {shown} does not work: {_reason(error)}; check that it runs, and that "
        f"HFMDS_BLOBS_URL, AWS_ENDPOINT_URL and AWS_ACCESS_KEY_ID are right",
        public="the object store does not work; try again",
    )


def _is_refusal(error: BaseError) -> bool:
    refused = isinstance(error, PermissionDeniedError | UnauthenticatedError)
    return refused or "status code: 403" in str(error)  # a listing raises no other class


def _reason(error: Exception) -> str:
    """Return S3's error code, or the first line; the rest is of no use to operators."""
    code = _CODE.search(str(error))
    return code[1] if code else str(error).partition("\n")[0].strip()
