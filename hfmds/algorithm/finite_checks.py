"""Refuses losses and images that are not finite, and names the setting to lower. Only numpy."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from hfmds.errors import Diverged


def require_finite_loss(
    loss: float, step: int, steps: int, rate: str = "training.learning_rate"
) -> float:
    """Return the loss. Raises Diverged if it is not finite; `rate` names the setting to lower."""
    if not math.isfinite(loss):
        raise Diverged(
            f"training diverged: the loss is {loss} at step {step} of {steps}; "
            f"lower {rate}, or check the normalisation and the incoming weights"
        )
    return loss


def require_finite_synthesis(loss: float, step: int, steps: int) -> None:
    """Raise Diverged if the loss of a synthesis is not finite."""
    if not math.isfinite(loss):
        raise Diverged(
            f"synthesis diverged: the loss is {loss} at step {step} of {steps}; "
            "lower hfmds.learning_rate, or check the incoming weights"
        )


def require_finite_images(images: NDArray[np.float32], steps: int) -> None:
    """Raise Diverged if an image is not finite, after the last step or from bad weights."""
    if not np.isfinite(images).all():
        raise Diverged(
            f"synthesis diverged: after {steps} steps an image is not a finite number; "
            "lower hfmds.learning_rate, or check the incoming weights"
        )
