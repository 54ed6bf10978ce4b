"""The torch engine is hfmds.algorithm, and torch is loaded only when it is asked for."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch

from edge_client.engine import open_engine
from edge_client.settings import EdgeSettings
from hfmds.algorithm.types import (
    LabelledImages,
    ModelSpec,
    Normalisation,
    Recipe,
    SynthesisRecipe,
    TrainingRecipe,
    Weights,
)
from hfmds.errors import ConfigurationError
from hfmds.service.settings import load_settings

RECIPE = Recipe(
    ModelSpec("paper-cnn", 1, 16, 16, 3),
    Normalisation((0.5,), (0.5,)),
    rounds=1,
    training=TrainingRecipe(batch_size=3),
    synthesis=SynthesisRecipe(samples_per_device=4, steps=3),
)


def shard(seed: int, samples: int = 6) -> LabelledImages:
    random = np.random.default_rng(seed)
    pixels = random.integers(0, 256, (samples, 1, 16, 16), np.uint8)
    return LabelledImages(pixels, np.arange(samples, dtype=np.int64) % 3)


def settings(**given: str) -> EdgeSettings:
    flags = {"data": "digits", **given}
    return load_settings(EdgeSettings, [f"--{k.replace('_', '-')}={v}" for k, v in flags.items()])


def assert_equal(ours: Weights, theirs: Weights) -> None:
    assert ours.keys() == theirs.keys()
    for name in ours:
        np.testing.assert_array_equal(ours[name], theirs[name], err_msg=name)


def ignore(done: int, steps: int) -> None:
    pass


def test_torch_engine_equals_the_algorithm() -> None:
    from hfmds.algorithm.models import initial_weights
    from hfmds.algorithm.synthesis import synthesise
    from hfmds.algorithm.training import train

    engine = open_engine(settings())
    weights = initial_weights(RECIPE.model, 1)
    own, pool = shard(1), shard(2, 9)

    ours = engine.train(RECIPE, weights, own, pool, 5, ignore)
    theirs = train(RECIPE, weights, own, pool, 5)
    assert_equal(ours.weights, theirs.weights)
    assert ours.loss == theirs.loss

    first = synthesise(RECIPE, weights, own, {}, 4)
    previous = {c: zbar + 1 for c, zbar in first.prototypes.items()}
    made = engine.synthesise(RECIPE, weights, own, previous, 5, ignore)
    expected = synthesise(RECIPE, weights, own, previous, 5)
    np.testing.assert_array_equal(made.batch.images.pixels, expected.batch.images.pixels)
    np.testing.assert_array_equal(made.batch.psnr_paired, expected.batch.psnr_paired)
    for c, zbar in expected.prototypes.items():
        np.testing.assert_array_equal(made.prototypes[c], zbar)


def test_progress_ends_the_work() -> None:
    from hfmds.algorithm.models import initial_weights

    class Enough(Exception):
        pass

    def stop(done: int, steps: int) -> None:
        raise Enough

    engine = open_engine(settings())
    weights = initial_weights(RECIPE.model, 1)
    with pytest.raises(Enough):
        engine.train(RECIPE, weights, shard(1), None, 5, stop)
    with pytest.raises(Enough):
        engine.synthesise(RECIPE, weights, shard(1), {}, 5, stop)


def test_engine_uses_as_many_threads_as_it_may() -> None:
    open_engine(settings(threads="1"))
    assert torch.get_num_threads() == 1


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_missing_gpu_is_told() -> None:
    with pytest.raises(ConfigurationError, match=r"HFMDS_COMPUTE_DEVICE is cuda.*cpu or auto"):
        open_engine(settings(compute_device="cuda"))
    assert open_engine(settings(compute_device="auto")).name == "torch-cpu"


def test_device_imports_no_torch_until_an_engine_is_opened() -> None:
    program = (
        "import sys, edge_client.__main__, edge_client.agent, edge_client.tasks\n"
        "sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=30)


def test_missing_torch_is_told() -> None:
    program = (
        "import sys\n"
        "sys.modules['torch'] = None\n"
        "from edge_client.engine import open_engine\n"
        "from edge_client.settings import EdgeSettings\n"
        "from hfmds.service.settings import load_settings\n"
        "open_engine(load_settings(EdgeSettings, ['--data=digits']))\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=False
    )
    assert "ConfigurationError: HFMDS_ENGINE is torch, but torch is not installed" in result.stderr
    assert "hfmds-fl[torch]" in result.stderr
