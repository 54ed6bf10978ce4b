"""Damaged safetensors files: a length, a JSON header and the bytes of the tensors."""

from __future__ import annotations

import json
import struct
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from tests.fuzz.protobuf import damaged

_DTYPES = (
    "F32",
    "F16",
    "F64",
    "BF16",
    "I64",
    "I8",
    "U8",
    "BOOL",
    "F8_E4M3",
    "F4",
    "C64",
    "",
    "X",
    7,
)
_SIZES = (0, 1, 2, 3, 5, 24, 2**31, 2**32, 2**62, 2**63, 2**64, -1, 1.5, "2", None)
_NAMES = ("images", "labels", "shares", "fc.bias", "", "\0", "a" * 1000, "__metadata__", "../x")
_sizes = st.sampled_from(_SIZES)
_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=5,
)
_changes = {
    "dtype": st.sampled_from(_DTYPES),
    "shape": st.lists(_sizes, max_size=5),
    "data_offsets": st.lists(_sizes, min_size=2, max_size=2),
}


@st.composite
def almost(draw: DrawFn, valid: bytes) -> bytes:
    """Draw a valid file with a changed header or changed bytes."""
    if draw(st.booleans()):
        return draw(damaged(valid))
    length = struct.unpack_from("<Q", valid)[0]
    header: dict[str, Any] = json.loads(valid[8 : 8 + length])
    for _ in range(draw(st.integers(1, 3))):
        _change(draw, header)
    text = json.dumps(header).encode()
    lie = draw(st.sampled_from((0,) * 10 + (1, -1, 2**40, 2**63)))
    start = struct.pack("<Q", (len(text) + lie) % 2**64)
    rest = valid[8 + length :]
    return start + text + draw(st.sampled_from((rest, rest, rest, b"", rest[:-1], rest + b"x")))


def _change(draw: DrawFn, header: dict[str, Any]) -> None:
    name = draw(st.sampled_from(sorted(header))) if header else "x"
    match draw(st.sampled_from(("change", "change", "change", "drop", "rename", "copy", "json"))):
        case "change":
            part = draw(st.sampled_from(sorted(_changes)))
            if isinstance(header.get(name), dict):
                header[name][part] = draw(_changes[part])
        case "drop":
            header.pop(name, None)
        case "rename":
            header[draw(st.sampled_from(_NAMES))] = header.pop(name, None)
        case "copy":
            header[draw(st.sampled_from(_NAMES))] = header.get(name)
        case "json":
            header[name] = draw(_json)
