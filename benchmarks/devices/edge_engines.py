"""What does a device cost with onnxruntime, and with torch?

    make edge-binary; python -m benchmarks.devices.edge_engines [--quick]

Each column runs in its own process: processor time and memory until the engine is open, then
tasks of the paper's CNN. `onnx` and `torch` are the engines of the edge client. `eager` and
`compile` are the same steps in plain torch (plain_torch.py). The time of a step is a long task less
a short one, divided by the difference in steps; best of three, in turns. Installed size includes
dependencies. "At rest" is the program that waits for a coordinator, and the binary if it was built.
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
from typing import Any

import numpy as np
from packaging.requirements import Requirement

from benchmarks.shared.programs import MEGABYTE, print_progress, print_result, usage, warn_if_busy
from hfmds.algorithm.local_work import LocalWork
from hfmds.data.packed import save_npz
from hfmds.domain.learning import LabelledImages
from hfmds.domain.methods import Hfmds
from hfmds.domain.recipe import ModelSpec, Normalisation, Recipe, TrainingRecipe

MODEL = ModelSpec()
OURS, PLAIN = ("onnx", "torch"), ("eager", "compile")
STEPS = (4, 44)  # few and many
PACKAGES = (  # that every device needs
    "cryptography",
    "grpcio",
    "numpy",
    "pillow",
    "prometheus-client",
    "protobuf",
    "pydantic-settings",
    "safetensors",
)
TASKS = {
    "train, 10 + 10": ("train", 10),
    "train, 100 + 100": ("train", 100),
    "synthesise, 10": ("synthesise", 10),
    "synthesise, 100": ("synthesise", 100),
}


def images(count: int) -> LabelledImages:
    """Make noise images."""
    random = np.random.default_rng(count)
    pixels = random.integers(0, 256, (count, *MODEL.image_shape), np.uint8)
    return LabelledImages(pixels, random.integers(0, MODEL.classes, count))


def task(kind: str, batch: int, steps: int, weights: Path, plan: Path) -> LocalWork:
    """Make a task with a number of steps."""
    from hfmds.wire.tensors import StoredWeights

    settings = TrainingRecipe(batch_size=batch)
    method = Hfmds(samples_per_device=batch, steps=steps)
    recipe = Recipe(MODEL, Normalisation((0.5,) * 3, (0.25,) * 3), 1, 0, settings, method)
    shard = images(batch * steps if kind == "train" else batch)
    pool = images(10 * batch) if kind == "train" else None
    return LocalWork(recipe, 1, StoredWeights(weights, "w"), shard, 1, pool, plan=plan)


def answer(column: str, threads: int, folder: Path, processor: bool) -> None:
    """Run as a child: report the cost of opening, then of each named task."""
    engine = opened(column, threads)
    clock = time.process_time if processor else time.perf_counter
    send({"seconds": time.process_time(), "bytes": peak_bytes()})
    warm: set[str] = set()
    for line in sys.stdin:
        kind, batch = TASKS[line.strip()]
        act = engine.train if kind == "train" else engine.synthesise
        few, many = (
            task(kind, batch, steps, folder / "weights", folder / "plan") for steps in STEPS
        )
        try:
            if line not in warm:
                act(few, ignore)
                warm.add(line)
            taken = []
            for work in (few, many):
                started = clock()
                act(work, ignore)
                taken.append(clock() - started)
        except Exception as error:  # the waiting caller gets it
            if column != "compile":
                raise
            send({"error": f"{type(error).__name__}"})
            continue
        seconds = (taken[1] - taken[0]) / (STEPS[1] - STEPS[0])
        send({"seconds": seconds, "bytes": peak_bytes()})


def opened(column: str, threads: int) -> Any:
    """One column of the table."""
    if column in PLAIN:
        from benchmarks.shared.plain_torch import PlainTorch

        return PlainTorch(threads, compiled=column == "compile")
    from edge_client.engines.engine import open_engine
    from edge_client.settings import EdgeSettings
    from hfmds.service.process.settings import load_settings

    flags = ["--data=x", f"--engine={column}", f"--threads={threads}"]
    return open_engine(load_settings(EdgeSettings, flags))


def ignore(done: int, steps: int) -> None:
    """Print progress."""


def send(result: dict[str, Any]) -> None:
    """Send a line to the parent process."""
    sys.stdout.write(json.dumps(result) + "\n")
    sys.stdout.flush()


class Column:
    """The child process of a column, and its best results."""

    def __init__(self, name: str, threads: int, folder: str, processor: bool) -> None:
        arguments = [name, str(threads), folder, str(int(processor))]
        self.name = name
        self._process = subprocess.Popen(  # noqa: S603
            [sys.executable, "-m", __spec__.name, "--child", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.best = {"open": self._read_result()}

    def measure(self, task_name: str) -> None:
        """Measure a task once more."""
        assert self._process.stdin
        self._process.stdin.write(task_name + "\n")
        self._process.stdin.flush()
        result = self._read_result()
        known = self.best.setdefault(task_name, result)
        if "seconds" in result:
            known["seconds"] = min(known["seconds"], result["seconds"])

    def close(self) -> None:
        self._process.communicate()

    def _read_result(self) -> dict[str, Any]:
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"the process of {self.name} has ended")
        result: dict[str, Any] = json.loads(line)
        return result


def show_steps(threads: int, folder: str, processor: bool) -> None:
    """Print the table for a number of threads."""
    columns = [Column(name, threads, folder, processor) for name in (*OURS, *PLAIN)]
    for name in TASKS:
        for _ in range(3):
            for column in columns:
                print_progress(f"{threads} threads, {name}, {column.name}")
                column.measure(name)
    for column in columns:
        column.close()
    names = [column.name for column in columns]
    heads = [f"{threads} threads", *names, *(f"onnx / {name}" for name in names[1:])]
    print_result(f"\n| {' | '.join(heads)} |\n{'|---' * len(heads)}|")
    for name in ("open", *TASKS):
        clock = ", processor" if name == "open" else ""
        show_row(name + clock, [column.best[name] for column in columns], "seconds", 1000.0, "ms")
    show_row("open, peak memory", [c.best["open"] for c in columns], "bytes", 1 / MEGABYTE, "MB")
    for name in TASKS:
        cells = [alone(column, name, threads, folder) for column in names]
        show_row(f"{name}, peak memory", cells, "bytes", 1 / MEGABYTE, "MB")


def alone(column: str, task_name: str, threads: int, folder: str) -> dict[str, Any]:
    """Measure a task's peak memory in a fresh process, since a peak lasts."""
    print_progress(f"{threads} threads, {task_name}, {column}: memory")
    one = Column(column, threads, folder, processor=True)
    one.measure(task_name)
    one.close()
    return one.best[task_name]


