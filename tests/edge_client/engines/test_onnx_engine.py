"""The engine without torch: its refusals, and its independence of torch.

That it computes what the torch engine does is in tests/integration/test_engines.py, with plans.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from edge_client.engines.graphs import Graphs, array_of, known_opset, open_graphs, providers_for
from edge_client.engines.onnx_engine import OnnxEngine
from edge_client.engines.plan_steps import PlanTraining
from hfmds.algorithm.local_work import LocalWork
from hfmds.algorithm.pixels import normalise
from hfmds.domain.learning import LabelledImages
from hfmds.domain.methods import METHODS, FedAvg, FedMix, Hfmds, Method, Moon
from hfmds.domain.recipe import ModelSpec, Normalisation, Recipe
from hfmds.errors import ConfigurationError, InvalidInput, LimitExceeded
from hfmds.plans.format import BATCH, OPSET, Graph, Plan, TensorSpec, encode_plan, plan_spec

MODEL = ModelSpec("tiny", 1, 2, 2, 3)
RECIPE = Recipe(MODEL, Normalisation((0.5,), (0.5,)), rounds=3)
IMAGES = TensorSpec("images", "float32", (BATCH, 1, 2, 2))
WEIGHT = TensorSpec("parameter:w", "float32", (3, 4))


def plan(model: ModelSpec = MODEL, method: str = "fedavg") -> Plan:
    """A plan with invalid graphs."""
    graph = Graph(b"no graph", (WEIGHT, IMAGES), (), fixed_bytes=1000, bytes_per_image=100)
    return Plan(model, method, 4, dict.fromkeys(("train", "evaluate", "features"), graph))


def work(folder: Path, plan: Plan | None = None, **changes: object) -> LocalWork:
    shard = LabelledImages(np.zeros((20, 1, 2, 2), np.uint8), np.zeros(20, np.int64))
    task = LocalWork(RECIPE, 1, {"w": np.zeros((3, 4), np.float32)}, shard, seed=1)
    if plan:
        (folder / "plan").write_bytes(encode_plan(plan))
        task = replace(task, plan=folder / "plan")
    return replace(task, **changes)  # type: ignore[arg-type]


def ignore(done: int, steps: int) -> None:
    pass


def test_a_task_without_a_plan_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="HFMDS_ENGINE"):
        OnnxEngine().train(work(tmp_path), ignore)


def test_a_plan_of_another_model_is_refused(tmp_path: Path) -> None:
    other = plan(replace(MODEL, classes=7))
    with pytest.raises(InvalidInput, match=r"classes=7.*classes=3"):
        OnnxEngine().evaluate(work(tmp_path, other), ignore)


def test_a_plan_of_another_method_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"fedprox.*fedavg"):
        OnnxEngine().train(work(tmp_path, plan(method="fedprox")), ignore)


@pytest.mark.parametrize("method", [Moon(), FedMix()])
def test_methods_that_need_torch_are_refused(tmp_path: Path, method: Moon | FedMix) -> None:
    task = work(tmp_path, plan(method=method.name), recipe=replace(RECIPE, method=method))
    message = rf"method {method.name} needs torch.*hfmds-fl\[torch\].*fedavg, fedprox"
    for refuse in (OnnxEngine().train, OnnxEngine().synthesise):
        with pytest.raises(InvalidInput, match=message):
            refuse(task, ignore)


def test_a_half_precision_pool_is_normalised_like_own_images(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    own = LabelledImages(random.integers(0, 256, (5, 1, 2, 2), np.uint8), np.zeros(5, np.int64))
    pool_pixels = random.uniform(0, 1, (4, 1, 2, 2)).astype(np.float16)
    pool = LabelledImages(pool_pixels, np.ones(4, np.int64))
    rows = np.array([3, 0, 4])
    chosen = np.array([2, 0, 3])
    task = work(tmp_path, shard=own, pool=pool, recipe=replace(RECIPE, method=Hfmds()))
    graphs = Graphs(plan(), ["CPUExecutionProvider"], threads=1)
    inputs = array_of(PlanTraining(graphs, task).batch(rows, chosen)["images"])
    by = RECIPE.normalisation
    expected = [normalise(own.pixels[rows], by), normalise(pool_pixels[chosen], by)]
    np.testing.assert_array_equal(inputs, np.concatenate(expected))


@pytest.mark.parametrize("method", METHODS.values())
def test_a_plan_has_only_the_graphs_its_run_needs(method: type[Method]) -> None:
    graphs = plan_spec(replace(RECIPE, rounds=50, method=method())).graphs
    assert ("train" in graphs) == (not method.needs_torch)
    assert ("synthesise" in graphs) == (method is Hfmds)
    assert "evaluate" in graphs


def test_a_method_without_a_pool_has_nothing_to_synthesise(tmp_path: Path) -> None:
    task = work(tmp_path, plan(), recipe=replace(RECIPE, method=FedAvg()))
    with pytest.raises(InvalidInput, match="fedavg"):
        OnnxEngine().synthesise(task, ignore)


def test_weights_of_another_model_are_refused(tmp_path: Path) -> None:
    engine, task = OnnxEngine(), work(tmp_path, plan())
    with pytest.raises(InvalidInput, match="'w'"):
        engine.evaluate(replace(task, weights={"v": np.zeros(3, np.float32)}), ignore)
    with pytest.raises(InvalidInput, match=r"'w'.*\[3\].*\[3, 4\]"):
        engine.evaluate(replace(task, weights={"w": np.zeros(3, np.float32)}), ignore)


def test_work_beyond_the_free_memory_is_refused(tmp_path: Path) -> None:
    task = work(tmp_path, plan())
    engine = OnnxEngine(left_bytes=lambda: 2999)
    with pytest.raises(LimitExceeded, match=r"evaluate.*20.*HFMDS_MAX_MEMORY_BYTES"):
        engine.evaluate(task, ignore)  # 1000 + 20 * 100


def test_the_error_of_an_unloadable_graph_names_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="'evaluate'"):
        OnnxEngine(left_bytes=lambda: 3000).evaluate(work(tmp_path, plan()), ignore)


def test_the_runtime_reports_its_operators(tmp_path: Path) -> None:
    def opened(opset: int) -> Graphs:
        (tmp_path / "plan").write_bytes(encode_plan(replace(plan(), opset=opset)))
        return open_graphs(tmp_path / "plan", ["CPUExecutionProvider"], 1, lambda: 0)

    assert known_opset() > OPSET  # plans use an older opset
    assert opened(known_opset()).model == MODEL
    with pytest.raises(InvalidInput, match=f"{known_opset()}"):
        opened(known_opset() + 1)


def test_missing_operators_of_a_graph_are_named() -> None:
    graphs = Graphs(plan(), ["CPUExecutionProvider"], threads=1)
    with pytest.raises(InvalidInput, match="'parameter:w'"):
        graphs.call("train", {})


def test_the_best_available_provider_is_used() -> None:
    cpu, cuda, other = "CPUExecutionProvider", "CUDAExecutionProvider", "CoreMLExecutionProvider"
    assert providers_for("cpu", [cuda, cpu]) == [cpu]
    assert providers_for("auto", [other, cpu]) == [other, cpu]
    slow = "TensorrtExecutionProvider"  # onnxruntime lists it first
    assert providers_for("auto", [slow, cuda, "AzureExecutionProvider", cpu]) == [cuda, cpu]
    assert providers_for("cuda", [other, cuda, cpu]) == [cuda, cpu]
    with pytest.raises(ConfigurationError, match=r"cuda.*onnxruntime-gpu"):
        providers_for("cuda", [cpu])
    with pytest.raises(ConfigurationError, match=r"mps.*HFMDS_ENGINE"):
        providers_for("mps", [cpu])
    assert OnnxEngine().name == "onnx-cpu"


def run(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )


def test_a_device_with_onnxruntime_imports_no_server_packages() -> None:
    blocked = (
        "alembic",
        "cryptography",
        "matplotlib",
        "onnx",
        "sklearn",
        "sqlalchemy",
        "torch",
        "torchvision",
    )
    result = run(
        "import sys\n"
        f"for name in {blocked}: sys.modules[name] = None\n"
        "import edge_client.__main__\n"
        "from edge_client.engines.engine import open_engine\n"
        "from edge_client.settings import EdgeSettings\n"
        "from hfmds.service.process.settings import load_settings\n"
        "print(open_engine(load_settings(EdgeSettings, ['--data=x', '--engine=onnx'])).name)\n"
    )
    assert (result.stdout, result.stderr) == ("onnx-cpu\n", "")


def test_missing_onnxruntime_is_an_error() -> None:
    result = run(
        "import sys\n"
        "sys.modules['onnxruntime'] = None\n"
        "from edge_client.engines.engine import open_engine\n"
        "from edge_client.settings import EdgeSettings\n"
        "from hfmds.service.process.settings import load_settings\n"
        "open_engine(load_settings(EdgeSettings, ['--data=x', '--engine=onnx']))\n"
    )
    assert "HFMDS_ENGINE is onnx, but onnxruntime is not installed" in result.stderr
    assert "hfmds-fl[edge]" in result.stderr
