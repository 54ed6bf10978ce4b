"""The server's part of a method, without torch: it combines what devices send.

A method whose server learns, such as FedGen, overrides this in torch. Torch is loaded only then.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Generic, TypeVar, cast

from hfmds.algorithm.aggregation.aggregation import Aggregate, combine
from hfmds.domain.learning import Update, Weights
from hfmds.domain.methods import Method
from hfmds.domain.recipe import Recipe

Settings = TypeVar("Settings", bound=Method)


class MethodServer(Generic[Settings]):
    """The server's part of a method; by default, aggregation by the recipe."""

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self.settings = cast(Settings, recipe.method)

    def aggregate(
        self,
        round_number: int,
        weights: Weights,
        updates: Iterable[Update],
        server_state: Weights | None = None,
    ) -> Aggregate:
        """Compute w^{t+1} from w^t and the updates, which come in device-id order.

        `server_state` is that of the last round's result; None in the first round.
        """
        trained = [name for name in weights if self.settings.trains(name, round_number)]
        return combine(
            self.recipe.aggregation,
            weights,
            updates,
            names=trained,
            measured=self.settings.measures,
            server_state=server_state,
        )


def server_of(recipe: Recipe) -> MethodServer[Any]:
    """Return the server's part of the recipe's method."""
    if not recipe.method.server_learns:
        return MethodServer(recipe)
    from hfmds.algorithm.methods.method_registry import method_of  # with torch

    return method_of(recipe)
