"""Safetensors in and out, and bytes from somebody who means harm."""

import json
import os
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save

from hfmds.algorithm.aggregation.compression import TensorForm
from hfmds.domain.digest import digest_of
from hfmds.domain.learning import LabelledImages, SyntheticBatch
from hfmds.errors import InvalidInput
from hfmds.wire.tensors import (
    StoredTensors,
    StoredWeights,
    encode_batch,
    encode_update,
    encode_weights,
    read_batch,
    require_finite_weights,
)

WEIGHTS = {
    "fc.weight": np.arange(6, dtype=np.float32).reshape(2, 3),
    "fc.bias": np.array([0.5, -0.5], np.float32),
    "steps": np.array(3.0, np.float32),
}
FORMS = {name: TensorForm(tensor.dtype, tensor.shape) for name, tensor in WEIGHTS.items()}
BATCH = SyntheticBatch(
    LabelledImages(
        np.arange(24, dtype=np.uint8).reshape(2, 1, 3, 4), np.array([1, 0], dtype=np.int64)
    ),
    psnr_paired=np.array([9.5, 10.5], np.float32),
    psnr_nearest=np.array([11.5, 12.5], np.float32),
    ssim_paired=np.array([-0.25, 0.25], np.float32),
    ssim_nearest=np.array([0.5, 0.75], np.float32),
)
BATCH_TENSORS = {
    "images": BATCH.images.pixels,
    "labels": BATCH.images.labels,
    **BATCH.measurements,
}
SHARES = np.array([[0.25, 0.75, 0], [0.5, 0.5, 0]], np.float32)
MIXTURES = replace(BATCH, images=replace(BATCH.images, shares=SHARES))


def stored(folder: Path, content: bytes | dict[str, Any]) -> Path:
    path = folder / "content"
    path.write_bytes(content if isinstance(content, bytes) else save(content))
    return path


def header(content: dict[str, Any], length: int | None = None) -> bytes:
    text = json.dumps(content).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text


# --- encoding -----------------------------------------------------------------------------------


def test_weights_come_back_as_they_were(tmp_path: Path) -> None:
    weights = StoredWeights(stored(tmp_path, encode_weights(WEIGHTS)), "weights")
    assert list(weights) == sorted(WEIGHTS)
    assert len(weights) == 3
    for name, tensor in WEIGHTS.items():
        np.testing.assert_array_equal(weights[name], tensor)
        assert weights[name].dtype == np.float32


def test_a_batch_comes_back_as_it_was(tmp_path: Path) -> None:
    batch = read_batch(stored(tmp_path, encode_batch(BATCH)), "batch b")
    np.testing.assert_array_equal(batch.images.pixels, BATCH.images.pixels)
    np.testing.assert_array_equal(batch.images.labels, BATCH.images.labels)
    for name, values in BATCH.measurements.items():
        np.testing.assert_array_equal(batch.measurements[name], values)


def test_a_batch_in_half_precision_comes_back_as_it_was(tmp_path: Path) -> None:
    halves = (BATCH.images.pixels / 255).astype(np.float16)
    given = replace(BATCH, images=replace(BATCH.images, pixels=halves))
    batch = read_batch(stored(tmp_path, encode_batch(given)), "batch b", to_check=True)
    assert batch.images.pixels.dtype == np.float16
    np.testing.assert_array_equal(batch.images.pixels, halves)


def test_whoever_only_checks_a_batch_gets_all_but_its_pixels(tmp_path: Path) -> None:
    batch = read_batch(stored(tmp_path, encode_batch(BATCH)), "batch b", to_check=True)
    black = replace(BATCH, images=replace(BATCH.images, pixels=0 * BATCH.images.pixels))
    assert encode_batch(batch) == encode_batch(black)


@pytest.mark.parametrize("shape", [[0, 1 << 62, 4, 4], [0, 1 << 63, 1, 1], [0] * 70], ids=str)
def test_a_tensor_without_values_that_claims_to_be_huge_is_refused(
    tmp_path: Path, shape: list[int]
) -> None:
    empty = replace(
        BATCH,
        images=BATCH.images.take(np.array([], np.int64)),
        **{name: values[:0] for name, values in BATCH.measurements.items()},
    )
    encoded = encode_batch(empty)
    header = json.loads(encoded[8:])
    for name in ("images", "labels"):
        claims = json.dumps(header | {name: header[name] | {"shape": shape}}).encode()
        path = stored(tmp_path, len(claims).to_bytes(8, "little") + claims)
        for to_check in (False, True):
            with pytest.raises(InvalidInput, match="batch b: a tensor has a shape"):
                read_batch(path, "batch b", to_check=to_check)


