"""What does a device cost with onnxruntime, and what with torch?

    make edge-binary; .venv/bin/python benchmarks/edge_engines.py [--quick]

Each line is measured in a process of its own, as a device is one: processor time and memory until
the engine is open, then whole tasks of the paper's CNN, as the edge client does them. A step's time
is that of a task with many steps less that of one with few, per step; the best of three. Installed
size is that of the packages a device needs, and of what they need. At rest is the whole program,
waiting for a coordinator; the binary, if it was built, too.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from importlib.metadata import distribution
from pathlib import Path

import numpy as np
from packaging.requirements import Requirement
from programs import MEGABYTE, show, tell, usage, warn_if_busy

from hfmds.algorithm.engine import LocalWork
from hfmds.algorithm.methods.settings import Hfmds
from hfmds.algorithm.recipes import ModelSpec, Normalisation, Recipe, TrainingRecipe
from hfmds.algorithm.types import LabelledImages
from hfmds.data.sources import save_npz

MODEL = ModelSpec()
ENGINES = ("onnx", "torch")
STEPS = (4, 44)  # few and many
TASKS = {"train, 10 + 10": ("train", 10), "train, 100 + 100": ("train", 100)}
TASKS |= {"synthesise, 100": ("synthesise", 100)}


def images(count: int) -> LabelledImages:
    """Noise."""
    random = np.random.default_rng(count)
    pixels = random.integers(0, 256, (count, *MODEL.image_shape), np.uint8)
    return LabelledImages(pixels, random.integers(0, MODEL.classes, count))


def task(kind: str, batch: int, steps: int, weights: Path, plan: Path) -> LocalWork:
    """A task of so many steps."""
    from hfmds.wire.tensors import StoredWeights

    settings = TrainingRecipe(batch_size=batch)
    method = Hfmds(samples_per_device=batch, steps=steps)
    recipe = Recipe(MODEL, Normalisation((0.5,) * 3, (0.25,) * 3), 1, 0, settings, method)
    shard = images(batch * steps if kind == "train" else batch)
    pool = images(10 * batch) if kind == "train" else None
    return LocalWork(recipe, 1, StoredWeights(weights, "w"), shard, 1, pool, plan=plan)


def measure(engine: str, threads: int, folder: Path) -> None:
    """In a process of its own: print what opening an engine and each task cost."""
    from edge_client.engine import open_engine
    from edge_client.settings import EdgeSettings
    from hfmds.service.settings import load_settings

    flags = ["--data=x", f"--engine={engine}", f"--threads={threads}"]
    opened = open_engine(load_settings(EdgeSettings, flags))
    found: dict[str, float] = {"open seconds": time.process_time(), "open bytes": peak_bytes()}
    for name, (kind, batch) in TASKS.items():
        act = opened.train if kind == "train" else opened.synthesise
        few, many = (
            task(kind, batch, steps, folder / "weights", folder / "plan") for steps in STEPS
        )
        act(few, lambda done, steps: None)
        seconds = min(elapsed(act, many) - elapsed(act, few) for _ in range(3))
        found[name] = seconds / (STEPS[1] - STEPS[0])
        found[f"{name} bytes"] = peak_bytes()
    print(json.dumps(found))  # noqa: T201


def elapsed(act: object, work: LocalWork) -> float:
    """Seconds that a task takes."""
    started = time.perf_counter()
    act(work, lambda done, steps: None)  # type: ignore[operator]
    return time.perf_counter() - started


def peak_bytes() -> int:
    """The most that this process has had in memory; getrusage would count its parent's, too."""
    return usage(os.getpid()).peak_rss_bytes


