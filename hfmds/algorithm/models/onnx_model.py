"""Saves a trained classifier as an ONNX file that works by itself.

The graph takes pixels in [0, 1] and normalises them itself, so that users cannot get that wrong.
An export can fail silently, so the file is compared with the network in torch.
"""

from __future__ import annotations

import json
import logging
import warnings
from pathlib import Path

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hfmds.algorithm.models.building import model_with
from hfmds.domain.learning import Weights
from hfmds.domain.recipe import Normalisation, Recipe
from hfmds.errors import CorruptData
from hfmds.onnx_runtime import onnxruntime

_CHECKED_BATCHES = (1, 3)  # the batch must not have become a constant
_TOLERANCE = 1e-4  # of the largest logit: the two engines sum in different orders


class _FromPixels(nn.Module):
    """A classifier with its normalisation in front."""

    # No operator has these names. The exporter would confuse a buffer and an operator.
    pixel_mean: Tensor
    pixel_std: Tensor

    def __init__(self, classifier: nn.Module, normalisation: Normalisation) -> None:
        super().__init__()
        self.classifier = classifier
        for name in ("mean", "std"):
            values = torch.tensor(getattr(normalisation, name)).reshape(1, -1, 1, 1)
            self.register_buffer(f"pixel_{name}", values)

    def forward(self, pixels: Tensor) -> Tensor:
        logits: Tensor = self.classifier((pixels - self.pixel_mean) / self.pixel_std)
        return logits


def save_onnx(recipe: Recipe, weights: Weights, path: Path, origin: str) -> None:
    """Save the recipe's network with these weights; the file names `origin` as its source.

    Raises CorruptData: the file computes something else than the network. It is deleted.
    """
    model = _FromPixels(model_with(recipe.model, weights), recipe.normalisation).eval()
    shape = recipe.model.image_shape
    random = np.random.default_rng(0)
    try:
        _quietly_export(model, torch.zeros(2, *shape), path)
        _describe(recipe, path, origin)
        for batch in _CHECKED_BATCHES:
            _require_equal(model, random.random((batch, *shape), np.float32), path)
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def _quietly_export(model: nn.Module, example: Tensor, path: Path) -> None:
    batch = torch.export.Dim("batch", min=1)
    exporter = logging.getLogger("torch.onnx")
    level = exporter.level
    exporter.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            # No optimisation: torch's optimiser replaces small constants by zero.
            torch.onnx.export(
                model,
                (example,),
                str(path),
                dynamo=True,
                optimize=False,
                external_data=False,
                verbose=False,
                input_names=["pixels"],
                output_names=["logits"],
                dynamic_shapes=({0: batch},),
            )
    finally:
        exporter.setLevel(level)


def _describe(recipe: Recipe, path: Path, origin: str) -> None:
    """Write what a user must know into the file's metadata."""
    names = recipe.class_names or tuple(str(number) for number in range(recipe.model.classes))
    normalisation = {"mean": recipe.normalisation.mean, "std": recipe.normalisation.std}
    metadata = {
        "origin": origin,
        "architecture": recipe.model.architecture,
        "class_names": json.dumps(names),
        "pixels": "float32 [n, channels, height, width] in [0, 1], not normalised",
        "normalisation_inside": json.dumps(normalisation),
    }
    graph = onnx.load(path)
    onnx.helper.set_model_props(graph, metadata)
    try:
        onnx.checker.check_model(graph)
    except onnx.checker.ValidationError as error:
        raise CorruptData(
            f"{recipe.model.architecture} cannot be exported to ONNX: {error}"
        ) from error
    onnx.save(graph, path)


def _require_equal(model: nn.Module, pixels: NDArray[np.float32], path: Path) -> None:
    with torch.no_grad():
        expected = model(torch.from_numpy(pixels)).numpy()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    (logits,) = session.run(["logits"], {"pixels": pixels})
    apart = float(np.abs(logits - expected).max())
    allowed = _TOLERANCE * max(1.0, float(np.abs(expected).max()))
    if not apart <= allowed:  # a NaN fails, too
        raise CorruptData(
            f"the ONNX file's logits are {apart:.2g} away from those of torch, more than "
            f"{allowed:.2g}; it was not saved. Try another version of torch or onnxruntime"
        )
