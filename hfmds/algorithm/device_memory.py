"""What a device keeps from task to task. Simulated and real devices both follow these rules.

A round may be replayed. Its tasks then start from what the device kept before that round, so a
device keeps its memory of several rounds.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from hfmds.algorithm.aggregation.compression import Packed, pack, split_memory
from hfmds.algorithm.local_work import LocalWork, Memory, TrainedModel


def round_before(rounds: Collection[int], round_number: int) -> int | None:
    """Return the round whose memory a task of this round starts from; None: it has none."""
    return max((t for t in rounds if t < round_number), default=None)


def with_memory(work: LocalWork, kept: Memory) -> LocalWork:
    """Give a task what its device kept: the method's memory, and what its updates did not carry."""
    memory, residual = split_memory(kept)
    return replace(work, memory=memory, residual=residual)


def finish_training(work: LocalWork, trained: TrainedModel) -> tuple[Packed, Memory]:
    """Return the update that the device sends, and what it keeps for later tasks."""
    return pack(work.recipe, work.weights, trained, work.residual)
