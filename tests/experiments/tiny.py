"""An experiment that takes seconds, and the parts of it that the tests share."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from hfmds.data.datasets import Dataset
from hfmds.domain.learning import LabelledImages
from hfmds.experiments.experiment import Experiment
from hfmds.experiments.settings import Settings, resolved
from hfmds.experiments.trials.loaded_data import DataShelf, LoadedData
from hfmds.experiments.trials.trial import Trial, build_trial

SETTINGS: Settings = {
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
}
FIELDS: dict[str, Any] = {
    "title": "Tiny",
    "settings": SETTINGS,
    "splits": {"two classes": {}},
    "arms": {
        "FedAvg": {},
        "slow": {"training.learning_rate": 0.005},
        "HFMDS": {"method": "hfmds"},
    },
    "controls": ("FedAvg", "slow"),
    "seeds": (0, 1),
    "last_rounds": 2,
}


def an_experiment(settings: Settings | None = None, **changes: Any) -> Experiment:
    """The tiny experiment with other settings of all trials and with other fields."""
    fields = {**FIELDS, "settings": {**SETTINGS, **(settings or {})}, **changes}
    return Experiment(**{"name": "tiny", "size": "small", **fields})


def write_experiment(
    folder: Path, settings: Settings | None = None, name: str = "tiny", **changes: Any
) -> Path:
    """The same as a file, in the sizes small and one, which has one seed."""
    fields = {**FIELDS, "settings": {**SETTINGS, **(settings or {})}, **changes}
    path = folder / f"{name}.py"
    path.write_text(
        "from hfmds.experiments.experiment import Experiment\n"
        "SIZES = ('small', 'one')\n"
        "def experiment(size):\n"
        f"    fields = {fields!r}\n"
        "    seeds = (0,) if size == 'one' else fields['seeds']\n"
        "    return Experiment(**{**fields, 'seeds': seeds})\n"
    )
    return path


@cache  # the digits are loaded once
def a_shelf() -> DataShelf:
    return DataShelf(Path("unused"))


def a_trial(data: LoadedData | None = None, seed: int = 0, **changed: object) -> Trial:
    """The tiny experiment's first trial; `__` in a name stands for its dot."""
    own: dict[str, Any] = {key.replace("__", "."): value for key, value in changed.items()}
    fedgen = {
        "fedgen.generator_steps": 2,
        "fedgen.generator_batch_size": 8,
        "fedgen.hidden_size": 16,
    }
    settings = resolved("the test", SETTINGS, fedgen, own)
    return build_trial(settings, seed, data or some_data(), "the test")


def some_data(seed: int = 0, name: str = "noise") -> LoadedData:
    """Noise in ten classes: as good as any for what is not about learning."""
    random = np.random.default_rng(seed)

    def images(count: int) -> LabelledImages:
        pixels = random.integers(0, 256, (count, 1, 16, 16), dtype=np.uint8)
        return LabelledImages(pixels, np.arange(count, dtype=np.int64) % 10)

    return LoadedData.of(Dataset(name, images(120), images(60), tuple("abcdefghij")))