def show_row(label: str, cells: list[dict[str, Any]], key: str, scale: float, unit: str) -> None:
    """Format a row: each column, and the ratio of the first one to each other one."""
    values = [
        f"{one[key] * scale:.1f} {unit}" if key in one else f"fails: {one['error']}"
        for one in cells
    ]
    ratios = [f"{cells[0][key] / one[key]:.2f}" if key in one else "" for one in cells[1:]]
    print_result(f"| {' | '.join([label, *values, *ratios])} |")


def peak_bytes() -> int:
    """Return this process's peak memory; getrusage would include its parent's."""
    return usage(os.getpid()).peak_rss_bytes


def at_rest(command: list[str], engine: str, folder: Path) -> tuple[float, int]:
    """Return processor seconds until a device is ready, and its memory in bytes."""
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
    """Print the table of programs that wait for work."""
    save_npz(folder / "data.npz", images(100))
    module = [sys.executable, "-m", "edge_client"]
    programs = [("onnx", module, "onnx"), ("torch", module, "torch")]
    binary = Path("dist/hfmds-edge-client")
    if binary.exists():
        size = f"binary of {binary.stat().st_size / MEGABYTE:.0f} MB"
        programs.insert(0, (size, [str(binary)], "onnx"))
    print_result("\n| at rest | start, processor | memory |\n|---|---|---|")
    for name, command, engine in programs:
        seconds, held = at_rest(command, engine, folder)
        print_result(f"| {name} | {seconds:.2f} s | {held / MEGABYTE:.0f} MB |")


def installed_bytes(names: Iterable[str]) -> int:
    """Return the size of packages with their dependencies."""
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
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one thread only")
    parser.add_argument(
        "--processor", action="store_true", help="show processor times, for a busy machine"
    )
    parser.add_argument("--child", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        column, threads, name, processor = arguments.child
        answer(column, int(threads), Path(name), processor == "1")
        return
    warn_if_busy()
    from hfmds.algorithm.models.building import initial_weights
    from hfmds.plans.format import PlanSpec
    from hfmds.plans.plan_library import PlanLibrary
    from hfmds.wire.tensors import encode_weights

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        print_progress("making the plan")
        (folder / "plan").write_bytes(PlanLibrary().plan(PlanSpec(MODEL)))
        (folder / "weights").write_bytes(encode_weights(initial_weights(MODEL, 0)))
        for threads in (1,) if arguments.quick else (1, 2):
            show_steps(threads, name, arguments.processor)
        show_at_rest(folder)
    sizes = [installed_bytes([*PACKAGES, each]) for each in ("onnxruntime", "torch")]
    print_result(
        "\n| installed | onnx | torch | onnx / torch |\n|---|---|---|---|\n"
        f"| packages | {sizes[0] / MEGABYTE:.0f} MB | {sizes[1] / MEGABYTE:.0f} MB | "
        f"{sizes[0] / sizes[1]:.2f} |"
    )


if __name__ == "__main__":
    main()
