"""The torch engine runs hfmds.algorithm and imports torch only when it opens."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode

from edge_client.engines.engine import open_engine
from edge_client.settings import EdgeSettings
from hfmds.algorithm.local_work import LocalWork
from hfmds.algorithm.methods.method_registry import first_checkpoint, method_of
from hfmds.domain.learning import LabelledImages
from hfmds.domain.methods import (
    METHODS,
    FedAvg,
    FedGan,
    FedGen,
    FedMix,
    FedProx,
    Hfmds,
    Method,
    Moon,
)
from hfmds.domain.recipe import ModelSpec, Normalisation, Recipe, TrainingRecipe
from hfmds.errors import ConfigurationError
from hfmds.service.process.settings import load_settings
from hfmds.wire.tensors import encode_batch

RECIPE = Recipe(
    ModelSpec("paper-cnn", 1, 16, 16, 3),
    Normalisation((0.5,), (0.5,)),
    rounds=3,
    training=TrainingRecipe(batch_size=3),
)
SMALL: dict[str, Method] = {
    "fedavg": FedAvg(),
    "fedprox": FedProx(mu=1),
    "moon": Moon(),
    "fedgen": FedGen(noise_size=2, hidden_size=4, generator_steps=1),
    "fedmix": FedMix(samples_per_device=4),
    "fedgan": FedGan(gan_rounds=1, noise_size=2, width=1, samples_per_device=4),
    "hfmds": Hfmds(samples_per_device=4, steps=3),
}


def shard(seed: int, samples: int = 6) -> LabelledImages:
    random = np.random.default_rng(seed)
    pixels = random.integers(0, 256, (samples, 1, 16, 16), np.uint8)
    return LabelledImages(pixels, np.arange(samples, dtype=np.int64) % 3)


def settings(**given: str) -> EdgeSettings:
    flags = {"data": "digits", "engine": "torch", **given}
    return load_settings(EdgeSettings, [f"--{k.replace('_', '-')}={v}" for k, v in flags.items()])


def with_mixed_precision(**given: str) -> EdgeSettings:
    return settings(**given).model_copy(update={"mixed_precision": True})


def work(method: str, round_number: int = 2, seed: int = 5) -> LocalWork:
    recipe = replace(RECIPE, method=SMALL[method])
    return LocalWork(recipe, round_number, first_checkpoint(recipe).weights, shard(1), seed)


def assert_equal(ours: Mapping[str, np.ndarray], theirs: Mapping[str, np.ndarray]) -> None:
    assert ours.keys() == theirs.keys()
    for name in ours:
        np.testing.assert_array_equal(ours[name], theirs[name], err_msg=name)


def ignore(done: int, steps: int) -> None:
    pass


def test_every_method_is_covered() -> None:
    assert SMALL.keys() == METHODS.keys()


def in_round(number: int, method: str) -> LocalWork:
    """Return a task of round 1, or of round 2 with the memory and pool of the first.

    The classifier is the same for all methods, so that their results can be compared.
    """
    first = work(method, round_number=1)
    if number == 1:
        return first
    actor = method_of(first.recipe)
    pool = None
    if first.recipe.method.samples_per_device:
        pool = actor.synthesise(replace(first, shard=shard(2))).batch.images
    trained = actor.train(first)
    parts = {name: weight for name, weight in trained.weights.items() if "/" in name}
    return replace(
        first,
        round_number=2,
        weights={**first.weights, **parts},
        pool=pool,
        memory=trained.memory,
    )


@pytest.mark.parametrize("round_number", [1, 2])
@pytest.mark.parametrize("method", SMALL)
def test_torch_engine_trains_by_the_method(method: str, round_number: int) -> None:
    task = in_round(round_number, method)
    ours = open_engine(settings()).train(task, ignore)
    theirs = method_of(task.recipe).train(task)
    assert_equal(ours.weights, theirs.weights)
    assert_equal(ours.memory, theirs.memory)
    assert (ours.samples, ours.loss) == (theirs.samples, theirs.loss)
    trains = task.recipe.method.trains
    assert ours.weights.keys() == {n for n in task.weights if trains(n, round_number)}


@pytest.mark.parametrize("method", [name for name in SMALL if name != "fedavg"])
def test_every_method_departs_from_averaging_in_round_2(method: str) -> None:
    engine = open_engine(settings())
    by_the_method = engine.train(in_round(2, method), ignore).weights
    by_averaging = engine.train(in_round(2, "fedavg"), ignore).weights
    assert by_averaging.keys() <= by_the_method.keys()
    assert any(not np.array_equal(by_averaging[n], by_the_method[n]) for n in by_averaging)


@pytest.mark.parametrize("method", SMALL)
def test_alpha_counts_where_the_method_says_so(method: str) -> None:
    task = in_round(2, method)
    other = replace(task.recipe, training=replace(task.recipe.training, alpha=0.9))
    engine = open_engine(settings())
    one, two = (engine.train(t, ignore).weights for t in (task, replace(task, recipe=other)))
    differs = any(not np.array_equal(one[name], two[name]) for name in one)
    assert differs == task.recipe.method.uses_alpha


@pytest.mark.parametrize("method", [name for name in SMALL if SMALL[name].samples_per_device])
def test_torch_engine_synthesises_by_the_method(method: str) -> None:
    task = work(method)
    ours = open_engine(settings()).synthesise(task, ignore)
    theirs = method_of(task.recipe).synthesise(task)
    assert encode_batch(ours.batch) == encode_batch(theirs.batch)
    assert len(ours.batch) <= SMALL[method].samples_per_device
    assert (ours.batch.images.shares is not None) == SMALL[method].with_shares
    assert_equal(ours.memory, theirs.memory)
    assert ours.health == theirs.health


def test_progress_ends_the_work() -> None:
    class Enough(Exception):
        pass

    def stop(done: int, steps: int) -> None:
        raise Enough

    engine = open_engine(settings())
    for method, round_number in (("fedavg", 1), ("fedgan", 1), ("fedgan", 2), ("hfmds", 1)):
        with pytest.raises(Enough):
            engine.train(work(method, round_number), stop)
    with pytest.raises(Enough):
        engine.synthesise(work("hfmds"), stop)


def test_engine_uses_as_many_threads_as_it_may() -> None:
    open_engine(settings(threads="1"))
    assert torch.get_num_threads() == 1


def machine_with(monkeypatch: pytest.MonkeyPatch, *gpus: str) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: "cuda" in gpus)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: "mps" in gpus)


def test_a_missing_gpu_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    machine_with(monkeypatch)
    for device in ("cuda", "mps"):
        with pytest.raises(ConfigurationError, match=f"HFMDS_COMPUTE_DEVICE.*{device}"):
            open_engine(settings(compute_device=device))
    assert open_engine(settings(compute_device="auto")).name == "torch-cpu"


def test_the_best_gpu_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    machine_with(monkeypatch, "mps")
    for device, name in (("auto", "torch-mps"), ("mps", "torch-mps"), ("cpu", "torch-cpu")):
        assert open_engine(settings(compute_device=device)).name == name
    machine_with(monkeypatch, "mps", "cuda")
    assert open_engine(settings(compute_device="auto")).name == "torch-cuda"


class _NoFloat64(TorchFunctionMode):
    """Apple's GPUs do not support float64."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        result = func(*args, **(kwargs or {}))
        assert getattr(result, "dtype", None) != torch.float64, func
        return result


