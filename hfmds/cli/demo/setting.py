"""The setting of the demo: its sizes, its learning rates and its three runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from pydantic import Field
from pydantic.dataclasses import dataclass

from hfmds.domain.methods import Hfmds
from hfmds.domain.recipe import ModelSpec, Normalisation, Recipe, TrainingRecipe
from hfmds.domain.round_policy import RoundPolicy
from hfmds.domain.runs import RunSpec
from hfmds.domain.validation import STRICT, SettingsTable, fields_of, parse_text
from hfmds.service.process.options import flag_of, option

HFMDS = "HFMDS-FL"
FEDAVG = "FedAvg"
FEDAVG_SLOW = "FedAvg, lr/10"


# Two deviations cover the valid pixels: most of the noise that synthesis starts from is valid.
_NORMALISATION = Normalisation((0.5,), (0.25,))


@dataclass(frozen=True, config=STRICT)
class DemoSetting(SettingsTable):
    """Digits, one class per device and much local work: where skew hurts FedAvg most.

    benchmarks/simulation/demo_controls.py measures it against more controls, over more seeds.
    """

    devices: int = Field(default=10, ge=1, description="Number of devices, each one process.")
    seed: int = Field(
        default=0, ge=0, description="Seed of the split, the models and the training."
    )
    rounds: int = Field(default=12, ge=1, description="Rounds of each run.")
    image_size: int = Field(
        default=16, ge=1, description="Height and width the digits are scaled to, at least 16."
    )
    images_per_device: int = Field(default=60, ge=1, description="Real images on each device.")
    classes_per_device: int = Field(default=1, ge=1, description="Classes on each device.")
    batch_size: int = Field(
        default=10, ge=1, description="Real samples per step, and synthetic ones."
    )
    local_epochs: int = Field(default=5, ge=1, description="Passes over a device's data per round.")
    # A tenth of this rate is the best for FedAvg here: FedAvg competes at its best.
    learning_rate: float = Field(
        default=0.01, gt=0, description="Learning rate; one of the runs has a tenth of it."
    )
    momentum: float = Field(default=0.9, ge=0, description="Momentum of SGD.")
    alpha: float = Field(
        default=0.5, ge=0, description="Weight of the loss on real images in HFMDS-FL."
    )
    first_refresh: int = Field(default=2, ge=1, description="Round of the first synthesis.")
    refresh_every: int = Field(default=2, ge=1, description="Rounds between two syntheses.")
    synthetic_images: int = Field(
        default=20, ge=1, description="Synthetic images per device and synthesis."
    )
    synthesis_steps: int = Field(default=30, ge=0, description="Optimisation steps per synthesis.")
    synthesis_learning_rate: float = Field(
        default=0.1, gt=0, description="Learning rate of the synthesis."
    )

    def runs(self) -> dict[str, RunSpec]:
        """Return the runs to compare, by label.

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
        # All devices take part in every round: so the result depends on the seed alone.
        policy = RoundPolicy(minimum_devices=self.devices, deadline_seconds=600, lease_seconds=60)
        return {label: RunSpec(recipe, policy) for label, recipe in recipes.items()}


_MAIN_OPTIONS = ("devices", "seed", "rounds")

DEMO_OPTIONS = [
    option(name, field, panel="Options" if name in _MAIN_OPTIONS else "The experiment")
    for name, field in fields_of(DemoSetting).items()
]


def setting_from(options: Mapping[str, str | None]) -> DemoSetting:
    """Return the setting that the options of the command describe."""
    fields = fields_of(DemoSetting)
    values = {
        name: parse_text(flag_of(name), fields[name], text)
        for name, text in options.items()
        if text is not None
    }
    return DemoSetting(**values)
