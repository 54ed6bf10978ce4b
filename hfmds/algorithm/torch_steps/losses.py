"""The loss terms of local training and of the synthesis, each a pure function of tensors, in torch.

The torch engine computes them, and plans for devices without torch are traced from them. Where the
paper leaves a question, the comment at the line says which reading we took; docs/paper.md has the
measurements behind the readings.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.nn.functional as F  # noqa: N812  (torch's own convention)
from torch import Tensor, nn

from hfmds.algorithm.models.split_model import SplitModel

_FLOOR = 1e-6  # added to every share, so that no logarithm is of zero


# --- local training -----------------------------------------------------------------------------


def pooled_loss(cross_entropies: Tensor, sample_weights: Tensor) -> Tensor:
    """alpha * mean loss(real) + (1 - alpha) * mean loss(synthetic): equation (6).

    `hfmds.algorithm.training.sample_weights` holds alpha and the divisors of both means.
    """
    return (cross_entropies * sample_weights).sum()


def proximal_term(
    parameters: Iterable[Tensor], anchor: Iterable[Tensor], mu: float | Tensor
) -> Tensor:
    """mu / 2 * |w - w^t|^2 over all parameters as one vector: FedProx, equation (2)."""
    squares = [(w - a).square().sum() for w, a in zip(parameters, anchor, strict=True)]
    return mu / 2 * torch.stack(squares).sum()


# --- synthesis ----------------------------------------------------------------------------------


def hard_features(z: Tensor, zbar: Tensor, mu: float | Tensor) -> Tensor:
    """z_h = (1 + mu) z - mu zbar: away from the prototype. The paper also prints the other sign."""
    return (1 + mu) * z - mu * zbar


def class_activation(classifier: nn.Module, features: Tensor, labels: Tensor) -> Tensor:
    """ReLU(g) with g = dq^y/dz: how much each feature speaks for the class."""
    features = features.detach().requires_grad_()
    q_y = classifier(features).gather(1, labels[:, None])
    (g,) = torch.autograd.grad(q_y.sum(), features)  # a sum: each row depends on its own z only
    # The paper prints the ReLU for L_FM only. L_HFM compares distributions, so it needs it, too.
    return F.relu(g)


def relevance(features: Tensor, cam: Tensor) -> Tensor:
    """Turn `features * cam` into a distribution over features: divide by its sum.

    The paper does not say how. A softmax over 512 small numbers is almost uniform. The matching
    loss would then be 1e-4 of L_C, and the method would silently be L_C alone.
    """
    shares = F.relu(features) * cam + _FLOOR
    return shares / shares.sum(dim=1, keepdim=True)


def synthesis_terms(
    model: SplitModel, images: Tensor, labels: Tensor, cam: Tensor, target: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute L_HFM and L_C of synthetic images, and the logits."""
    z_synthetic = model.features(images)
    logits: Tensor = model.classifier(z_synthetic)
    l_c = F.cross_entropy(logits, labels)
    return matching_loss(z_synthetic, cam, target), l_c, logits


def matching_loss(z_synthetic: Tensor, cam: Tensor, target: Tensor) -> Tensor:
    """L_HFM = D_KL(target || synthetic), averaged over images.

    Departure: the paper prints the other order, which is ill-conditioned where the target is
    near zero (synthetic accuracy 90 % against 97 %).
    """
    return F.kl_div(relevance(z_synthetic, cam).log(), target, reduction="batchmean")