def test_mixtures_come_back_with_their_shares(tmp_path: Path) -> None:
    path = stored(tmp_path, encode_batch(MIXTURES))
    for to_check in (False, True):
        batch = read_batch(path, "batch b", to_check=to_check)
        assert batch.images.shares is not None
        np.testing.assert_array_equal(batch.images.shares, SHARES)
        np.testing.assert_array_equal(batch.images.labels, BATCH.images.labels)
    assert read_batch(stored(tmp_path, encode_batch(BATCH)), "batch b").images.shares is None


def test_a_batch_without_shares_has_the_bytes_it_always_had() -> None:
    digest = "c9ec14e471256a9c1f6506b1bad1c3e676a9513a38c0dbb2c91a73ff5e3b7147"
    assert digest_of(encode_batch(BATCH)).sha256 == digest


def test_equal_weights_give_equal_bytes() -> None:
    reordered = {name: WEIGHTS[name] for name in reversed(WEIGHTS)}
    strided = {**WEIGHTS, "fc.weight": np.asfortranarray(WEIGHTS["fc.weight"])}
    assert encode_weights(reordered) == encode_weights(WEIGHTS)
    assert encode_weights(strided) == encode_weights(WEIGHTS)


def test_equal_batches_give_equal_bytes() -> None:
    twice = BATCH.images.pixels.repeat(2, axis=3)
    strided = replace(BATCH, images=LabelledImages(twice[..., ::2], BATCH.images.labels))
    assert not strided.images.pixels.flags.c_contiguous
    assert encode_batch(strided) == encode_batch(BATCH)


# --- hostile files ------------------------------------------------------------------------------

GOOD = encode_batch(BATCH)
LABELS = {"dtype": "I64", "shape": [2], "data_offsets": [0, 16]}
NOT_SAFETENSORS = {
    "nothing": b"",
    "a few bytes": b"\x01\x02\x03",
    "a pickle": b"\x80\x04\x95\x10\x00\x00\x00\x00\x00\x00\x00\x8c\x05posix",
    "truncated in the data": GOOD[:-1],
    "truncated in the header": GOOD[:50],
    "bytes after the data": GOOD + b"\x00",
    "a header longer than the file": header({"labels": LABELS}, length=10_000) + bytes(16),
    "a header of 2^63 bytes": header({"labels": LABELS}, length=2**63) + bytes(16),
    "a header that is no JSON": struct.pack("<Q", 8) + b"not json",
    "offsets outside the file": header({"labels": {**LABELS, "data_offsets": [0, 2**40]}}),
    "offsets that run backwards": header({"labels": {**LABELS, "data_offsets": [16, 0]}})
    + bytes(16),
    "a shape larger than its bytes": header({"labels": {**LABELS, "shape": [2**40]}}) + bytes(16),
    "a shape whose size overflows": header({"labels": {**LABELS, "shape": [2**62, 2**62]}})
    + bytes(16),
    "two tensors on the same bytes": header({"labels": LABELS, "psnr_paired": LABELS}) + bytes(16),
}


@pytest.mark.parametrize("what", NOT_SAFETENSORS)
def test_what_is_no_safetensors_file_is_refused(tmp_path: Path, what: str) -> None:
    path = stored(tmp_path, NOT_SAFETENSORS[what])
    with pytest.raises(InvalidInput, match="batch b: not a safetensors file"):
        read_batch(path, "batch b")
    with pytest.raises(InvalidInput, match="update u: not a safetensors file"):
        StoredWeights(path, "update u")


