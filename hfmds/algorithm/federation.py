"""Algorithm 1: the loop, over any fleet.

The loop never learns whether the devices are simulated in this process (`local_fleet`) or real
ones behind a network: a `Fleet` answers either way. No network, no clock, no storage.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from hfmds.algorithm.methods.method_server import server_of
from hfmds.algorithm.sampling import Candidate, sample_cohort
from hfmds.domain.learning import (
    Checkpoint,
    DeviceEvaluation,
    Evaluation,
    Pool,
    RoundResult,
    Traffic,
    Update,
    Weights,
)
from hfmds.domain.recipe import Recipe
from hfmds.errors import Unavailable


class Fleet(Protocol):
    """The devices of a run, as the loop sees them.

    A killed run is resumed by replaying the round after its last checkpoint. So every call MUST be
    idempotent for its round and phase: a second call joins the work of the first or returns its
    result, and never has a device's contribution counted twice.
    """

    def available(self, round_number: int) -> Sequence[Candidate]:
        """The devices that could take work in this round, in any order."""

    def synthesise(self, round_number: int, weights: Weights) -> Pool:
        """Have all available devices synthesise with w^t, and seal the results into a new pool.

        Raises Unavailable when too few devices contributed to make one.
        """

    def train(
        self, round_number: int, weights: Weights, pool: Pool | None, cohort: Sequence[str]
    ) -> Iterable[Update]:
        """Have the cohort train from w^t, and give the updates that count, in device-id order.

        They may be fewer than the cohort, and of others where a device was replaced; on a replay
        the cohort the round was first opened with stays. Weights should load when an update is
        reached: the loop keeps one at a time.
        Raises Unavailable when too few devices delivered.
        """

    def evaluate(self, weights: Weights) -> Evaluation | None:
        """How w^{t+1} does on the held-out set; None without one."""

    def evaluate_on_devices(self, round_number: int, weights: Weights) -> DeviceEvaluation | None:
        """How w^{t+1} does on devices' own data; None where they are not asked, or too few are."""


def federate(fleet: Fleet, recipe: Recipe, start: Checkpoint) -> Iterator[RoundResult]:
    """Run the rounds after `start`, yielding each; save its checkpoint to be able to resume."""
    server = server_of(recipe)
    weights, pool, server_state = start.weights, start.pool, start.server_state
    for t in range(start.round_number + 1, recipe.rounds + 1):
        traffic = Traffic()

        # DataSynthesis: every T_d rounds; the new pool D_syn replaces the old one.
        refresh = recipe.method.refreshes(t)
        if refresh:
            pool = fleet.synthesise(t, weights)
            traffic += pool.traffic

        # ClientUpdate by the cohort K_t.
        cohort = sample_cohort(
            fleet.available(t), recipe.cohort_size, recipe.sampling, recipe.seed, t
        )
        if not cohort:
            raise Unavailable(f"round {t}: no device is available; start or reconnect devices")
        updates = fleet.train(t, weights, pool, cohort)

        # w^{t+1}: the mean over K_t, or what the recipe wants instead, and whatever else the
        # method's server does.
        aggregate = server.aggregate(t, weights, updates, server_state)
        del updates  # the fleet's to keep or to forget, and not held until the next ones are there
        weights, server_state = aggregate.weights, aggregate.server_state
        traffic += aggregate.traffic

        evaluation = fleet.evaluate(weights)
        device_evaluation = fleet.evaluate_on_devices(t, weights)
        if device_evaluation:
            traffic += device_evaluation.traffic
        yield RoundResult(
            checkpoint=Checkpoint(t, weights, pool, server_state),
            cohort=aggregate.devices,
            refreshed=refresh,
            training_loss=aggregate.loss,
            evaluation=evaluation,
            traffic=traffic,
            device_evaluation=device_evaluation,
            trouble=aggregate.trouble,
        )
