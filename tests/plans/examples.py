"""Small plans for tests."""

from __future__ import annotations

from hfmds.domain.recipe import ModelSpec
from hfmds.plans.format import BATCH, Graph, Plan, TensorSpec

SPEC = ModelSpec("tiny", channels=1, height=6, width=6, classes=3)


def plan() -> Plan:
    """A plan whose graphs are not graphs at all: the format does not look into them."""
    images = TensorSpec("images", "float32", (BATCH, 1, 6, 6))
    count = TensorSpec("correct", "int64", ())
    return Plan(
        model=SPEC,
        method="hfmds",
        features=5,
        graphs={
            "evaluate": Graph(b"one", (images,), (count,), fixed_bytes=100, bytes_per_image=7),
            "features": Graph(b"other", (images,), (images,), fixed_bytes=0, bytes_per_image=0),
        },
    )
