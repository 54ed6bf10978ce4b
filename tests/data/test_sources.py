from __future__ import annotations

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from hfmds.data.packed import save_npz
from hfmds.data.sources import load_images
from hfmds.domain.learning import LabelledImages
from hfmds.errors import ConfigurationError


def write_image(path: Path, value: int = 0, size: tuple[int, int] = (4, 3), mode: str = "RGB"):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, value if mode == "L" else (value, 2, 3)).save(path)


def test_folder_classes_are_numbered_by_class_names(tmp_path: Path):
    write_image(tmp_path / "dog" / "b.png", 20)
    write_image(tmp_path / "dog" / "a.PNG", 10)
    write_image(tmp_path / "ant" / "c.bmp", 30)
    write_image(tmp_path / ".cache" / "x.png", 99)
    (tmp_path / "dog" / "notes.txt").write_text("not an image")
    images = load_images(str(tmp_path), ["cat", "dog", "ant"])
    assert images.labels.tolist() == [2, 1, 1]
    assert images.pixels.shape == (3, 3, 3, 4)  # channels first; Pillow's size is width, height
    assert images.pixels[:, :, 0, 0].tolist() == [[30, 2, 3], [10, 2, 3], [20, 2, 3]]


def test_folder_classes_are_their_numbers_without_class_names(tmp_path: Path):
    write_image(tmp_path / "7" / "a.jpg", 50, mode="L")
    write_image(tmp_path / "10" / "a.png", 60, mode="L")
    images = load_images(str(tmp_path))
    assert images.labels.tolist() == [10, 7]
    assert images.pixels.shape == (2, 1, 3, 4)
    assert images.pixels[:, 0, 0, 0].tolist() == [60, 50]


def test_npz_round_trip(tmp_path: Path):
    images = LabelledImages(
        np.arange(24, dtype=np.uint8).reshape(2, 3, 2, 2), np.array([4, 1], np.int64)
    )
    save_npz(tmp_path / "shard.npz", images)
    loaded = load_images(str(tmp_path / "shard.npz"))
    np.testing.assert_array_equal(loaded.pixels, images.pixels)
    np.testing.assert_array_equal(loaded.labels, images.labels)


def test_npz_labels_of_any_whole_number_type_are_taken(tmp_path: Path):
    np.savez(tmp_path / "s.npz", images=np.zeros((1, 1, 2, 2), np.uint8), labels=np.uint8([3]))
    assert load_images(str(tmp_path / "s.npz")).labels.dtype == np.int64


def test_digits_are_scaled_and_split_without_overlap():
    everything = load_images("digits:20")
    train, test = load_images("digits:20#train"), load_images("digits:20#test")
    assert everything.pixels.shape == (1797, 1, 20, 20)
    assert (everything.pixels.min(), everything.pixels.max()) == (0, 255)
    assert len(train) + len(test) == 1797
    assert 0.19 < len(test) / 1797 < 0.21
    counts = np.bincount(test.labels, minlength=10)
    assert counts.min() >= 35
    together = np.sort(np.concatenate([train.pixels, test.pixels]).reshape(1797, -1), axis=0)
    np.testing.assert_array_equal(together, np.sort(everything.pixels.reshape(1797, -1), axis=0))
    np.testing.assert_array_equal(train.pixels, load_images("digits:20#train").pixels)


def test_each_device_gets_its_own_digits_of_one_class():
    parts = [load_images(f"digits#train@{device}/20") for device in range(20)]
    classes = [np.unique(part.labels).tolist() for part in parts]
    assert all(len(own) == 1 for own in classes)
    for ten in (classes[:10], classes[10:]):  # any ten neighbours contain all classes
        assert sorted(ten) == [[c] for c in range(10)]
    assert {len(part) for part in parts} == {69}
    together = np.concatenate([part.pixels for part in parts]).reshape(20 * 69, -1)
    everything = load_images("digits#train").pixels.reshape(-1, 64)
    in_shards, total = (
        np.unique(labels, axis=0, return_counts=True) for labels in (together, everything)
    )
    known = {row.tobytes(): count for row, count in zip(*total, strict=True)}
    assert all(n <= known[row.tobytes()] for row, n in zip(*in_shards, strict=True))
    again = load_images("digits#train@3/20")
    np.testing.assert_array_equal(again.pixels, parts[3].pixels)


def test_digits_keep_their_own_size_by_default():
    assert load_images("digits").pixels.shape == (1797, 1, 8, 8)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("digits:7", "the size must be 8 to 256"),
        ("digits:9999", "the size must be 8 to 256"),
        ("digits@10/10", "there is no device 10 of 10, counted from 0; write @DEVICE"),
        ("digits@0/0", "there is no device 0 of 0"),
        ("digits@0/9999", "too few samples for 9999 devices"),
        ("digits:20#validation", r"does not exist; give .* digits\[:SIZE\]\[#train\|#test\]"),
        ("/no/such/place", "'/no/such/place' does not exist; give a folder"),
    ],
)
def test_a_missing_source_is_refused(source: str, message: str):
    with pytest.raises(ConfigurationError, match=message):
        load_images(source)


