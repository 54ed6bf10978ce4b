"""What a run begins with when it starts from another run's model: a copy, in its own content.

So the old run may go on, drop the model or be deleted.
"""

from __future__ import annotations

from coordinator.records.runs import RunRecords
from coordinator.runs.content import RunContents
from coordinator.runs.learning import Learning
from hfmds.algorithm.models.weight_groups import classifier_of
from hfmds.domain.digest import Digest
from hfmds.domain.learning import Weights
from hfmds.domain.runs import RunSpec
from hfmds.errors import InvalidInput, NotFound
from hfmds.wire.tensors import StoredWeights, encode_weights


def copy_first_model(
    runs: RunRecords, contents: RunContents, learning: Learning, run_id: str, spec: RunSpec
) -> Digest | None:
    """Copy the model that a new run starts from, durably; None if it has fresh weights.

    Nothing is copied for a run that exists: it has its copy, and the origin may be gone by now.
    """
    start = spec.start_from
    if start is None or _exists(runs, run_id):
        return None
    origin, model = runs.get(start.run_id).spec.recipe.model, spec.recipe.model
    if origin != model:
        raise InvalidInput(
            f"{start} is of {origin}, but the recipe's model is {model}; "
            "give the recipe the same model, or start from another"
        )
    digest = runs.model(start.run_id, start.round_number)
    stored = StoredWeights(contents.of(start.run_id).blobs.local_path(digest), str(start))
    weights = _taken_over(learning.first_checkpoint(spec.recipe).weights, stored, str(start))
    return contents.of(run_id).blobs.put_bytes(encode_weights(weights))


def _taken_over(fresh: Weights, stored: StoredWeights, what: str) -> Weights:
    """The stored weights where there are any; a method's own parts may be new to this run."""
    shapes = stored.shapes()
    for name, values in fresh.items():
        if name not in shapes and name not in classifier_of(fresh):
            continue
        if shapes.get(name) != values.shape:
            raise InvalidInput(
                f"{what} has {name!r} as {shapes.get(name, 'nothing')}, this run as "
                f"{values.shape}; give it the same model and settings of the method"
            )
    return {name: stored[name] if name in shapes else fresh[name] for name in fresh}


def _exists(runs: RunRecords, run_id: str) -> bool:
    try:
        runs.state(run_id)
    except NotFound:
        return False
    return True