def test_nothing_is_computed_in_float64() -> None:
    engine, task = open_engine(settings()), in_round(2, "hfmds")
    with _NoFloat64():
        for act in (engine.train, engine.synthesise, engine.evaluate):
            act(task, ignore)


@pytest.mark.parametrize("method", ["fedprox", "moon", "hfmds"])
def test_mixed_precision_learns_nearly_the_same(method: str) -> None:
    task = in_round(2, method)
    long = replace(task.recipe, training=replace(task.recipe.training, local_epochs=8))
    task = replace(task, recipe=long)
    exact = open_engine(settings()).train(task, ignore)
    mixed = open_engine(with_mixed_precision()).train(task, ignore)
    assert {weight.dtype for weight in mixed.weights.values()} == {np.dtype(np.float32)}
    start = {name: task.weights[name] for name in exact.weights}
    # The gradients of noise nearly cancel, so bfloat16's 8 bits lose a tenth of the distance.
    # If autocast kept the weights of the first step, it would lose more than half.
    assert 0 < distance(exact.weights, mixed.weights) < 0.15 * distance(exact.weights, start)
    assert mixed.loss == pytest.approx(exact.loss, rel=5e-3)


def distance(ours: Mapping[str, np.ndarray], theirs: Mapping[str, np.ndarray]) -> float:
    return sum(float(np.square(ours[n] - theirs[n]).sum()) for n in ours) ** 0.5


def test_mixed_precision_needs_torch() -> None:
    with pytest.raises(ConfigurationError, match="HFMDS_MIXED_PRECISION"):
        open_engine(with_mixed_precision(engine="onnx"))


def test_device_imports_no_torch_until_an_engine_is_opened() -> None:
    program = (
        "import sys, edge_client.__main__, edge_client.agent, edge_client.tasks.task_runner\n"
        "sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_missing_torch_is_an_error() -> None:
    program = (
        "import sys\n"
        "sys.modules['torch'] = None\n"
        "from edge_client.engines.engine import open_engine\n"
        "from edge_client.settings import EdgeSettings\n"
        "from hfmds.service.process.settings import load_settings\n"
        "open_engine(load_settings(EdgeSettings, ['--data=digits', '--engine=torch']))\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert "ConfigurationError: HFMDS_ENGINE is torch, but torch is not installed" in result.stderr
    assert "hfmds-fl[torch]" in result.stderr