def test_a_file_of_another_kind_is_refused(tmp_path: Path):
    (tmp_path / "data.tsv").write_text("1,2")
    with pytest.raises(ConfigurationError, match=r"data\.tsv"):
        load_images(str(tmp_path / "data.tsv"))


def test_an_empty_folder_is_refused(tmp_path: Path):
    with pytest.raises(ConfigurationError, match=r"put images in .*/cat"):
        load_images(str(tmp_path), ["cat", "dog"])


def test_a_class_folder_without_images_is_refused(tmp_path: Path):
    (tmp_path / "0").mkdir()
    with pytest.raises(ConfigurationError, match="/0 "):
        load_images(str(tmp_path))


def test_an_unknown_class_is_refused(tmp_path: Path):
    write_image(tmp_path / "bird" / "a.png")
    with pytest.raises(ConfigurationError, match=r"/bird .*\(cat, dog\)"):
        load_images(str(tmp_path), ["cat", "dog"])
    with pytest.raises(ConfigurationError, match="/bird"):
        load_images(str(tmp_path))


@pytest.mark.parametrize(
    ("other", "described"), [({"size": (5, 3)}, "3x5 colour"), ({"mode": "L"}, "3x4 grey")]
)
def test_images_of_different_shapes_are_refused(tmp_path: Path, other: dict, described: str):
    write_image(tmp_path / "0" / "a.png")
    write_image(tmp_path / "1" / "b.png", **other)
    message = rf"1/b.png is {described}, but .*0/a.png is 3x4 colour; convert"
    with pytest.raises(ConfigurationError, match=message):
        load_images(str(tmp_path))


def test_an_unreadable_image_is_refused(tmp_path: Path):
    write_image(tmp_path / "0" / "a.png", size=(40, 40))
    content = (tmp_path / "0" / "a.png").read_bytes()
    (tmp_path / "0" / "a.png").write_bytes(b"hello")
    with pytest.raises(ConfigurationError, match=r"a\.png"):
        load_images(str(tmp_path))
    (tmp_path / "0" / "a.png").write_bytes(content[:60])
    with pytest.raises(ConfigurationError, match=r"a\.png"):
        load_images(str(tmp_path))


def test_a_name_too_long_for_a_file_is_refused():
    with pytest.raises(ConfigurationError, match=r"^xxx"):
        load_images("x" * 300)


PIXELS, LABELS = np.zeros((2, 1, 3, 3), np.uint8), np.zeros(2, np.int64)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": PIXELS}, r"arrays \['x'\], but no images and no labels; write it with"),
        ({"images": PIXELS}, "but no labels"),
        ({"images": PIXELS / 2, "labels": LABELS}, r"images are float64 \[2, 1, 3, 3\]"),
        ({"images": PIXELS[0], "labels": LABELS}, r"images are uint8 \[1, 3, 3\], but must be"),
        ({"images": PIXELS, "labels": LABELS / 2}, r"labels are float64 \[2\]"),
        ({"images": PIXELS, "labels": LABELS[:1]}, r"labels are int64 \[1\], but must be whole"),
        ({"images": PIXELS[:0], "labels": LABELS[:0]}, "has no images"),
        ({"images": np.array([{}]), "labels": LABELS}, "cannot be read as .npz .*allow_pickle"),
    ],
)
def test_an_npz_of_another_shape_is_refused(tmp_path: Path, arrays: dict, message: str):
    np.savez(tmp_path / "shard.npz", **arrays)
    with pytest.raises(ConfigurationError, match=message):
        load_images(str(tmp_path / "shard.npz"))


@pytest.mark.parametrize("content", [b"", b"not a zip", b"PK\x03\x04 cut short"])
def test_a_malformed_npz_is_refused(tmp_path: Path, content: bytes):
    (tmp_path / "shard.npz").write_bytes(content)
    with pytest.raises(ConfigurationError, match=r"shard\.npz"):
        load_images(str(tmp_path / "shard.npz"))


def test_an_npz_larger_than_memory_is_refused(tmp_path: Path):
    header = io.BytesIO()
    form = {"descr": "|u1", "fortran_order": False, "shape": (10**15, 1, 3, 3)}
    np.lib.format.write_array_header_1_0(header, form)
    with zipfile.ZipFile(tmp_path / "shard.npz", "w") as archive:
        archive.writestr("images.npy", header.getvalue())
        archive.writestr("labels.npy", b"")
    with pytest.raises(ConfigurationError, match=r"shard\.npz .*memory"):
        load_images(str(tmp_path / "shard.npz"))


def test_save_npz_requires_the_suffix(tmp_path: Path):
    with pytest.raises(ConfigurationError, match=r"must end in .npz"):
        save_npz(tmp_path / "shard", LabelledImages(PIXELS, LABELS))


def test_an_image_of_more_than_8_bits_is_refused_not_clipped(tmp_path: Path) -> None:
    (tmp_path / "0").mkdir()
    deep = np.full((4, 4), 40_000, np.uint16)
    Image.fromarray(deep).save(tmp_path / "0" / "deep.png")
    with pytest.raises(ConfigurationError, match=r"deep\.png.*8 bits"):
        load_images(str(tmp_path))
