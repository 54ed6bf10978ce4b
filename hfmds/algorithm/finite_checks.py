"""Learning that left the finite numbers, told with the setting to lower.

Only numpy: engines share it.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from hfmds.errors import Diverged


def require_finite_loss(
    loss: float, step: int, steps: int, rate: str = "training.learning_rate"
) -> float:
    """The loss, unless training has diverged; `rate` is the setting to lower then."""
    if not math.isfinite(loss):
        raise Diverged(
            f"training diverged: the loss is {loss} at step {step} of {steps}; "
            f"lower {rate}, or check the normalisation and the incoming weights"
        )
    return loss


def require_finite_synthesis(loss: float, step: int, steps: int) -> None:
    """Refuse to go on with a synthesis whose loss is no number."""
    if not math.isfinite(loss):
        raise Diverged(
            f"synthesis diverged: the loss is {loss} at step {step} of {steps}; "
            "lower hfmds.learning_rate, or check the incoming weights"
        )


def require_finite_images(images: NDArray[np.float32], steps: int) -> None:
    """Refuse images that the last step, or bad weights and no step, have spoilt."""
    if not np.isfinite(images).all():
        raise Diverged(
            f"synthesis diverged: after {steps} steps an image is not a finite number; "
            "lower hfmds.learning_rate, or check the incoming weights"
        )
