"""Chooses the device that torch computes on: the processor or a GPU."""

from __future__ import annotations

import torch

from hfmds.errors import ConfigurationError

COMPUTE_DEVICES = ("cpu", "cuda", "mps", "auto")  # auto: the best available

_GPUS = {"cuda": "CUDA GPU", "mps": "Apple GPU"}  # the best first


def find_compute_device(wished: str, setting: str) -> str:
    """Return torch's name of the wished device; `setting` names the setting in errors.

    Raises ConfigurationError: this machine has no such device.
    """
    if wished not in COMPUTE_DEVICES:
        known = ", ".join(COMPUTE_DEVICES)
        raise ConfigurationError(f"{setting} is {wished!r}; it must be one of {known}")
    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if wished == "auto":
        return next((name for name in _GPUS if available[name]), "cpu")
    if wished != "cpu" and not available[wished]:
        raise ConfigurationError(
            f"{setting} is {wished}, but this machine has no {_GPUS[wished]} that torch can use; "
            "set it to cpu or auto"
        )
    return wished
