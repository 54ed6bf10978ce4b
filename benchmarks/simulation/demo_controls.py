"""Does synthesis help? Compares the demo's setting with all controls, over several seeds.

    python -m benchmarks.simulation.demo_controls [--seeds 0 1 2]

Prints the mean accuracy over the last five rounds. Beyond `hfmds demo` it runs FedAvg at more
rates, a pool of unoptimised noise, synthesis with the classification loss alone, and feature
matching without the hard direction (mu = 0).
"""

from __future__ import annotations

import argparse
import dataclasses
import multiprocessing
import sys
from collections.abc import Iterator
from itertools import product

import numpy as np
import torch

from hfmds.algorithm.federation import federate
from hfmds.algorithm.methods.method_registry import first_checkpoint
from hfmds.algorithm.simulation.local_fleet import LocalFleet
from hfmds.cli.demo.setting import FEDAVG, HFMDS, DemoSetting
from hfmds.data.sources import load_images
from hfmds.data.splits import label_skew
from hfmds.domain.methods import Hfmds
from hfmds.domain.recipe import Recipe

LAST_ROUNDS = 5


def arms(setting: DemoSetting) -> Iterator[tuple[str, Recipe]]:
    """Return the arms of the comparison by name."""
    specs = setting.runs()
    fedavg, hfmds = specs[FEDAVG].recipe, specs[HFMDS].recipe
    assert isinstance(hfmds.method, Hfmds)
    for divisor in (1, 5, 10, 20):
        rate = setting.learning_rate / divisor
        training = dataclasses.replace(fedavg.training, learning_rate=rate)
        yield f"FedAvg, rate {rate:g}", dataclasses.replace(fedavg, training=training)
    for name, change in (
        ("noise pool", {"steps": 0}),
        ("L_C only", {"matching_weight": 0.0}),
        ("FMDS-FL (mu = 0)", {"mu": 0.0}),
        ("HFMDS-FL", {}),
    ):
        method = dataclasses.replace(hfmds.method, **change)
        yield f"{name}, rate {setting.learning_rate:g}", dataclasses.replace(hfmds, method=method)


def accuracy(arm: str, seed: int) -> float:
    """Run one arm; return its mean accuracy in % over the last rounds."""
    torch.set_num_threads(1)
    setting = DemoSetting(seed=seed)
    recipe = dict(arms(setting))[arm]
    images = load_images(f"digits:{setting.image_size}#train")
    parts = label_skew(
        images.labels,
        setting.devices,
        setting.classes_per_device,
        seed,
        setting.images_per_device,
    )
    shards = {f"device-{number:02}": images.take(part) for number, part in enumerate(parts)}
    held_out = load_images(f"digits:{setting.image_size}#test")
    fleet = LocalFleet(recipe, shards, held_out)
    rounds = federate(fleet, recipe, first_checkpoint(recipe))
    accuracies = [100 * r.evaluation.accuracy for r in rounds if r.evaluation]
    return float(np.mean(accuracies[-LAST_ROUNDS:]))


def main() -> None:
    """Run all arms on all cores and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    seeds = parser.parse_args().seeds
    names = [name for name, _ in arms(DemoSetting())]
    jobs = list(product(names, seeds))
    accuracies: dict[tuple[str, int], float] = {}
    with multiprocessing.get_context("spawn").Pool() as pool:
        results = [pool.apply_async(accuracy, job) for job in jobs]
        for number, (job, result) in enumerate(zip(jobs, results, strict=True), start=1):
            accuracies[job] = result.get()
            sys.stderr.write(
                f"{number}/{len(jobs)} {job[0]}, seed {job[1]}: {accuracies[job]:.1f} %\n"
            )
    heads = [f"seed {seed}" for seed in seeds]
    table = [f"| | {' | '.join(heads)} | mean |", "|---|" + "---|" * (len(seeds) + 1)]
    for name in names:
        values = [accuracies[name, seed] for seed in seeds]
        cells = " | ".join(f"{value:.1f}" for value in (*values, np.mean(values)))
        table.append(f"| {name} | {cells} |")
    sys.stdout.write("\n".join(table) + "\n")


if __name__ == "__main__":
    main()
