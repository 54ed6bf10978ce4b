"""Domain values as JSON, for scripts and for the report."""

from __future__ import annotations

import dataclasses
import enum
import json
import math
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from hfmds.domain.methods import Method
from hfmds.domain.runs import Run
from hfmds.domain.tasks import TaskStage


def record(value: Any) -> Any:
    """Return the value in JSON's types: dataclasses as objects, times in ISO 8601, NaN as null."""
    match value:
        case Run():
            return {**_fields(value), "method": value.spec.recipe.method.name}
        case Method():
            return {"name": value.name, **_fields(value)}
        case _ if dataclasses.is_dataclass(value):
            return _fields(value)
        case TaskStage():
            return value.name.lower()
        case enum.Enum():
            return value.value
        case datetime():
            return value.isoformat()
        case Path():
            return str(value)
        case float() | np.floating():
            return float(value) if math.isfinite(value) else None
        case dict():
            return {str(key): record(item) for key, item in value.items()}
        case list() | tuple() | np.ndarray():
            return [record(item) for item in value]
        case np.integer():
            return int(value)
    return value


def to_json(value: Any) -> str:
    """Return the value as indented JSON text."""
    return json.dumps(record(value), indent=2, allow_nan=False)


def _fields(value: Any) -> dict[str, Any]:
    return {field.name: record(getattr(value, field.name)) for field in dataclasses.fields(value)}