HALF, SHAPE = np.float16, BATCH.images.pixels.shape
SECOND_TWICE = np.array([[1], [2]], np.float32)
SKEW = np.array([0, 0.5, -0.5], np.float32)
NO_SAMPLES = {name: tensor[:0] for name, tensor in BATCH_TENSORS.items()}


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({n: t for n, t in BATCH_TENSORS.items() if n != "labels"}, "they must be"),
        ({}, "they must be"),
        ({**BATCH_TENSORS, "images": BATCH.images.pixels.astype(np.int8)}, "'images' is I8"),
        ({**BATCH_TENSORS, "labels": np.zeros(2, np.int32)}, "'labels' is I32"),
        ({**BATCH_TENSORS, "images": BATCH.images.pixels.astype(np.float32)}, "must be U8 or F16"),
        (
            {**BATCH_TENSORS, "images": np.array([0, 2], HALF).repeat(12).reshape(SHAPE)},
            "others: 1$",
        ),
        (
            {**BATCH_TENSORS, "images": np.full(SHAPE, np.nan, HALF)},
            "from 0 to 1; samples with others: 0, 1$",
        ),
        ({**BATCH_TENSORS, "psnr_paired": np.zeros(2, np.float64)}, "'psnr_paired' is F64"),
        ({**BATCH_TENSORS, "images": BATCH.images.pixels[0]}, r"float16 \[n, channels"),
        ({**BATCH_TENSORS, "labels": np.zeros(3, np.int64)}, r"labels must be int64 \[2\]"),
        ({**BATCH_TENSORS, "psnr_nearest": np.zeros((2, 1), np.float32)}, "psnr_nearest must be"),
        ({**BATCH_TENSORS, "psnr_nearest": np.array([1, np.nan], np.float32)}, "not finite"),
        ({**BATCH_TENSORS, "psnr_paired": np.array([1, np.inf], np.float32)}, "not finite"),
        ({**BATCH_TENSORS, "ssim_nearest": np.array([0, np.nan], np.float32)}, "not finite"),
        ({n: t for n, t in BATCH_TENSORS.items() if n != "ssim_paired"}, "they must be"),
        ({**BATCH_TENSORS, "shares": SHARES.astype(np.float64)}, "'shares' is F64"),
        ({**BATCH_TENSORS, "shares": SHARES[0]}, "class shares must be float32"),
        ({**BATCH_TENSORS, "shares": SHARES[:1]}, "class shares must be float32"),
        ({**BATCH_TENSORS, "shares": SHARES[:, :0]}, "class shares must be float32"),
        ({**BATCH_TENSORS, "shares": SHARES * 2}, "must sum to 1"),
        (
            {**BATCH_TENSORS, "shares": SHARES * SECOND_TWICE},
            "greatest for its label; samples with others: 1$",
        ),
        ({**BATCH_TENSORS, "shares": SHARES[::-1].copy()}, "greatest for its label"),
        ({**BATCH_TENSORS, "shares": SHARES + SKEW}, "must not be negative"),
        ({**BATCH_TENSORS, "shares": SHARES * np.float32(np.nan)}, "must not be negative"),
        ({**NO_SAMPLES, "shares": np.zeros((0, 0), np.float32)}, "class shares must be float32"),
    ],
)
def test_a_batch_with_other_tensors_is_refused(
    tmp_path: Path, tensors: dict[str, Any], message: str
) -> None:
    for to_check in (False, True):
        with pytest.raises(InvalidInput, match=message):
            read_batch(stored(tmp_path, tensors), "batch b", to_check=to_check)


@pytest.mark.parametrize("extra", [BATCH.psnr_paired, np.array([np.nan]), np.zeros((3, 1), bool)])
def test_a_tensor_of_a_later_version_is_ignored_but_not_admitted(
    tmp_path: Path, extra: Any
) -> None:
    path = stored(tmp_path, {**BATCH_TENSORS, "extra": extra})
    assert encode_batch(read_batch(path, "shard s")) == encode_batch(BATCH)
    with pytest.raises(InvalidInput, match=r"batch b: tensors are \['extra', "):
        read_batch(path, "batch b", to_check=True)


def test_a_tensor_of_a_later_version_makes_up_for_none_that_is_missing(tmp_path: Path) -> None:
    tensors = {**BATCH_TENSORS, "extra": BATCH.psnr_paired}
    del tensors["psnr_nearest"]
    for to_check in (False, True):
        with pytest.raises(InvalidInput, match="they must be"):
            read_batch(stored(tmp_path, tensors), "batch b", to_check=to_check)


def test_weights_of_another_type_are_refused(tmp_path: Path) -> None:
    path = stored(tmp_path, {**WEIGHTS, "fc.bias": np.zeros(2, np.float64)})
    with pytest.raises(InvalidInput, match=r"update u: tensor 'fc\.bias' is F64"):
        StoredWeights(path, "update u")


