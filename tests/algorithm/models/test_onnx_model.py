from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from torch import Tensor, nn

from hfmds.algorithm.models import onnx_model
from hfmds.algorithm.models.building import initial_weights, model_with
from hfmds.algorithm.models.onnx_model import save_onnx
from hfmds.algorithm.pixels import normalise
from hfmds.errors import CorruptData
from tests.algorithm.examples import RECIPE, images
from tests.algorithm.examples import weights as some_weights


@pytest.mark.parametrize("architecture", ["paper-cnn", "resnet-gn"])
def test_the_file_takes_pixels_and_says_what_its_classes_are(tmp_path: Path, architecture: str):
    path = tmp_path / "model.onnx"
    names = tuple(f"class {n}" for n in range(RECIPE.model.classes))
    model = replace(RECIPE.model, architecture=architecture)
    weights = initial_weights(model, seed=1)
    save_onnx(replace(RECIPE, model=model, class_names=names), weights, path, "run x")
    some = images(7, seed=3)
    expected = model_with(model, weights)(
        torch.from_numpy(normalise(some.pixels, RECIPE.normalisation))
    )
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    (found,) = session.run(["logits"], {"pixels": some.pixels.astype(np.float32) / 255})
    np.testing.assert_allclose(found, expected.detach().numpy(), rtol=1e-4, atol=1e-4)
    told = session.get_modelmeta().custom_metadata_map
    assert json.loads(told["class_names"]) == list(names)
    assert told["origin"] == "run x"
    assert json.loads(told["normalisation_inside"]) == {
        "mean": list(RECIPE.normalisation.mean),
        "std": list(RECIPE.normalisation.std),
    }


def test_a_file_that_computes_something_else_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    class Other(nn.Module):
        def forward(self, pixels: Tensor) -> Tensor:
            return pixels.flatten(1)[:, : RECIPE.model.classes]

    exported = onnx_model._quietly_export
    monkeypatch.setattr(
        onnx_model,
        "_quietly_export",
        lambda model, example, path: exported(Other(), example, path),
    )
    path = tmp_path / "model.onnx"
    with pytest.raises(CorruptData, match="away from those of torch"):
        save_onnx(RECIPE, some_weights(), path, "run x")
    assert not path.exists()
