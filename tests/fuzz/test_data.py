"""A device's own images in damaged files."""

from __future__ import annotations

import io
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from hfmds.data.sources import load_images
from hfmds.errors import HfmdsError
from tests.fuzz.budget import tried
from tests.fuzz.protobuf import damaged

PIXELS = np.arange(2 * 1 * 4 * 3, dtype=np.uint8).reshape(2, 1, 4, 3)
LABELS = np.array([1, 0])


def npy(array: np.ndarray) -> bytes:  # type: ignore[type-arg]
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def npz(save: Callable[..., None]) -> bytes:
    file = io.BytesIO()
    save(file, images=PIXELS, labels=LABELS)
    return file.getvalue()


def picture(kind: str) -> bytes:
    file = io.BytesIO()
    Image.fromarray(PIXELS[0, 0]).save(file, kind)
    return file.getvalue()


def npy_header(data: bytes, declared: str) -> bytes:
    """Replace the header of an .npy file."""
    text = declared.encode().ljust(118) + b"\n"
    return data[:8] + struct.pack("<H", len(text)) + text + data[128:]


_shapes = st.lists(st.sampled_from((0, 1, 2, 4, 3, -1, 2**31, 2**62, 2**64)), max_size=5).map(tuple)
_descriptions = st.builds(
    lambda kind, shape, order: (
        f"{{'descr': {kind!r}, 'fortran_order': {order}, 'shape': {shape}, }}"
    ),
    st.sampled_from(("|u1", "<f4", "|O", "<U5", "|S3", "|V0", "<i8", "x", "<M8[s]", "|u1" * 30)),
    _shapes,
    st.booleans(),
)
_headers = _descriptions | st.sampled_from(
    ("{}", "[]", "1", "__import__('os')", "(" * 50, "{'a':" * 30)
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("data")


def loads_or_refuses(source: Path) -> None:
    with suppress(HfmdsError):
        images = load_images(str(source))
        assert len(images.labels) == len(images.pixels)


@tried(80)
@given(content=damaged(npz(np.savez)) | damaged(npz(np.savez_compressed)) | st.binary(max_size=50))
def test_fuzzed_npz_files_are_read_or_refused(folder: Path, content: bytes) -> None:
    (folder / "shard.npz").write_bytes(content)
    loads_or_refuses(folder / "shard.npz")


@tried(80)
@given(
    images=damaged(npy(PIXELS)) | _headers.map(lambda declared: npy_header(npy(PIXELS), declared)),
    labels=st.just(npy(LABELS)) | damaged(npy(LABELS)),
)
def test_fuzzed_npy_files_are_read_or_refused(folder: Path, images: bytes, labels: bytes) -> None:
    (folder / "shard-images.npy").write_bytes(images)
    (folder / "shard-labels.npy").write_bytes(labels)
    loads_or_refuses(folder / "shard-images.npy")


_cells = st.sampled_from(
    ("path", "label", "a.png", "0", "", '"', "\0", "../..", "x" * 300, "1" * 30, "\n", "ü")
)


@tried(80)
@given(
    content=st.lists(st.lists(_cells, max_size=4).map(",".join), max_size=4)
    .map("\n".join)
    .map(str.encode)
    | damaged(b"path,label\na.png,0\na.png,1\n")
)
def test_fuzzed_manifests_are_read_or_refused(folder: Path, content: bytes) -> None:
    (folder / "a.png").write_bytes(picture("PNG"))
    (folder / "list.csv").write_bytes(content)
    loads_or_refuses(folder / "list.csv")


# Pillow warns about broken and large pictures.
@pytest.mark.filterwarnings("ignore::UserWarning:PIL.TiffImagePlugin")
@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "BMP", "WEBP", "TIFF"])
@tried(40)
@given(data=st.data())
def test_fuzzed_pictures_are_read_or_refused(folder: Path, kind: str, data: st.DataObject) -> None:
    place = folder / kind / "0"
    place.mkdir(parents=True, exist_ok=True)
    (place / f"a.{kind.lower()}").write_bytes(data.draw(damaged(picture(kind))))
    loads_or_refuses(place.parent)
