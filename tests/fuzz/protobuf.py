"""Hostile messages: changed valid messages, and arbitrary messages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

M = TypeVar("M", bound=Message)

_BITS = {
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
    FieldDescriptor.CPPTYPE_ENUM: (-(2**31), 2**31 - 1),
}
_NUMBERS = (0, 1, -1, 2, 3, 7, 99, 1000, 2**20, 2**31 - 1, 2**31, 2**53 + 1, 2**63 - 1, -(2**63))
_FLOATS = (
    0.0,
    -0.0,
    1.0,
    -1.0,
    0.5,
    1e-320,
    1e-9,
    1e9,
    1e38,
    1e308,
    *map(float, ("nan", "inf", "-inf")),
)
_TEXTS = (
    "",
    "a",
    "\0",
    "../../etc/passwd",
    "a/b",
    "ü" * 200,
    "x" * 5000,
    "run-1",
    "\n",
    "NaN",
    "=",
)
_DEEPEST = 4


def _scalars(field: FieldDescriptor) -> SearchStrategy[Any]:
    kind = field.cpp_type
    if kind in _BITS:
        low, high = _BITS[kind]
        edges = st.sampled_from([low, high, *(n for n in _NUMBERS if low <= n <= high)])
        return edges | st.integers(low, high)
    if kind == FieldDescriptor.CPPTYPE_BOOL:
        return st.booleans()
    if kind in (FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE):
        return st.sampled_from(_FLOATS) | st.floats()
    if field.type == FieldDescriptor.TYPE_BYTES:
        return st.binary(max_size=40)
    return st.sampled_from(_TEXTS) | st.text(st.characters(exclude_categories=("Cs",)), max_size=20)


def _is_map(field: FieldDescriptor) -> bool:
    kind = field.message_type
    return kind is not None and bool(kind.GetOptions().map_entry)


def _set(draw: DrawFn, message: Message, field: FieldDescriptor, depth: int) -> None:
    """Draw a new value for this field."""
    name = field.name
    if _is_map(field):
        key, value = (field.message_type.fields_by_name[part] for part in ("key", "value"))
        target = getattr(message, name)
        if value.message_type is None:
            target[draw(_scalars(key))] = draw(_scalars(value))
        else:
            _fill(draw, target[draw(_scalars(key))], depth + 1)
    elif field.is_repeated:
        target = getattr(message, name)
        for _ in range(draw(st.sampled_from((1, 1, 2, 40)))):
            if field.message_type is None:
                target.append(draw(_scalars(field)))
            else:
                _fill(draw, target.add(), depth + 1)
    elif field.message_type is not None:
        _fill(draw, getattr(message, name), depth + 1)
    else:
        setattr(message, name, draw(_scalars(field)))


def _fill(draw: DrawFn, message: Message, depth: int) -> None:
    message.SetInParent()
    fields = list(message.DESCRIPTOR.fields)
    if not fields or depth > _DEEPEST:
        return
    for field in draw(st.lists(st.sampled_from(fields), max_size=6, unique_by=lambda f: f.name)):
        _set(draw, message, field, depth)


def _nodes(message: Message) -> Iterator[Message]:
    """Return the message and all messages in it."""
    yield message
    for field, value in message.ListFields():
        if field.message_type is None or _is_map(field):
            continue
        for part in value if field.is_repeated else (value,):
            yield from _nodes(part)


@st.composite
def changed(draw: DrawFn, valid: Message) -> Message:
    """Draw a valid message with a few fields changed, emptied or filled."""
    message = type(valid)()
    message.CopyFrom(valid)
    for _ in range(draw(st.integers(1, 3))):
        nodes = [node for node in _nodes(message) if node.DESCRIPTOR.fields]
        node = draw(st.sampled_from(nodes))
        field = draw(st.sampled_from(list(node.DESCRIPTOR.fields)))
        if draw(st.booleans()):
            node.ClearField(field.name)
        if draw(st.sampled_from((True, True, True, False))):
            _set(draw, node, field, 1)
    return message


@st.composite
def anything(draw: DrawFn, kind: type[M]) -> M:
    """Draw an arbitrary message of this kind."""
    message = kind()
    _fill(draw, message, 0)
    return message


@st.composite
def damaged(draw: DrawFn, data: bytes) -> bytes:
    """Draw these bytes with some of them changed, removed or added."""
    content = bytearray(data)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(content)))
        cut = draw(st.sampled_from((0, 1, 1, 2, 8)))
        content[at : at + cut] = draw(st.binary(max_size=8))
    return bytes(content)


def decoded(kind: type[M], data: bytes) -> M | None:
    """Return the message if the bytes are valid."""
    try:
        return kind.FromString(data)
    except DecodeError:
        return None
