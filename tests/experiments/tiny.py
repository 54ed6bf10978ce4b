"""An experiment that takes seconds, and the parts of it that the tests share."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np

from hfmds.data.datasets import Dataset
from hfmds.domain.learning import LabelledImages
from hfmds.experiments.config import read_experiment
from hfmds.experiments.experiment import Experiment
from hfmds.experiments.trials.loaded_data import DataShelf, LoadedData
from hfmds.experiments.trials.trial import Trial, build_trial
from hfmds.experiments.vocabulary import Settings, settings_from

CONFIG = """\
title: Tiny
settings:
  data: digits:16
  method: fedavg
  rounds: 4
  test_images: 40
  split: {kind: label-skew, devices: 3, classes_per_device: 2, samples_per_device: 8}
  training: {batch_size: 4, learning_rate: 0.05}
  hfmds: {first_round: 2, every_rounds: 2, samples_per_device: 3, steps: 2}
  fedmix.samples_per_device: 3
  fedgan: {gan_rounds: 2, samples_per_device: 3, width: 8}
known_splits:
  two classes: {}
  alike: {split: {kind: iid, classes_per_device: null}}
known_arms:
  FedAvg: {}
  slow: {training.learning_rate: 0.005}
  HFMDS: {method: hfmds}
splits: [two classes]
arms: [FedAvg, slow, HFMDS]
controls: [FedAvg, slow]
seeds: [0, 1]
last_rounds: 2
sizes: {small: {}, one: {seeds: [0]}}
"""


def write_config(folder: Path, text: str = CONFIG, name: str = "tiny") -> Path:
    path = folder / f"{name}.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def an_experiment(folder: Path, text: str = CONFIG, size: str = "small") -> Experiment:
    return read_experiment(write_config(folder, text), size)


@cache  # the digits are loaded once
def a_shelf() -> DataShelf:
    return DataShelf(Path("unused"))


def a_trial(data: LoadedData | None = None, seed: int = 0, **changed: object) -> Trial:
    """The tiny experiment's first trial; `__` in a name stands for its dot."""
    base: Settings = {
        "data": "digits:16",
        "method": "fedavg",
        "rounds": 4,
        "test_images": 40,
        "split.kind": "label-skew",
        "split.devices": 3,
        "split.classes_per_device": 2,
        "split.samples_per_device": 8,
        "training.batch_size": 4,
        "training.learning_rate": 0.05,
        "hfmds.first_round": 2,
        "hfmds.every_rounds": 2,
        "hfmds.samples_per_device": 3,
        "hfmds.steps": 2,
        "fedmix.samples_per_device": 3,
        "fedgan.gan_rounds": 2,
        "fedgan.samples_per_device": 3,
        "fedgan.width": 8,
        "fedgen.generator_steps": 2,
        "fedgen.generator_batch_size": 8,
        "fedgen.hidden_size": 16,
    }
    own = settings_from({key.replace("__", "."): v for key, v in changed.items()}, "the test")
    return build_trial({**base, **own}, seed, data or some_data(), "the test")


def some_data(seed: int = 0, name: str = "noise") -> LoadedData:
    """Noise in ten classes: as good as any for what is not about learning."""
    random = np.random.default_rng(seed)

    def images(count: int) -> LabelledImages:
        pixels = random.integers(0, 256, (count, 1, 16, 16), dtype=np.uint8)
        return LabelledImages(pixels, np.arange(count, dtype=np.int64) % 10)

    return LoadedData.of(Dataset(name, images(120), images(60), tuple("abcdefghij")))
