"""Where blobs are kept, by URL: a folder, or a bucket of an S3-compatible object store."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol
from urllib.parse import unquote, urlsplit

from hfmds.errors import ConfigurationError
from hfmds.storage.blob_cache import BlobCache
from hfmds.storage.blobs import Blobs, FolderBlobs
from hfmds.storage.files import remove_folder

_SUPPORTED = "use file:///folder or s3://bucket/prefix"


class BlobsLocation(Protocol):
    """Where blobs are kept: several places by name, none of which knows the others' blobs."""

    def place(self, name: str = "") -> Blobs:
        """The blobs kept under a name; without one, at the location itself."""

    def remove(self, name: str) -> None:
        """Delete all that is kept under a name; what is gone already is no error."""


class Folder:
    """A location on this machine; each place is a folder."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def place(self, name: str = "") -> FolderBlobs:
        """The blobs in a folder of this one."""
        return FolderBlobs(self._path / name)

    def remove(self, name: str) -> None:
        """Delete a folder of this one."""
        if name:
            remove_folder(self._path / name)


def open_location(url: str, cache_folder: Path, cache_max_bytes: int) -> BlobsLocation:
    """The location at a `file:///folder` or `s3://bucket/prefix` URL.

    Content of a bucket is copied to the cache folder when it is used; a folder needs no copies.
    ConfigurationError names what is wrong with the URL, never the whole of it.
    """
    parts = urlsplit(url)
    match parts.scheme:
        case "file" if not parts.netloc and parts.path.startswith("/"):
            return Folder(Path(unquote(parts.path)))
        case "file":
            raise ConfigurationError(
                "HFMDS_BLOBS_URL: file: needs three slashes and an absolute path: file:///folder"
            )
        case "s3" if "@" in parts.netloc:
            raise ConfigurationError(
                "HFMDS_BLOBS_URL must not hold keys; set AWS_ACCESS_KEY_ID and "
                "AWS_SECRET_ACCESS_KEY, and use s3://bucket/prefix"
            )
        case "s3" if parts.netloc and not parts.query and not parts.fragment:
            return _bucket(
                parts.netloc,
                unquote(parts.path).strip("/"),
                BlobCache(cache_folder, cache_max_bytes),
            )
        case "s3":
            raise ConfigurationError("HFMDS_BLOBS_URL: s3: needs a bucket: s3://bucket/prefix")
        case "":
            raise ConfigurationError(f"HFMDS_BLOBS_URL is not a URL; {_SUPPORTED}")
        case scheme:
            raise ConfigurationError(f"HFMDS_BLOBS_URL: {scheme}:// is not supported; {_SUPPORTED}")


def _bucket(bucket: str, prefix: str, cache: BlobCache) -> BlobsLocation:
    try:
        from hfmds.storage.object_blobs import Bucket  # an installation with folders needs no S3
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"HFMDS_BLOBS_URL asks for an object store, but its driver is missing ({error}); "
            f"pip install obstore"
        ) from error
    return Bucket(bucket, prefix, cache)
