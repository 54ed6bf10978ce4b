"""A run's models as content: each is encoded and stored once, however often it is asked for."""

from __future__ import annotations

from hfmds.domain.digest import Digest
from hfmds.domain.learning import Weights
from hfmds.storage.blobs import Blobs
from hfmds.wire.tensors import encode_weights


class Models:
    """Stores the models of one run."""

    def __init__(self, blobs: Blobs) -> None:
        self.blobs = blobs
        self._last: tuple[Weights, Digest] | None = None

    def put(self, weights: Weights) -> Digest:
        """The model's name; it is durable when this returns."""
        # The same object, not equal ones: a round's model is the next one's to begin with.
        if self._last is None or self._last[0] is not weights:
            self._last = weights, self.blobs.put_bytes(encode_weights(weights))
        return self._last[1]
