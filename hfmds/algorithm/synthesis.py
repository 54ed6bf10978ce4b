"""DataSynthesis of Algorithm 1: hard feature matching (section 4), in torch.

Each synthetic image is optimised from noise so that the global model sees in it the class-relevant
features of one real image, pushed towards the decision boundary, and gives it that image's class:

    L_HFMDS = L_HFM + L_C

Knows nothing of rounds or of other devices. Where the paper leaves a question, the comment at the
line says which reading was taken; docs/paper.md has the measurements behind the readings.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812  (torch's own convention)
from numpy.typing import NDArray
from torch import Tensor, nn

from hfmds.algorithm.adam import Adam
from hfmds.algorithm.finite_checks import require_finite_images, require_finite_synthesis
from hfmds.algorithm.leakage.measurement import measured
from hfmds.algorithm.local_work import LocalWork, Progress, Synthesis, SynthesisHealth
from hfmds.algorithm.models.building import SplitModel, quick_model
from hfmds.algorithm.pixels import normalise, to_pixels
from hfmds.algorithm.prototypes import prototypes_after_refresh, prototypes_at_refresh
from hfmds.algorithm.sampling import choose, initial_noise
from hfmds.algorithm.seeds import generator
from hfmds.domain.learning import LabelledImages
from hfmds.domain.methods import Hfmds

_FLOOR = 1e-6  # added to every share, so that no logarithm is of zero
_CHUNK = 256  # images at a time where no gradient is needed, to bound memory


def synthesise(
    work: LocalWork, settings: Hfmds, progress: Progress | None = None, device: str = "cpu"
) -> Synthesis:
    """Make one device's synthetic batch, with the global weights and its own real images.

    The device's memory are its prototypes of the time before. Where to compute is torch's
    `device`.
    """
    recipe, shard, seed = work.recipe, work.shard, work.seed
    model = quick_model(recipe.model, work.weights, device)
    model.eval().requires_grad_(False)

    # The real subset D_{k,r} of size B_g; synthetic image i is matched with its image i.
    subset = choose(len(shard), settings.samples_per_device, generator(seed, "subset"))
    real = shard.take(subset)
    labels = torch.from_numpy(real.labels).to(device)  # y

    shard_features = _features(model, normalise(shard.pixels, recipe.normalisation), device)
    prototypes = prototypes_at_refresh(
        work.memory, shard_features.numpy(force=True), shard.labels, settings
    )
    z = shard_features[torch.from_numpy(subset).to(device)]
    zbar = torch.from_numpy(np.stack([prototypes[c] for c in real.labels.tolist()])).to(device)
    z_hard = hard_features(z, zbar, settings.mu)
    cam = class_activation(model.classifier, z_hard, labels)
    target = relevance(z_hard, cam)

    def losses(images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """L_HFM, L_C, and the logits they come from."""
        z_synthetic = model.features(images)
        logits: Tensor = model.classifier(z_synthetic)
        return matching_loss(z_synthetic, cam, target), F.cross_entropy(logits, labels), logits

    x = _images(initial_noise(real.pixels.shape, generator(seed, "noise")), device)  # N(0, I)
    x.requires_grad_()
    gradient_ratio = _gradient_ratio(*losses(x)[:2], x)
    optimiser = Adam([x], settings.learning_rate)
    for step in range(1, settings.steps + 1):
        l_hfm, l_c, _ = losses(x)
        loss = settings.matching_weight * l_hfm + l_c
        optimiser.step(loss)
        require_finite_synthesis(loss.item(), step, settings.steps)
        if progress:
            progress(step, settings.steps)

    made = x.numpy(force=True)
    require_finite_images(made, settings.steps)
    # Clamped to valid pixels once, at the end; at every step made no difference.
    pixels = to_pixels(made, recipe.normalisation, recipe.pool.pixel_type)
    with torch.no_grad():
        l_hfm, l_c, logits = losses(_images(normalise(pixels, recipe.normalisation), device))
        health = SynthesisHealth(
            matching_loss=l_hfm.item(),
            classification_loss=l_c.item(),
            accuracy=(logits.argmax(dim=1) == labels).sum().item() / len(labels),
            real_margin=_margin(model.classifier(z), labels),
            hard_margin=_margin(model.classifier(z_hard), labels),
            gradient_ratio=gradient_ratio,
        )
    batch = measured(LabelledImages(pixels, real.labels), real.pixels, shard.pixels)
    return Synthesis(batch, prototypes_after_refresh(prototypes, settings), health)


def hard_features(z: Tensor, zbar: Tensor, mu: float | Tensor) -> Tensor:
    """z_h = (1 + mu) z - mu zbar: away from the prototype. The text also prints the other sign."""
    return (1 + mu) * z - mu * zbar


def class_activation(classifier: nn.Module, features: Tensor, labels: Tensor) -> Tensor:
    """ReLU(g), g = dq^y/dz: how much each feature speaks for the class."""
    features = features.detach().requires_grad_()
    q_y = classifier(features).gather(1, labels[:, None])
    (g,) = torch.autograd.grad(q_y.sum(), features)  # a sum: each row depends on its own z only
    return F.relu(g)  # printed for L_FM only; without it L_HFM compares no distributions


def relevance(features: Tensor, cam: Tensor) -> Tensor:
    """`features * cam` as a distribution over features, by dividing by its sum.

    The paper does not say how. A softmax over 512 small numbers is almost uniform: the matching
    loss would be 1e-4 of L_C and the method silently L_C alone.
    """
    shares = F.relu(features) * cam + _FLOOR
    return shares / shares.sum(dim=1, keepdim=True)


def matching_loss(z_synthetic: Tensor, cam: Tensor, target: Tensor) -> Tensor:
    """L_HFM = D_KL(target || synthetic), averaged over images.

    Departure: the paper prints the other order, which is ill-conditioned where the target is
    near zero (synthetic accuracy 90 % against 97 %).
    """
    return F.kl_div(relevance(z_synthetic, cam).log(), target, reduction="batchmean")


def _images(normalised: NDArray[np.float32], device: str) -> Tensor:
    images = torch.from_numpy(normalised).to(device)
    return images.contiguous(memory_format=torch.channels_last)


@torch.no_grad()
def _features(model: SplitModel, normalised: NDArray[np.float32], device: str) -> Tensor:
    chunks = [normalised[i : i + _CHUNK] for i in range(0, len(normalised), _CHUNK)]
    return torch.cat([model.features(_images(chunk, device)) for chunk in chunks])


def _gradient_ratio(l_hfm: Tensor, l_c: Tensor, x: Tensor) -> float:
    (of_matching,) = torch.autograd.grad(l_hfm, x, retain_graph=True)
    (of_classification,) = torch.autograd.grad(l_c, x)
    # A model that sees nothing gives 0 / 0: read as 0, which is not sound, rather than NaN.
    return float(of_matching.norm() / of_classification.norm().clamp(min=1e-12))


def _margin(logits: Tensor, labels: Tensor) -> float:
    own = logits.gather(1, labels[:, None])
    others = logits.scatter(1, labels[:, None], -torch.inf)
    return (own - others.amax(dim=1, keepdim=True)).mean().item()
