from __future__ import annotations

import numpy as np
import pytest
import torch

from hfmds.algorithm import evaluation
from hfmds.algorithm.models.building import model_with
from hfmds.algorithm.pixels import normalise
from hfmds.algorithm.torch_steps.torch_evaluation import evaluate
from hfmds.errors import InvalidInput
from tests.algorithm.examples import RECIPE, SPEC, images, weights


def test_accuracy_and_loss_over_all_chunks(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(evaluation, "CHUNK", 4)
    held_out = images(10, seed=4)
    pixels = torch.tensor(normalise(held_out.pixels, RECIPE.normalisation))
    p = torch.softmax(model_with(SPEC, weights())(pixels), dim=1).detach().numpy()
    result = evaluate(SPEC, weights(), RECIPE.normalisation, held_out)
    assert result.samples == 10
    assert result.accuracy == np.mean(p.argmax(axis=1) == held_out.labels)
    assert result.loss == pytest.approx(-np.log(p[range(10), held_out.labels]).mean(), rel=1e-4)


def test_nothing_to_evaluate_on_is_refused():
    with pytest.raises(InvalidInput, match="held-out set is empty"):
        evaluate(SPEC, weights(), RECIPE.normalisation, images(0))
