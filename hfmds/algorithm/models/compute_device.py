"""Where torch computes: the processor, or a GPU that is there."""

from __future__ import annotations

import torch

from hfmds.errors import ConfigurationError

COMPUTE_DEVICES = ("cpu", "cuda", "mps", "auto")  # auto: the best that is there

_GPUS = {"cuda": "CUDA GPU", "mps": "GPU of Apple's"}  # the best first


def find_compute_device(wished: str, setting: str) -> str:
    """The device as torch calls it; ConfigurationError, which names the setting, if it is away."""
    if wished not in COMPUTE_DEVICES:
        known = ", ".join(COMPUTE_DEVICES)
        raise ConfigurationError(f"{setting} is {wished!r}; it must be one of {known}")
    are_here = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if wished == "auto":
        return next((name for name in _GPUS if are_here[name]), "cpu")
    if wished != "cpu" and not are_here[wished]:
        raise ConfigurationError(
            f"{setting} is {wished}, but this machine has no {_GPUS[wished]} that torch can use; "
            "set it to cpu or auto"
        )
    return wished
