"""What the demo does: the one place to change it. Plain values, no machinery."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from hfmds.cli.options import Option
from hfmds.domain.methods import Hfmds
from hfmds.domain.recipe import ModelSpec, Normalisation, Recipe, TrainingRecipe
from hfmds.domain.round_policy import RoundPolicy
from hfmds.domain.runs import RunSpec

HFMDS = "HFMDS-FL"
FEDAVG = "FedAvg"
FEDAVG_SLOW = "FedAvg, lr/10"


# Two deviations cover the valid pixels, so the noise that synthesis starts from is mostly valid.
_NORMALISATION = Normalisation((0.5,), (0.25,))


@dataclass(frozen=True, slots=True)
class DemoSetting:
    """Digits, one class per device and much local work: where skew hurts FedAvg most.

    benchmarks/demo_controls.py measures it against more controls, over more seeds.
    """

    devices: int = 10
    seed: int = 0
    rounds: int = 12
    image_size: int = 16
    images_per_device: int = 60
    classes_per_device: int = 1
    batch_size: int = 10
    local_epochs: int = 5
    learning_rate: float = 0.01  # a tenth of it is the best rate for FedAvg here: no straw man
    momentum: float = 0.9
    alpha: float = 0.5
    first_refresh: int = 2
    refresh_every: int = 2
    synthetic_images: int = 20
    synthesis_steps: int = 30
    synthesis_learning_rate: float = 0.1

    def runs(self) -> dict[str, RunSpec]:
        """The runs to compare, by label.

        Among them FedAvg at a tenth of the learning rate: alpha also makes the step on real data
        smaller, and that alone must not pass for a merit of the synthetic images.
        """
        fedavg = Recipe(
            model=ModelSpec(channels=1, height=self.image_size, width=self.image_size),
            normalisation=_NORMALISATION,
            rounds=self.rounds,
            seed=self.seed,
            training=TrainingRecipe(
                batch_size=self.batch_size,
                local_epochs=self.local_epochs,
                learning_rate=self.learning_rate,
                momentum=self.momentum,
                alpha=self.alpha,
            ),
        )
        slow = dataclasses.replace(fedavg.training, learning_rate=self.learning_rate / 10)
        hfmds = Hfmds(
            every_rounds=self.refresh_every,
            first_round=self.first_refresh,
            samples_per_device=self.synthetic_images,
            steps=self.synthesis_steps,
            learning_rate=self.synthesis_learning_rate,
        )
        recipes = {
            FEDAVG: fedavg,
            FEDAVG_SLOW: dataclasses.replace(fedavg, training=slow),
            HFMDS: dataclasses.replace(fedavg, method=hfmds),
        }
        # All devices take part in every round: the result then depends on the seed alone.
        policy = RoundPolicy(minimum_devices=self.devices, deadline_seconds=600, lease_seconds=60)
        return {label: RunSpec(recipe, policy) for label, recipe in recipes.items()}


_HELP = {
    "devices": "Devices, each a process of its own.",
    "seed": "Seed of the split, the models and the training.",
    "rounds": "Rounds of each run.",
    "image_size": "Height and width the digits are scaled to, at least 16.",
    "images_per_device": "Real images on each device.",
    "classes_per_device": "Classes on each device.",
    "batch_size": "Real samples per step, and synthetic ones.",
    "local_epochs": "Passes over a device's data per round.",
    "learning_rate": "Learning rate; one of the runs takes a tenth of it.",
    "momentum": "Momentum of SGD.",
    "alpha": "Weight of the loss on real images in HFMDS-FL.",
    "first_refresh": "Round of the first synthesis.",
    "refresh_every": "Rounds between two syntheses.",
    "synthetic_images": "Synthetic images per device and synthesis.",
    "synthesis_steps": "Optimisation steps per synthesis.",
    "synthesis_learning_rate": "Learning rate of the synthesis.",
}
_MAIN_OPTIONS = ("devices", "seed", "rounds")

DEMO_OPTIONS = [
    Option(
        field.name,
        type(field.default),
        _HELP[field.name],
        str(field.default),
        "Options" if field.name in _MAIN_OPTIONS else "The experiment",
    )
    for field in dataclasses.fields(DemoSetting)
]
