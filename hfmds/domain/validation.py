"""The base of all tables of a run's settings, and the errors that their validation raises.

A table is a frozen pydantic dataclass. A field states its type, limits and meaning once. Recipe
files, command-line options, `hfmds run keys`, documentation and error texts all read them here.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar, Literal, Self, get_args, get_origin

from pydantic import (
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    ValidationError,
    model_validator,
)
from pydantic.dataclasses import dataclass
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from hfmds.errors import InvalidInput

STRICT = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)
"""The pydantic configuration of every table: `true` is no number, and "3" is none either."""

_INT32_MAX, _INT64_MAX = 2**31 - 1, 2**63 - 1

Count = Annotated[int, Field(le=_INT32_MAX)]
"""A whole number that the protocol carries as int32."""

LargeCount = Annotated[int, Field(le=_INT64_MAX)]
"""A whole number that the protocol carries as int64."""


def require(condition: bool, message: str) -> None:
    """Raise InvalidInput with the message unless the condition holds."""
    if not condition:
        raise InvalidInput(message)


@dataclass(frozen=True, config=STRICT)
class SettingsTable:
    """A group of settings under one name: `[training]` in a recipe file, `training.alpha` a key."""

    __pydantic_fields__: ClassVar[dict[str, FieldInfo]]
    table: ClassVar[str] = ""  # empty: the keys stand at the top of a recipe

    @model_validator(mode="wrap")
    @classmethod
    def _raise_invalid_input(cls, values: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        try:
            return handler(values)
        except ValidationError as error:
            faults = (_fault(cls, detail) for detail in error.errors(include_url=False))
            raise InvalidInput("; ".join(dict.fromkeys(faults))) from None


def fields_of(table: type[SettingsTable]) -> Mapping[str, FieldInfo]:
    """The fields of a table by name, in order, without those that are tables of their own."""
    fields = table.__pydantic_fields__
    return {name: field for name, field in fields.items() if not _is_table(field.annotation)}


def key_of(table: type[SettingsTable], field: str) -> str:
    """The name of a field in recipe files, options and errors, such as `training.alpha`."""
    return f"{table.table}.{field}" if table.table else field


def shown_default(field: FieldInfo) -> str:
    """The default of a setting as text for tables and help; empty if there is nothing to show."""
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if value in (None, "", ()):
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)


def kind_rule(annotation: Any) -> str:
    """What kind of value a setting takes, in words."""
    if get_origin(annotation) is Literal:
        return f"one of {', '.join(map(str, get_args(annotation)))}"
    if get_origin(annotation) is tuple:
        return "a list of strings" if get_args(annotation)[0] is str else "a list of numbers"
    if get_origin(annotation) in (types.UnionType, Annotated):
        return kind_rule(get_args(annotation)[0])
    return _KINDS.get(annotation, "a string")


def rule(field: FieldInfo) -> str:
    """What kind of value a setting takes and its limits, in words."""
    limits = _limits(field)
    kind = kind_rule(field.annotation)
    return f"{kind}, {limits}" if limits else kind


def parse_text(key: str, field: FieldInfo, text: str) -> Any:
    """Return text of a command line in the type of a field; the table checks the limits later."""
    kind = field.annotation
    try:
        if get_origin(kind) is tuple:
            items = [item.strip() for item in text.split(",")]
            return tuple(map(_FROM_TEXT.get(get_args(kind)[0], str), items))
        return _FROM_TEXT.get(kind, str)(text)
    except (ValueError, KeyError):
        expected = kind_rule(kind)
        if get_origin(kind) is tuple:
            expected = f"{expected.removeprefix('a list of ')} with commas between them"
        raise InvalidInput(f"{key} is {text!r}; it must be {expected}") from None


_FROM_TEXT: Mapping[Any, Callable[[str], Any]] = {
    int: int,
    float: float,
    bool: {"true": True, "false": False}.__getitem__,
}


def fault_rule(field: FieldInfo, detail: ErrorDetails) -> str:
    """What a refused value must be: only the part of the rule that it breaks."""
    match detail["type"]:
        case "value_error":
            return str(detail["ctx"]["error"])
        case "less_than_equal" if detail["ctx"]["le"] in (_INT32_MAX, _INT64_MAX):
            return f"at most {detail['ctx']['le']}"
        case "greater_than" | "greater_than_equal" | "less_than" | "less_than_equal":
            return _limits(field)
        case "finite_number":
            return _limits(field) or "a number"
    return kind_rule(field.annotation)


_KINDS: Mapping[Any, str] = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
}


def _fault(table: type[SettingsTable], detail: ErrorDetails) -> str:
    location = detail["loc"]
    if not location:
        return detail["msg"]
    fields = table.__pydantic_fields__
    name = list(fields)[location[0]] if isinstance(location[0], int) else location[0]
    key, field = key_of(table, name), fields.get(name)
    if field is None:
        return f"{table.__name__} has no setting {key}; leave it out"
    if detail["type"] == "missing":
        return f"{key} is not set; it must be {rule(field)}"
    return f"{key} is {detail['input']!r}; it must be {fault_rule(field, detail)}"


def _limits(field: FieldInfo) -> str:
    """The limits of a number: "in [0, 1)", "at least 1", "above 0", or nothing."""
    limits: dict[str, Any] = {}
    for constraint in field.metadata:
        for name in ("ge", "gt", "le", "lt"):
            if (value := getattr(constraint, name, None)) is not None:
                limits[name] = value
    if limits.get("le") in (_INT32_MAX, _INT64_MAX):
        del limits["le"]
    low, high = limits.get("ge", limits.get("gt")), limits.get("le", limits.get("lt"))
    if low is None and high is None:
        return ""
    if high is None:
        return f"at least {low}" if "ge" in limits else f"above {low}"
    opening, closing = "[" if "ge" in limits else "(", "]" if "le" in limits else ")"
    return f"in {opening}{low:g}, {high:g}{closing}"


def _is_table(annotation: Any) -> bool:
    kinds = get_args(annotation) or (annotation,)
    return any(isinstance(kind, type) and issubclass(kind, SettingsTable) for kind in kinds)