# --- stored weights -----------------------------------------------------------------------------


def test_stored_weights_know_shapes_without_reading_tensors(tmp_path: Path) -> None:
    weights = StoredWeights(stored(tmp_path, encode_weights(WEIGHTS)), "weights")
    assert weights.shapes() == {"fc.bias": (2,), "fc.weight": (2, 3), "steps": ()}


def test_stored_weights_are_read_anew_each_time_and_kept_by_nobody(tmp_path: Path) -> None:
    weights = StoredWeights(stored(tmp_path, encode_weights(WEIGHTS)), "weights")
    first = weights["fc.bias"]
    first[:] = 7
    np.testing.assert_array_equal(weights["fc.bias"], WEIGHTS["fc.bias"])


def test_an_unknown_tensor_is_a_key_error_as_in_any_mapping(tmp_path: Path) -> None:
    weights = StoredWeights(stored(tmp_path, encode_weights(WEIGHTS)), "weights")
    with pytest.raises(KeyError, match="nothing"):
        weights["nothing"]
    assert "nothing" not in weights
    assert weights.get("nothing") is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"fc.weight": np.zeros((3, 2), np.float32)}, r"'fc.weight' has shape \[3, 2\].*\[2, 3\]"),
        ({"other": np.zeros(1, np.float32)}, r"tensors not wanted: 'other'; send those that the"),
        ({"fc.bias": None}, r"tensors missing: 'fc.bias'; send those that"),
        (
            {"fc.bias": None, **{f"x{i}": np.zeros(1, np.float32) for i in range(7)}},
            r"missing: 'fc.bias'; tensors not wanted: 'x0', .*, 'x4' and 2 more",
        ),
        ({"fc.bias": np.zeros(2, np.float16)}, "tensor 'fc.bias' is F16, it must be F32"),
        ({"fc.bias": np.zeros(2, np.int8)}, "tensor 'fc.bias' is I8, it must be F32"),
        ({"fc.bias": np.zeros(2, np.float64)}, "tensor 'fc.bias' is F64, it must be F32"),
    ],
)
def test_an_update_that_is_not_what_was_wanted_is_refused(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    changed = {n: w for n, w in {**WEIGHTS, **change}.items() if w is not None}
    update = StoredTensors(stored(tmp_path, encode_update(changed)), "update u")
    with pytest.raises(InvalidInput, match=f"update u: .*{message}"):
        update.require_form(FORMS, "update u")


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_weights_that_are_not_finite_are_refused(tmp_path: Path, value: float) -> None:
    changed = {**WEIGHTS, "fc.bias": np.array([0, value], np.float32)}
    update = StoredWeights(stored(tmp_path, encode_weights(changed)), "update u")
    update.require_form(FORMS, "update u")
    with pytest.raises(InvalidInput, match=r"update u.*'fc\.bias' .*not"):
        require_finite_weights(update, "update u")


def test_values_that_are_not_finite_are_found_though_they_cancel_out(tmp_path: Path) -> None:
    changed = {**WEIGHTS, "steps": np.array(np.inf), "fc.bias": np.array([0, -np.inf], np.float32)}
    update = StoredWeights(stored(tmp_path, encode_weights(changed)), "update u")
    with pytest.raises(InvalidInput, match=r"update u.*'fc\.bias' .*not"):
        require_finite_weights(update, "update u")


def test_values_whose_sum_is_too_large_are_finite(tmp_path: Path) -> None:
    largest = {"w": np.full(9, np.finfo(np.float32).max), "v": np.ones(1, np.float32)}
    weights = StoredWeights(stored(tmp_path, encode_weights(largest)), "w")
    assert not weights.have_finite_sum()
    require_finite_weights(weights, "w")


@pytest.mark.parametrize("value", [1.0, np.nan])
@pytest.mark.parametrize("padding", range(4))
def test_values_at_any_place_of_a_file_are_looked_at(
    tmp_path: Path, padding: int, value: float
) -> None:
    described = {"w": {"dtype": "F32", "shape": [3], "data_offsets": [0, 12]}}
    text = json.dumps(described).encode()
    text += b" " * (padding - len(text) % 4 + 4)
    content = struct.pack("<Q", len(text)) + text + struct.pack("<3f", 1, 1, value)
    weights = StoredWeights(stored(tmp_path, content), "w")
    assert weights.have_finite_sum() == np.isfinite(value)
    if not np.isfinite(value):
        with pytest.raises(InvalidInput, match=r"'w'.*not finite"):
            require_finite_weights(weights, "w")


def test_tensors_of_several_types_are_looked_at_one_by_one(tmp_path: Path) -> None:
    half = np.array([0.5, np.inf], np.float16)
    packed = {"half": half, "quarter": np.ones(1, np.int8), "whole": np.ones(1, np.float32)}
    tensors = StoredTensors(stored(tmp_path, encode_update(packed)), "u")
    assert not tensors.have_finite_sum()
    with pytest.raises(InvalidInput, match=r"'half'.*not finite"):
        require_finite_weights(tensors, "u")


def test_what_is_known_of_a_header_is_known_of_files_of_its_length_only(tmp_path: Path) -> None:
    whole = encode_weights(WEIGHTS)
    for _ in range(2):
        assert StoredWeights(stored(tmp_path, whole), "weights").keys() == WEIGHTS.keys()
    for other in (whole[:-4], whole + bytes(4)):
        with pytest.raises(InvalidInput, match="not a safetensors file"):
            StoredWeights(stored(tmp_path, other), "weights")


def test_files_with_the_same_header_have_values_of_their_own(tmp_path: Path) -> None:
    for number in (1.0, 2.0):
        found = StoredWeights(stored(tmp_path, encode_weights({"w": np.full(3, number)})), "w")
        assert found["w"].tolist() == [number] * 3


def test_headers_that_are_too_long_to_be_remembered_are_read(tmp_path: Path) -> None:
    many = {f"{n}-{'long' * 40}": np.full(1, n, np.float32) for n in range(200)}
    for _ in range(2):
        found = StoredWeights(stored(tmp_path, encode_weights(many)), "weights")
        assert {name: float(found[name][0]) for name in found} == {n: v[0] for n, v in many.items()}


@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (2, 3)])
def test_finite_weights_of_any_shape_are_accepted(tmp_path: Path, shape: tuple[int, ...]) -> None:
    weights = {"first": np.ones(3, np.float32), "last": np.ones(shape, np.float32)}
    for some in (weights, {"last": weights["last"]}, {}):
        require_finite_weights(StoredWeights(stored(tmp_path, encode_weights(some)), "w"), "w")


