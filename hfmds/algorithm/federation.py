"""Algorithm 1: the loop over any fleet.

The loop does not know whether the devices are simulated in this process (`LocalFleet`) or real ones
behind a network (the coordinator's `RemoteFleet`). It has no network, no clock and no storage.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

from hfmds.algorithm.methods.method_server import server_of
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


class Fleet(Protocol):
    """The devices of a run, as the loop sees them.

    A killed run resumes by replaying the round after its last checkpoint. So every call MUST be
    idempotent for its round and phase. A second call joins the work of the first or returns its
    result. It never counts a device's contribution twice.
    """

    def synthesise(self, round_number: int, weights: Weights) -> Pool:
        """Have all available devices synthesise with w^t, and seal the results into a new pool.

        Raises Unavailable when too few devices contributed.
        """

    def train(self, round_number: int, weights: Weights, pool: Pool | None) -> Iterable[Update]:
        """Have the cohort K_t train from w^t. Returns the updates that count, in device-id order.

        The fleet draws the cohort with `sampling.choose_cohort`. A replay keeps the cohort that the
        round was opened with. Where a device was replaced or did not deliver, the updates differ
        from the cohort. Weights should load when the loop reaches an update: it keeps one at a
        time. Raises Unavailable when too few devices delivered.
        """

    def evaluate(self, round_number: int, weights: Weights) -> Evaluation | None:
        """Evaluate w^{t+1} on the held-out set; None without one."""

    def evaluate_on_devices(self, round_number: int, weights: Weights) -> DeviceEvaluation | None:
        """Evaluate w^{t+1} on devices' own data; None if none or too few evaluated it."""


def federate(fleet: Fleet, recipe: Recipe, start: Checkpoint) -> Iterator[RoundResult]:
    """Run the rounds after `start`, yielding each. Save its checkpoint to be able to resume."""
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
        updates = fleet.train(t, weights, pool)

        # w^{t+1}: the mean over K_t or another rule of the recipe, then the method's server step.
        aggregate = server.aggregate(t, weights, updates, server_state)
        del updates  # so that their files close before the next round
        weights, server_state = aggregate.weights, aggregate.server_state
        traffic += aggregate.traffic

        evaluation = fleet.evaluate(t, weights)
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