def at_rest(command: list[str], engine: str, folder: Path) -> tuple[float, int]:
    """Processor seconds until a device is ready, and its memory then, in bytes."""
    address_file, state = folder / "address.json", folder / "state"
    address_file.unlink(missing_ok=True)
    settings = {
        "engine": engine,
        "data": str(folder / "data.npz"),
        "state_dir": str(state),
        "address_file": str(address_file),
        "metrics_listen": "127.0.0.1:0",
        "coordinator": "127.0.0.1:9",  # nobody
    }
    process = subprocess.Popen(  # noqa: S603
        command,
        env={f"HFMDS_{name.upper()}": value for name, value in settings.items()},
        stderr=subprocess.DEVNULL,
    )
    try:
        while not address_file.exists():
            if process.poll() is not None:
                raise SystemExit(f"{command[0]} ended by itself")
            time.sleep(0.02)
        inner = json.loads(address_file.read_text())["pid"]  # the binary unpacks itself, and waits
        seconds = sum(usage(pid).cpu_seconds for pid in {process.pid, inner})
        return seconds, usage(inner).rss_bytes
    finally:
        process.terminate()
        process.wait(30)


def show_at_rest(folder: Path) -> None:
    """The table of whole programs that wait."""
    save_npz(folder / "data.npz", images(100))
    module = [sys.executable, "-m", "edge_client"]
    programs = [("onnx", module, "onnx"), ("torch", module, "torch")]
    binary = Path("dist/hfmds-edge-client")
    if binary.exists():
        size = f"binary of {binary.stat().st_size / MEGABYTE:.0f} MB"
        programs.insert(0, (size, [str(binary)], "onnx"))
    show("\n| at rest | start, processor | memory |\n|---|---|---|")
    for name, command, engine in programs:
        seconds, held = at_rest(command, engine, folder)
        show(f"| {name} | {seconds:.2f} s | {held / MEGABYTE:.0f} MB |")


def installed_bytes(names: Iterable[str]) -> int:
    """The size of these packages and of all that they need."""
    seen: set[str] = set()
    left, total = list(names), 0
    while left:
        name = left.pop().lower().replace("_", "-")
        if name in seen:
            continue
        seen.add(name)
        package = distribution(name)
        files = (Path(str(package.locate_file(file))) for file in package.files or ())
        total += sum(path.stat().st_size for path in files if path.is_file())
        needs = map(Requirement, package.requires or ())
        left += [n.name for n in needs if n.marker is None or n.marker.evaluate({"extra": ""})]
    return total


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one thread only")
    parser.add_argument("--child", nargs=3)
    arguments = parser.parse_args()
    if arguments.child:
        engine, threads, folder = arguments.child
        measure(engine, int(threads), Path(folder))
        return
    warn_if_busy()
    from hfmds.algorithm.models import initial_weights
    from hfmds.plans.library import PlanLibrary
    from hfmds.wire.tensors import encode_weights

    common = ("grpcio", "numpy", "pillow", "prometheus-client", "protobuf", "pydantic-settings")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tell("making the plan")
        (folder / "plan").write_bytes(PlanLibrary().plan(MODEL))
        (folder / "weights").write_bytes(encode_weights(initial_weights(MODEL, 0)))
        for threads in (1,) if arguments.quick else (1, 2):
            found = {}
            for engine in ENGINES:
                tell(f"{engine}, {threads} threads")
                command = [sys.executable, __file__, "--child", engine, str(threads), name]
                ended = subprocess.run(command, check=True, stdout=subprocess.PIPE)  # noqa: S603
                found[engine] = json.loads(ended.stdout)
            show(
                f"\n| {threads} threads | {' | '.join(ENGINES)} | onnx / torch |\n|---|---|---|---|"
            )
            for key in found["onnx"]:
                ours, theirs = (found[engine][key] for engine in ENGINES)
                unit, scale = ("MB", 1 / MEGABYTE) if key.endswith("bytes") else ("ms", 1000.0)
                label = key.replace(" bytes", ", peak memory").replace(" seconds", ", processor")
                show(
                    f"| {label} | {ours * scale:.1f} {unit} | {theirs * scale:.1f} {unit} | "
                    f"{ours / theirs:.2f} |"
                )
        show_at_rest(folder)
    sizes = [installed_bytes([*common, "safetensors", each]) for each in ("onnxruntime", "torch")]
    show(
        "\n| installed | onnx | torch | onnx / torch |\n|---|---|---|---|\n"
        f"| packages | {sizes[0] / MEGABYTE:.0f} MB | {sizes[1] / MEGABYTE:.0f} MB | "
        f"{sizes[0] / sizes[1]:.2f} |"
    )


if __name__ == "__main__":
    main()
