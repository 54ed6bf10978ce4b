"""Both engines learn the same, in single steps and in complete tasks.

Free-running training is chaotic: where rounding turns one ReLU, the weights part by more than the
rounding. So a single step is held to rounding, and a whole task to a small part of how far it moved
the weights; torch with and without mkldnn differ as much.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812  (torch's own convention)
from numpy.typing import NDArray
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from edge_client.device.memory_limit import MemoryLimit, own_memory_bytes
from edge_client.engines.graphs import open_graphs
from edge_client.engines.onnx_engine import OnnxEngine
from edge_client.engines.torch_engine import TorchEngine
from hfmds.algorithm.local_work import LocalWork
from hfmds.algorithm.methods.fedavg import FedAvgMethod
from hfmds.algorithm.methods.method_registry import METHOD_CLASSES, first_checkpoint
from hfmds.algorithm.models.architectures import register_architecture
from hfmds.algorithm.torch_steps.losses import pooled_loss
from hfmds.algorithm.torch_steps.torch_training import Batch, BatchLoss, LocalModel
from hfmds.domain.learning import LabelledImages
from hfmds.domain.methods import METHODS, FedAvg, FedProx, Hfmds, Method
from hfmds.domain.recipe import ModelSpec, Normalisation, Recipe, TrainingRecipe
from hfmds.domain.validation import STRICT
from hfmds.plans.format import ANCHOR, GRAPHS, SETTING, PlanSpec, encode_plan, read_plan
from hfmds.plans.making import make_plan
from hfmds.plans.plan_library import PlanLibrary

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]  # making plans takes long

Arrays = Mapping[str, NDArray[np.float32]]

STEP = 2e-5
"""The largest difference after a step, relative to the largest weight."""
TASK = 1e-2
"""The largest difference after a task, relative to the change of the weights."""


class Slim(nn.Module):
    """Batch normalisation, a depthwise convolution and a mean over positions."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.extractor = nn.Sequential(
            nn.Conv2d(spec.channels, 8, 3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(8),
            nn.Hardswish(),
            nn.Conv2d(8, 8, 3, padding=1, groups=8, bias=False),
            nn.BatchNorm2d(8),
            nn.Conv2d(8, 16, 1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
        )
        self.classifier = nn.Linear(16, spec.classes)

    def features(self, images: Tensor) -> Tensor:
        features: Tensor = self.extractor(images)
        return features

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.features(images))
        return logits


MODELS = {
    "paper-cnn": ModelSpec("paper-cnn", 1, 16, 16, 10),  # the model of test_federation.py, too
    "resnet-gn": ModelSpec("resnet-gn", 1, 8, 9, 4),  # images that are not square
    "slim": ModelSpec("slim-of-a-test", 1, 8, 8, 4),
    "paper-cnn, 3x32x32": ModelSpec("paper-cnn", 3, 32, 32, 10),  # as in the paper
}
WITH_SYNTHESIS = ("paper-cnn", "resnet-gn")  # the others would only take longer

Task = Callable[..., LocalWork]


@dataclass(frozen=True, config=STRICT)
class Leash(Method):
    """A method that only this module knows: softened labels, and the distance itself to w^t."""

    name = table = "leash"
    softness: float = 0.1
    stiffness: float = 3.0


class LeashMethod(FedAvgMethod[Leash]):
    """All that a new method needs for both engines: its loss."""

    @classmethod
    def loss(cls, local: LocalModel, batch: Batch, settings: Leash) -> BatchLoss:
        z = local.features(batch.images)
        log_shares = F.log_softmax(local.classifier(z), dim=1)
        hard = F.nll_loss(log_shares, batch.labels, reduction="none")
        soft = (1 - settings.softness) * hard - settings.softness * log_shares.mean(dim=1)
        ways = zip(local.parameters, local.anchor, strict=True)
        way = torch.stack([(w - w_t).square().sum() for w, w_t in ways]).sum()
        leash = settings.stiffness * (way + 1e-6).sqrt()
        return BatchLoss(pooled_loss(soft, batch.sample_weights) + leash, z)


