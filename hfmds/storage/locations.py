"""Opens the storage of blobs by URL: a folder, or a bucket of an S3-compatible object store."""

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
    """A storage with several places, each with its own name and its own blobs."""

    def place(self, name: str = "") -> Blobs:
        """Return the blobs of a place; without a name, those of the location itself."""

    def remove(self, name: str) -> None:
        """Delete a place with its blobs; an absent place is no error."""


class Folder:
    """A folder on this machine, in which each place is a folder."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def place(self, name: str = "") -> FolderBlobs:
        """Return the blobs in a folder of this one."""
        return FolderBlobs(self._path / name)

    def remove(self, name: str) -> None:
        """Delete a folder of this one."""
        if name:
            remove_folder(self._path / name)


def open_location(url: str, cache_folder: Path, cache_max_bytes: int) -> BlobsLocation:
    """Open the location at a `file:///folder` or `s3://bucket/prefix` URL.

    The cache folder holds copies of a bucket's blobs; a folder needs no copies. ConfigurationError
    names the fault in the URL without showing the URL, which may hold keys.
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
        from hfmds.storage.object_blobs import Bucket  # needs obstore, which folders do not
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"HFMDS_BLOBS_URL asks for an object store, but its driver is missing ({error}); "
            f"pip install obstore"
        ) from error
    return Bucket(bucket, prefix, cache)
