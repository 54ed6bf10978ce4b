from pathlib import Path

import pytest

from hfmds.errors import ConfigurationError
from hfmds.storage.locations import Folder, open_location
from tests.storage.blobs_suite import CONTENT


def test_a_folder_opens_by_url(tmp_path: Path) -> None:
    folder = tmp_path / "with space"
    digest = Folder(folder).place("run-1").put_bytes(CONTENT)
    location = open_location(folder.as_uri(), tmp_path / "cache", 1)
    assert location.place("run-1").contains(digest)
    assert not location.place("run-2").contains(digest)
    assert not location.place().contains(digest)
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize(
    ("url", "message"),
    [
        (
            "gs://key:pssst@bucket",
            "HFMDS_BLOBS_URL: gs:// is not supported; use file:///folder or s3://bucket/prefix",
        ),
        (
            "file://folder",
            "HFMDS_BLOBS_URL: file: needs three slashes and an absolute path: file:///folder",
        ),
        (
            "/folder",
            "HFMDS_BLOBS_URL is not a URL; use file:///folder or s3://bucket/prefix",
        ),
        (
            "s3://key:pssst@bucket/prefix",
            (
                "HFMDS_BLOBS_URL must not hold keys; set AWS_ACCESS_KEY_ID and "
                "AWS_SECRET_ACCESS_KEY, and use s3://bucket/prefix"
            ),
        ),
        ("s3:///prefix", "HFMDS_BLOBS_URL: s3: needs a bucket: s3://bucket/prefix"),
        (
            "s3://bucket?secret=pssst",
            "HFMDS_BLOBS_URL: s3: needs a bucket: s3://bucket/prefix",
        ),
    ],
)
def test_a_url_that_cannot_be_opened_is_refused(tmp_path: Path, url: str, message: str) -> None:
    with pytest.raises(ConfigurationError) as refusal:
        open_location(url, tmp_path, 1)
    assert str(refusal.value) == message
