"""Blobs in an S3-compatible object store, by way of local copies.

An object is named by its SHA-256, so writing it twice writes the same bytes: no write needs a
condition, and stores without conditional writes will do. An object is there whole or not at all,
and stays once the store has said that it has it.

Keys and the endpoint come from the usual variables (`AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`,
`AWS_ENDPOINT_URL`, `AWS_REGION` and so on), which obstore reads itself.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Iterable, Iterator, Sequence
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

# What is in memory at a time: one part of a download, so many of an upload.
_PART_BYTES = 8 * 1024 * 1024
_PARTS_AT_ONCE = 4

_PROBE = "hfmds-was-here"
_NOBODYS = Digest("0" * 64, 0)
_HEX_SHA256 = re.compile(r"[0-9a-f]{64}")
_CODE = re.compile(r"<Code>(\w+)</Code>")  # in S3's answer to a request that failed


class Bucket:
    """A bucket, or what is below a prefix in it, found to be usable."""

    def __init__(self, bucket: str, prefix: str, cache: BlobCache) -> None:
        """ConfigurationError if we may not use it; Unavailable if the store is away."""
        self._prefix = f"{prefix}/" if prefix else ""
        self._shown = f"s3://{bucket}/{prefix}".rstrip("/")
        self._cache = cache
        try:
            self._store = S3Store(
                bucket,
                client_options={
                    "allow_http": True,  # if the endpoint that the operator names is plain HTTP
                    "connect_timeout": timedelta(seconds=5),
                    "timeout": timedelta(seconds=60),
                },
                retry_config={"max_retries": 4, "retry_timeout": timedelta(seconds=20)},
            )
        except (BaseError, ValueError) as error:
            raise ConfigurationError(
                f"HFMDS_BLOBS_URL: {self._shown} cannot be opened: {_reason(error)}; look at the "
                f"variables that begin with AWS_"
            ) from None
        self._try_out(bucket)
        log.info("content is kept in %s", self._shown)

    def place(self, name: str = "") -> ObjectBlobs:
        """The blobs below a name."""
        prefix = f"{self._prefix}{name}/" if name else self._prefix
        return ObjectBlobs(self._store, self._shown, prefix, self._cache)

    def remove(self, name: str) -> None:
        """Delete all blobs below a name."""
        blobs = self.place(name)
        for digest in list(blobs.digests()) if name else ():
            blobs.delete(digest)

    def _try_out(self, bucket: str) -> None:
        """Write, list and delete: better refused at the start than when the first update comes."""
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
    """Blobs as objects whose keys begin with `prefix`; what is read or written is also cached."""

    def __init__(self, store: S3Store, shown: str, prefix: str, cache: BlobCache) -> None:
        self._store = store
        self._shown = shown
        self._prefix = prefix
        self._cache = cache

    def contains(self, digest: Digest) -> bool:
        return self._size_bytes(digest) == digest.size_bytes

    def look(self) -> None:
        self.contains(_NOBODYS)

    def confirm(self, digest: Digest) -> bool:
        return self.contains(digest)  # the object store shows nothing that it might lose

    def put_bytes(self, data: bytes | memoryview) -> Digest:
        digest = digest_of(data)
        if not self.contains(digest):
            with self._cache.keep_bytes(data).open("rb") as file:
                self._upload(digest, file)
        return digest

    def put_pieces(self, digest: Digest, pieces: Sequence[bytes | memoryview]) -> None:
        with self._cache.keep_pieces(digest, pieces).open("rb") as file:
            self._upload(digest, file)

    def put_file(self, digest: Digest, path: Path) -> None:
        require_size(digest, path)
        if not self.contains(digest):
            with path.open("rb") as file:
                self._upload(digest, file)
        self._cache.keep_file(digest, path)

    def read(
        self, digest: Digest, offset: int = 0, chunk_bytes: int = CHUNK_BYTES
    ) -> Iterator[bytes]:
        path = self.local_path(digest)
        require_offset(digest, offset)
        file = path.open("rb")  # now, not at the first chunk: by then the copy may have left
        file.seek(offset)
        return _chunks(file, chunk_bytes)

    def local_path(self, digest: Digest) -> Path:
        # A copy answers for itself: content by digest cannot be out of date.
        path = self._cache.find(digest)
        if path is None:
            with self._cache.fetching(digest):
                path = self._cache.find(digest) or self._fetch(digest)
        return path

    def set_aside(self, digest: Digest) -> None:
        pass  # the copy is not on disk yet, but in memory that the kernel takes when it likes

    def delete(self, digest: Digest) -> None:
        if self.contains(digest):  # the hash alone, with a wrong size, names nothing here
            with self._errors_told():
                obstore.delete(self._store, self._key(digest))
        self._cache.forget(digest)

    def recycle(self, digests: Iterable[Digest]) -> None:
        for digest in digests:
            self.delete(digest)

    def free_recycled(self) -> None:
        pass  # an object that is deleted leaves no room of ours

    def forget_deleted(self) -> int:
        copies = self._cache.digests()  # before the listing: what comes meanwhile is not in it
        deleted = copies.difference(self.digests()) if copies else set()
        for digest in deleted:
            self._cache.forget(digest)
        return len(deleted)

    def verify(self, digest: Digest) -> None:
        size_bytes = self._size_bytes(digest)
        if size_bytes is None:
            raise missing_blob(digest)
        sha256 = hashlib.sha256()
        for part in self._parts(digest, size_bytes):
            sha256.update(part)
        self._require_same(digest, Digest(sha256.hexdigest(), size_bytes))

    def digests(self) -> Iterator[Digest]:
        with self._errors_told():
            for page in obstore.list(self._store, self._prefix or None):
                for found in page:
                    name = found["path"].removeprefix(self._prefix)
                    if _HEX_SHA256.fullmatch(name):  # else of another place below this one
                        yield Digest(name, found["size"])

    def _key(self, digest: Digest) -> str:
        return f"{self._prefix}{digest.sha256}"

    def _size_bytes(self, digest: Digest) -> int | None:
        with self._errors_told():
            try:
                return obstore.head(self._store, self._key(digest))["size"]
            except FileNotFoundError:
                return None

    def _upload(self, digest: Digest, file: BinaryIO) -> None:
        with self._errors_told():
            obstore.put(
                self._store,
                self._key(digest),
                file,
                chunk_size=_PART_BYTES,
                max_concurrency=_PARTS_AT_ONCE,
            )

    def _fetch(self, digest: Digest) -> Path:
        """Make a copy, compared with its digest."""
        if not self.contains(digest):
            raise missing_blob(digest)
        sha256, draft = hashlib.sha256(), self._cache.new_file()
        try:
            with full_disk_is_unavailable(draft.parent), draft.open("wb") as file:
                for part in self._parts(digest, digest.size_bytes):
                    sha256.update(part)
                    file.write(part)
            self._require_same(digest, Digest(sha256.hexdigest(), digest.size_bytes))
            return self._cache.keep_file(digest, draft)
        finally:
            draft.unlink(missing_ok=True)

    def _parts(self, digest: Digest, size_bytes: int) -> Iterator[memoryview]:
        """The content; each part a request of its own, so that none has to last long."""
        for start in range(0, size_bytes, _PART_BYTES):
            length = min(_PART_BYTES, size_bytes - start)
            with self._errors_told():
                try:
                    part = obstore.get_range(
                        self._store, self._key(digest), start=start, length=length
                    )
                except FileNotFoundError:  # deleted meanwhile
                    raise missing_blob(digest) from None
            yield memoryview(part)

    def _require_same(self, digest: Digest, found: Digest) -> None:
        if found != digest:
            raise CorruptData(
                f"blob {digest} has changed: {self._key(digest)} in {self._shown} now holds "
                f"{found}; delete it",
                public=f"blob {digest} has changed where it is kept",
            )

    @contextmanager
    def _errors_told(self) -> Iterator[None]:
        try:
            yield
        except (BaseError, FileNotFoundError) as error:  # not found: the bucket itself is gone
            raise _away(self._shown, error) from None


def _chunks(file: BinaryIO, chunk_bytes: int) -> Iterator[bytes]:
    with file:
        while chunk := file.read(chunk_bytes):
            yield chunk


def _away(shown: str, error: Exception) -> Unavailable:
    return Unavailable(
        f"the object store {shown} does not do its work: {_reason(error)}; is it running, and are "
        f"HFMDS_BLOBS_URL, AWS_ENDPOINT_URL and AWS_ACCESS_KEY_ID right?",
        public="the object store does not do its work; try again",
    )


def _is_refusal(error: BaseError) -> bool:
    refused = isinstance(error, PermissionDeniedError | UnauthenticatedError)
    return refused or "status code: 403" in str(error)  # of a listing


def _reason(error: Exception) -> str:
    """S3's own word for it, or the first line; what follows there is of no use to operators."""
    code = _CODE.search(str(error))
    return code[1] if code else str(error).partition("\n")[0].strip()