def test_an_update_that_is_what_was_wanted_is_accepted(tmp_path: Path) -> None:
    weights = StoredWeights(stored(tmp_path, encode_weights(WEIGHTS)), "weights")
    weights.require_form(FORMS, "update u")
    require_finite_weights(weights, "update u")


def test_an_update_in_fewer_bytes_comes_back_as_it_was(tmp_path: Path) -> None:
    packed = {
        "half": np.array([[0.5, -2], [1e-7, 65504]], np.float16),
        "quarter": np.array([-127, 0, 127], np.int8),
        "scale/quarter": np.array(0.25, np.float32),
    }
    update = StoredTensors(stored(tmp_path, encode_update(packed)), "update u")
    assert list(update) == sorted(packed)
    for name, array in packed.items():
        assert update.dtype(name) == array.dtype
        assert update[name].shape == array.shape
        np.testing.assert_array_equal(update[name], array)
    update.require_form({n: TensorForm(a.dtype, a.shape) for n, a in packed.items()}, "update u")


def test_a_run_of_values_is_read_alone_also_when_the_file_is_gone(tmp_path: Path) -> None:
    weights = {
        "a": np.arange(12, dtype=np.float32).reshape(3, 4),
        "b": np.empty((0, 2), np.float32),
    }
    path = stored(tmp_path, encode_weights(weights))
    opened = StoredWeights(path, "weights")
    path.unlink()
    out = np.empty(5, np.float32)
    opened.read("a", 3, out)
    assert out.tolist() == [3, 4, 5, 6, 7]
    assert opened["b"].shape == (0, 2)
    assert opened.shape("a") == (3, 4)


def test_a_file_that_was_cut_after_it_was_opened_is_refused(tmp_path: Path) -> None:
    path = stored(tmp_path, encode_weights(WEIGHTS))
    opened = StoredWeights(path, "update u")
    os.truncate(path, path.stat().st_size - 4)
    with pytest.raises(InvalidInput, match="update u: the file ends within tensor"):
        {name: opened[name] for name in opened}
