"""FedMix (Yoon et al., "Approximation of Mixup under Mean Augmented Federated Learning", 2021).

Before training, devices share averages of a few of their images and of the labels. A device has no
images of other devices, so mixup with them is approximated: a Taylor expansion around
(1 - lambda) x needs only the averages x_g and y_g (Proposition 1 and Algorithm 2):

    loss = (1 - lambda) l(f((1 - lambda) x), y) + lambda l(f((1 - lambda) x), y_g)
           + lambda dl/dx(f((1 - lambda) x), y) . x_g

The last term is itself a gradient, so training differentiates twice. Its factor is that of
Proposition 1. Some implementations differentiate the first term with its factor, and so have
lambda (1 - lambda) in the last. The difference is of the order that the expansion leaves out.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812  (torch's own convention)
from torch import Tensor, nn

from hfmds.algorithm.leakage.measurement import measure_leakage
from hfmds.algorithm.local_work import LocalWork, Progress, Synthesis, no_progress
from hfmds.algorithm.methods.fedavg import FedAvgMethod
from hfmds.algorithm.pixels import of_levels
from hfmds.algorithm.sampling import choose
from hfmds.algorithm.seeds import generator
from hfmds.algorithm.torch_steps.torch_training import Batch, BatchLoss, Loss, TorchTraining
from hfmds.domain.learning import LabelledImages, SyntheticBatch
from hfmds.domain.methods import FedMix
from hfmds.errors import InvalidInput


class FedMixMethod(FedAvgMethod[FedMix]):
    """FedAvg with mixup between a device's images and averages of other devices' images."""

    def torch_loss(self, training: TorchTraining) -> Loss:
        pool = training.work.pool
        if not pool:
            return super().torch_loss(training)
        if pool.shares is None:
            raise InvalidInput("the pool has no class shares; FedMix needs the averaged labels")
        shares = torch.from_numpy(pool.shares).to(training.device)

        def loss(batch: Batch) -> BatchLoss:
            # Departure: each image has an average of its own. Algorithm 2 takes one for a whole
            # batch. The loss has the same mean, and varies less.
            assert batch.pool_rows is not None
            averages = training.pool_images(batch.pool_rows)
            average_labels = shares[torch.from_numpy(batch.pool_rows).to(training.device)]
            return BatchLoss(
                mixup_loss(
                    training.model,
                    batch.images,
                    batch.labels,
                    averages,
                    average_labels,
                    self.settings.mixing,
                )
            )

        return loss

    def synthesise(
        self, work: LocalWork, progress: Progress = no_progress, device: str = "cpu"
    ) -> Synthesis:
        return Synthesis(averages(work, self.settings))


def mixup_loss(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    averages: Tensor,
    average_labels: Tensor,
    mixing: float,
) -> Tensor:
    """Approximate the mixup of each own image (x, y) with one average (x_g, y_g)."""
    # Mixing happens in the model's normalised space. There (1 - lambda) x moves x to the mean
    # pixel and not to black, and lambda x_g is smaller. The sum is the same as with pixels.
    shrunk = ((1 - mixing) * images).requires_grad_()
    logits = model(shrunk)
    on_own = F.cross_entropy(logits, labels)
    on_others = F.cross_entropy(logits, average_labels)  # targets are shares of classes
    # The gradient of a mean already has the factor 1/B, so the products are summed.
    (slope,) = torch.autograd.grad(on_own, shrunk, create_graph=True)
    return (1 - mixing) * on_own + mixing * on_others + mixing * (slope * averages).sum()


def averages(work: LocalWork, settings: FedMix) -> SyntheticBatch:
    """Make the averages that one device shares, each of M_k of its images.

    No image is in two averages, so a small shard gives fewer than the settings ask for. Overlapping
    averages could be solved for the images: three pairs out of a, b and c give away all three.
    """
    shard, size = work.shard, settings.images_per_average
    if len(shard) < size:
        raise InvalidInput(
            f"the device has {len(shard)} images, too few to hide one in an average of {size}; "
            "lower fedmix.images_per_average, or leave the device out"
        )
    random = generator(work.seed, "averages")
    count = min(settings.samples_per_device, len(shard) // size)
    groups = choose(len(shard), count * size, random).reshape(count, size)
    pixels = of_levels(shard.pixels[groups].mean(axis=1), work.recipe.pool.pixel_type)
    one_hot = np.eye(work.recipe.model.classes, dtype=np.float32)
    shares = one_hot[shard.labels[groups]].mean(axis=1)
    mixtures = LabelledImages(pixels, shares.argmax(axis=1), shares)
    # Each average is paired with the first image of its group. Of two, both are equally near.
    return measure_leakage(mixtures, shard.pixels[groups[:, 0]], shard.pixels)
