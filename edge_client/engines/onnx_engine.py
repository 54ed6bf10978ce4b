"""The engine without torch: the loops of `hfmds.algorithm` over a plan's graphs.

All engines run the same loops and draw the same random numbers. From the same seed they differ
only by the rounding of their sums.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from edge_client.engines.graphs import Graphs, give_back_memory, open_graphs, providers_for
from edge_client.engines.plan_steps import (
    PlanEvaluation,
    PlanSynthesis,
    PlanTraining,
    require_plan_method,
)
from hfmds.algorithm.evaluation import evaluate_in_chunks
from hfmds.algorithm.local_work import LocalWork, Progress, Synthesis, TrainedModel
from hfmds.algorithm.synthesis import synthesise
from hfmds.algorithm.training import train
from hfmds.domain.learning import Evaluation
from hfmds.domain.methods import Hfmds
from hfmds.errors import InvalidInput
from hfmds.onnx_runtime import onnxruntime


class OnnxEngine:
    """Computes with onnxruntime, on the processor or on an accelerator that it supports."""

    needs_plan = True

    def __init__(
        self,
        compute_device: str = "cpu",
        threads: int = 1,
        left_bytes: Callable[[], int] = lambda: 0,
    ) -> None:
        """`left_bytes` tells how much memory a task may use; 0 means unknown."""
        self._providers = providers_for(compute_device, onnxruntime.get_available_providers())
        self._threads = threads
        self._left_bytes = left_bytes
        self._opened: tuple[Path, Graphs] | None = None  # the last plan: a run has only one
        self.name = f"onnx-{self._providers[0].removesuffix('ExecutionProvider').lower()}"

    def train(self, work: LocalWork, progress: Progress) -> TrainedModel:
        with _memory_given_back():
            return train(work, PlanTraining(self._graphs(work), work), progress)

    def synthesise(self, work: LocalWork, progress: Progress) -> Synthesis:
        settings = work.recipe.method
        with _memory_given_back():
            graphs = self._graphs(work)
            require_plan_method(settings)
            if not isinstance(settings, Hfmds):
                raise InvalidInput(
                    f"method {settings.name} shares no images: nothing to synthesise"
                )
            return synthesise(work, settings, PlanSynthesis(graphs, work, settings), progress)

    def evaluate(self, work: LocalWork, progress: Progress) -> Evaluation:
        with _memory_given_back():
            step = PlanEvaluation(self._graphs(work), work)
            return evaluate_in_chunks(step, work.shard, work.recipe.normalisation, progress)

    def _graphs(self, work: LocalWork) -> Graphs:
        if work.plan is None:
            raise InvalidInput(
                "the task has no plan, and without one the onnx engine cannot compute; the "
                "coordinator's log says why it made none; change the network, or install "
                "hfmds-fl[torch] and set HFMDS_ENGINE to torch"
            )
        if self._opened is None or self._opened[0] != work.plan:
            self._opened = None  # free the old plan first: never two in memory
            graphs = open_graphs(work.plan, self._providers, self._threads, self._left_bytes)
            self._opened = work.plan, graphs
        graphs = self._opened[1]
        if graphs.model != work.recipe.model:
            raise InvalidInput(
                f"the plan is for {graphs.model}, the run's model is {work.recipe.model}; "
                "update the coordinator"
            )
        if graphs.method != work.recipe.method.name:
            raise InvalidInput(
                f"the plan is for the method {graphs.method}, the run's is "
                f"{work.recipe.method.name}; update the coordinator"
            )
        return graphs


@contextmanager
def _memory_given_back() -> Iterator[None]:
    """Free onnxruntime's memory after a task, even a failed one, so that the next task finds it."""
    try:
        yield
    finally:
        give_back_memory()