@pytest.fixture(scope="module", autouse=True)
def register_leash() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(METHODS, Leash.name, Leash)
        patch.setitem(METHOD_CLASSES, Leash, LeashMethod)
        yield


@pytest.fixture(scope="module")
def task(plans_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Task:
    """Make a task for a model, with its plan."""
    torch.set_num_threads(1)
    register_architecture("slim-of-a-test", Slim, replace=True)
    folder = tmp_path_factory.mktemp("plans")

    @functools.cache
    def plan(name: str, method: str) -> Path:
        path = folder / f"{name}, {method}"
        synthesis = method == Hfmds.name and name in WITH_SYNTHESIS
        spec = PlanSpec(MODELS[name], method, GRAPHS if synthesis else ("train", "evaluate"))
        if name == "paper-cnn" and synthesis:
            path.write_bytes(PlanLibrary(plans_dir).plan(spec))
        else:  # in this process, which knows the networks and methods of this module
            path.write_bytes(encode_plan(make_plan(spec)))
        return path

    def make(name: str, method: Method, **training: float) -> LocalWork:
        return work(MODELS[name], plan(name, method.name), method, **training)

    return make


def images(model: ModelSpec, count: int, seed: int) -> LabelledImages:
    """Make noise around a brightness per class, so that models can learn the classes."""
    random = np.random.default_rng(seed)
    labels = random.integers(0, model.classes, count)
    bright = (labels * 160 // model.classes)[:, None, None, None]
    noise = random.integers(0, 96, (count, *model.image_shape))
    return LabelledImages((bright + noise).astype(np.uint8), labels)


def work(model: ModelSpec, plan: Path, method: Method, **training: float) -> LocalWork:
    recipe = Recipe(
        model,
        Normalisation((0.4,) * model.channels, (0.2,) * model.channels),
        rounds=3,
        training=TrainingRecipe(**{"learning_rate": 0.02, "alpha": 0.3, **training}),  # type: ignore[arg-type]
        method=method,
    )
    shard, weights = images(model, 37, seed=1), first_checkpoint(recipe).weights
    return LocalWork(recipe, 2, weights, shard, seed=5, plan=plan)


def ignore(done: int, steps: int) -> None:
    pass


def apart(ours: Arrays, theirs: Arrays) -> float:
    assert list(ours) == list(theirs)
    assert all(ours[name].dtype == np.float32 for name in ours)
    return max(float(np.abs(ours[name] - theirs[name]).max()) for name in ours)


def size(weights: Arrays) -> float:
    return max(float(np.abs(array).max()) for array in weights.values())


TRAINED = [
    ("paper-cnn", FedAvg(), False),
    ("paper-cnn", FedProx(mu=0.5), False),
    ("slim", Leash(), False),
    ("paper-cnn", Hfmds(), False),
    ("paper-cnn", Hfmds(), True),
    ("paper-cnn", Hfmds(local_prototypes=True), True),
    ("resnet-gn", Hfmds(), True),
    ("slim", Hfmds(), True),
]


@pytest.mark.matrix(one_in=2)
@pytest.mark.parametrize(("model", "method", "with_pool"), TRAINED)
def test_both_engines_train_the_same(
    task: Task, model: str, method: Method, with_pool: bool
) -> None:
    job = task(model, method, local_epochs=3)
    if with_pool:
        job = replace(job, pool=images(MODELS[model], 25, seed=2))
    ours, theirs = OnnxEngine().train(job, ignore), TorchEngine().train(job, ignore)
    moved = apart(theirs.weights, {name: job.weights[name] for name in theirs.weights})
    assert moved > 1e-3
    assert apart(ours.weights, theirs.weights) <= TASK * moved
    assert ours.loss == pytest.approx(theirs.loss, rel=1e-3)
    assert ours.samples == theirs.samples
    assert ours.memory.keys() == theirs.memory.keys()  # local prototypes, if required
    for c in theirs.memory:
        np.testing.assert_allclose(ours.memory[c], theirs.memory[c], rtol=0, atol=1e-2)


ONE_STEP = [*((model, Hfmds()) for model in MODELS), ("slim", Leash())]


@pytest.mark.parametrize(("model", "method"), ONE_STEP)
def test_both_engines_take_the_same_training_steps(task: Task, model: str, method: Method) -> None:
    # A batch of all images is one step. The next step starts from torch's weights.
    job = task(model, method, batch_size=37)
    for _ in range(6):
        ours, theirs = OnnxEngine().train(job, ignore), TorchEngine().train(job, ignore)
        assert apart(ours.weights, theirs.weights) <= STEP * size(theirs.weights)
        job = replace(job, weights=theirs.weights)


def test_a_new_method_needs_only_its_loss(task: Task) -> None:
    graph = read_plan(path_of(task("slim", Leash())), "the plan").graph("train")
    names = {spec.name for spec in graph.inputs}
    assert {"setting:softness", "setting:stiffness", "anchor:classifier.weight"} <= names
    # One plan serves all values of its settings.
    weights = [
        OnnxEngine().train(task("slim", Leash(stiffness=stiffness)), ignore).weights
        for stiffness in (0.0, 3.0)
    ]
    assert apart(*weights) > 1e-3


def test_a_graph_takes_no_input_that_its_loss_does_not_read(task: Task) -> None:
    graph = read_plan(path_of(task("slim", Hfmds())), "the plan").graph("train")
    assert not [s.name for s in graph.inputs if s.name.startswith((ANCHOR, SETTING))]


def path_of(work: LocalWork) -> Path:
    assert work.plan
    return work.plan


def test_the_learning_rate_falls_in_its_round_and_not_before(task: Task) -> None:
    falling = {"later_from_round": 2, "later_learning_rate": 0.002}
    for number, rate in ((1, 0.02), (2, 0.002), (3, 0.002)):
        job = replace(task("paper-cnn", FedAvg(), **falling), round_number=number)
        plain = replace(task("paper-cnn", FedAvg(), learning_rate=rate), round_number=number)
        for engine in (OnnxEngine(), TorchEngine()):
            ours, expected = (engine.train(work, ignore).weights for work in (job, plain))
            assert apart(ours, expected) == 0


def test_memory_does_not_grow_from_task_to_task(task: Task) -> None:
    name, batch = "paper-cnn, 3x32x32", 150
    small, large = task(name, Hfmds()), task(name, Hfmds(), batch_size=batch)
    large = replace(large, shard=images(MODELS[name], batch, seed=3))
    OnnxEngine().train(small, ignore)  # loads everything that stays in memory
    assert large.plan
    needed = open_graphs(large.plan, [], 1, lambda: 0).memory_bytes("train", batch)
    assert needed > 100_000_000  # far above the noise of this process
    engine = OnnxEngine(left_bytes=MemoryLimit(own_memory_bytes() + needed * 5 // 4).left_bytes)
    for _ in range(3):
        engine.train(large, ignore)


def test_seeds_and_methods_change_the_weights(task: Task) -> None:
    engine, job = OnnxEngine(), task("paper-cnn", Hfmds())
    pooled = replace(job, pool=images(MODELS["paper-cnn"], 25, seed=2))
    proximal = task("paper-cnn", FedProx(mu=5))
    results = [
        engine.train(work, ignore).weights for work in (job, replace(job, seed=6), proximal, pooled)
    ]
    for i, result in enumerate(results):
        assert all(apart(result, other) > 1e-5 for other in results[i + 1 :])
    # Nothing else changes the weights.
    assert apart(engine.train(job, ignore).weights, results[0]) == 0


SYNTHESISED = {
    "hfmds": Hfmds(samples_per_device=12, steps=15),
    "fmds": Hfmds(samples_per_device=12, steps=15, mu=0.0),
    "classification loss alone": Hfmds(samples_per_device=12, steps=15, matching_weight=0.0),
    "noise": Hfmds(samples_per_device=12, steps=0),
}


@pytest.mark.parametrize("model", WITH_SYNTHESIS)
@pytest.mark.parametrize("case", SYNTHESISED)
def test_both_engines_synthesise_the_same(task: Task, model: str, case: str) -> None:
    job = task(model, SYNTHESISED[case], local_epochs=4)
    job = replace(job, weights=TorchEngine().train(job, ignore).weights)  # not w_0
    ours, theirs = OnnxEngine().synthesise(job, ignore), TorchEngine().synthesise(job, ignore)
    np.testing.assert_array_equal(ours.batch.images.labels, theirs.batch.images.labels)
    levels = np.abs(ours.batch.images.pixels.astype(int) - theirs.batch.images.pixels.astype(int))
    # Adam's steps have one length for any gradient. Near zero, the sign of the gradient decides,
    # and rounding decides the sign.
    assert (levels > 1).mean() <= 0.03
    assert apart(ours.memory, theirs.memory) <= STEP * size(theirs.memory)
    np.testing.assert_allclose(ours.batch.psnr_paired, theirs.batch.psnr_paired, atol=0.05)
    assert ours.health is not None
    assert theirs.health is not None
    for name in ("classification_loss", "real_margin", "hard_margin"):
        assert getattr(ours.health, name) == pytest.approx(
            getattr(theirs.health, name), rel=0.02, abs=1e-3
        ), name
    assert ours.health.accuracy == pytest.approx(theirs.health.accuracy, abs=1 / 12)


def test_a_synthesis_with_local_prototypes_remembers_nothing(task: Task) -> None:
    job = task("paper-cnn", Hfmds(samples_per_device=6, steps=1, local_prototypes=True))
    assert OnnxEngine().synthesise(job, ignore).memory == {}


@pytest.mark.parametrize("model", WITH_SYNTHESIS)
def test_earlier_prototypes_influence_the_synthesis(task: Task, model: str) -> None:
    job = task(model, Hfmds(samples_per_device=6, steps=2))
    first = OnnxEngine().synthesise(job, ignore)
    assert job.plan
    assert {len(zbar) for zbar in first.memory.values()} == {read_plan(job.plan, model).features}
    again = replace(job, memory={c: zbar + 1 for c, zbar in first.memory.items()})
    ours, theirs = OnnxEngine().synthesise(again, ignore), TorchEngine().synthesise(again, ignore)
    assert apart(ours.memory, first.memory) == pytest.approx(0.5, rel=1e-3)
    assert apart(ours.memory, theirs.memory) <= STEP * size(theirs.memory)


@pytest.mark.parametrize("model", MODELS)
def test_both_engines_evaluate_the_same(task: Task, model: str) -> None:
    job = replace(task(model, Hfmds()), shard=images(MODELS[model], 300, seed=3))
    ours, theirs = OnnxEngine().evaluate(job, ignore), TorchEngine().evaluate(job, ignore)
    assert (ours.accuracy, ours.samples) == (theirs.accuracy, theirs.samples)
    assert ours.loss == pytest.approx(theirs.loss, rel=1e-5)


def test_progress_ends_the_work(task: Task) -> None:
    class Enough(Exception):
        pass

    def stop(done: int, steps: int) -> None:
        raise Enough

    job = task("paper-cnn", Hfmds(samples_per_device=4, steps=2))
    for act in (OnnxEngine().train, OnnxEngine().synthesise, OnnxEngine().evaluate):
        with pytest.raises(Enough):
            act(job, stop)
