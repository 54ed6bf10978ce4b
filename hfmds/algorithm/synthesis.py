"""DataSynthesis of Algorithm 1: hard feature matching (section 4). Only numpy.

Each synthetic image starts as noise and is optimised until the global model sees in it the
class-relevant features of one real image, pushed towards the decision boundary:

    L_HFMDS = L_HFM + L_C

The loop is here, once. What computes a step is behind `SynthesisSteps`: torch
(`torch_steps.torch_synthesis`), or the graphs of a plan on devices without torch. The loss terms,
with our readings of the paper at the line, are in `torch_steps.losses`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hfmds.algorithm.finite_checks import require_finite_images, require_finite_synthesis
from hfmds.algorithm.leakage.measurement import measure_leakage
from hfmds.algorithm.local_work import (
    LocalWork,
    Progress,
    Synthesis,
    SynthesisHealth,
    no_progress,
)
from hfmds.algorithm.pixels import normalise, to_pixels
from hfmds.algorithm.prototypes import prototypes_after_refresh, prototypes_at_refresh
from hfmds.algorithm.sampling import choose, initial_noise
from hfmds.algorithm.seeds import generator
from hfmds.domain.learning import LabelledImages
from hfmds.domain.methods import Hfmds

Floats: TypeAlias = NDArray[np.float32]

CHUNK = 256  # images at a time where no gradient is needed, to bound memory


@dataclass(frozen=True, slots=True)
class SynthesisLosses:
    """Losses of synthetic images under the global model, and its logits for them."""

    matching: float  # L_HFM
    classification: float  # L_C
    logits: Floats


class Descent(Protocol):
    """Synthetic images under optimisation by Adam."""

    def step(self) -> float:
        """Take one step; return the loss before it."""

    def images(self) -> Floats:
        """Return the images as they are now."""


class Matching(Protocol):
    """L_HFMDS of one synthetic batch. The targets of its images are fixed."""

    def hard_logits(self) -> Floats:
        """Return the classifier's logits for the hard features z_h."""

    def losses(self, images: Floats) -> SynthesisLosses:
        """Return both losses of these images."""

    def gradient_ratio(self, images: Floats) -> float:
        """Return |dL_HFM/dx| / |dL_C/dx| at these images."""

    def descent(self, noise: Floats) -> Descent:
        """Begin to optimise images, from noise."""


class SynthesisSteps(Protocol):
    """What the global model computes in a synthesis."""

    def features(self, images: Floats) -> tuple[Floats, Floats]:
        """Return features z and logits q of at most `CHUNK` images."""

    def matching(self, features: Floats, prototypes: Floats, labels: NDArray[np.int64]) -> Matching:
        """Fix the targets: one row of features z and of prototypes zbar for each image."""


def synthesise(
    work: LocalWork, settings: Hfmds, steps: SynthesisSteps, progress: Progress = no_progress
) -> Synthesis:
    """Make one device's synthetic batch from the global model and its own real images.

    The device's memory holds its prototypes of the last refresh.
    """
    shard, normalisation = work.shard, work.recipe.normalisation
    # The real subset D_{k,r} of size B_g; synthetic image i is matched with its image i.
    subset = choose(len(shard), settings.samples_per_device, generator(work.seed, "subset"))
    real = shard.take(subset)
    labels = real.labels  # y

    features, logits = _all_features(steps, normalise(shard.pixels, normalisation))
    prototypes = prototypes_at_refresh(work.memory, features, shard.labels, settings)
    zbar = np.stack([prototypes[c] for c in labels.tolist()])
    matching = steps.matching(features[subset], zbar, labels)

    noise = initial_noise(real.pixels.shape, generator(work.seed, "noise"))  # N(0, I)
    gradient_ratio = matching.gradient_ratio(noise)
    descent = matching.descent(noise)
    for step in range(1, settings.steps + 1):
        require_finite_synthesis(descent.step(), step, settings.steps)
        progress(step, settings.steps)
    images = descent.images()
    require_finite_images(images, settings.steps)

    # Clamped to valid pixels once, at the end. Clamping at every step made no difference.
    pixels = to_pixels(images, normalisation, work.recipe.pool.pixel_type)
    losses = matching.losses(normalise(pixels, normalisation))
    health = SynthesisHealth(
        matching_loss=losses.matching,
        classification_loss=losses.classification,
        accuracy=float((losses.logits.argmax(axis=1) == labels).mean()),
        real_margin=_margin(logits[subset], labels),
        hard_margin=_margin(matching.hard_logits(), labels),
        gradient_ratio=gradient_ratio,
    )
    batch = measure_leakage(LabelledImages(pixels, labels), real.pixels, shard.pixels)
    return Synthesis(batch, prototypes_after_refresh(prototypes, settings), health)


def _all_features(steps: SynthesisSteps, images: Floats) -> tuple[Floats, Floats]:
    chunks = [steps.features(images[i : i + CHUNK]) for i in range(0, len(images), CHUNK)]
    features, logits = zip(*chunks, strict=True)
    return np.concatenate(features), np.concatenate(logits)


def _margin(logits: Floats, labels: NDArray[np.int64]) -> float:
    """Return the mean of: logit of the class minus the highest other logit."""
    own = np.take_along_axis(logits, labels[:, None], axis=1)
    others = logits.copy()
    np.put_along_axis(others, labels[:, None], -np.inf, axis=1)
    return float((own[:, 0] - others.max(axis=1)).mean())
