"""FedGen (Zhu, Hong, Zhou, "Data-Free Knowledge Distillation for Heterogeneous FL", 2021).

The server learns a generator G(noise, y) of features that the devices' classifiers recognise as
class y (equation 4), with a term that keeps the features diverse. Devices receive it with the
model, and also train their classifier on generated features (equation 5). Devices share no images,
but each tells the server how many samples of each class it has.

Where the paper and its authors' code differ, we follow the code. The code weights the loss of each
device's classifier by the device's share of the class; the paper has the loss of the mean logits.
The code also adds the latent term below. Departures from the code are marked at their line.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812  (torch's own convention)
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call

from hfmds.algorithm.aggregation.aggregation import Aggregate
from hfmds.algorithm.finite_checks import require_finite_loss
from hfmds.algorithm.local_work import LocalWork, Progress, TrainedModel, no_progress
from hfmds.algorithm.methods.fedavg import FedAvgMethod
from hfmds.algorithm.models.building import build_model, load_weights, seeded, weights_of
from hfmds.algorithm.models.weight_groups import as_part, part_of
from hfmds.algorithm.seeds import derive_seed, generator
from hfmds.algorithm.torch_steps.optimisers import Adam
from hfmds.algorithm.torch_steps.torch_training import Batch, BatchLoss, Loss, TorchTraining
from hfmds.domain.learning import Update, Weights
from hfmds.domain.methods import LABEL_COUNTS, FedGen
from hfmds.domain.recipe import ModelSpec
from hfmds.errors import Diverged

log = logging.getLogger(__name__)

_GENERATOR = "generator"


class FeatureGenerator(nn.Module):
    """G: turns noise and a class into features, by one hidden layer as in the authors' code."""

    def __init__(self, settings: FedGen, classes: int, features: int) -> None:
        super().__init__()
        self.noise_size, self.classes = settings.noise_size, classes
        self.hidden = nn.Linear(settings.noise_size + classes, settings.hidden_size)
        self.norm = nn.BatchNorm1d(settings.hidden_size)
        self.output = nn.Linear(settings.hidden_size, features)

    def forward(self, noise: Tensor, labels: Tensor) -> Tensor:
        """Return features for these labels."""
        one_hot = F.one_hot(labels, self.classes).to(noise.dtype)
        hidden = F.relu(self.norm(self.hidden(torch.cat([noise, one_hot], dim=1))))
        # Departure: never negative, like the features of our networks. The code's are linear.
        return F.relu(self.output(hidden))


class FedGenMethod(FedAvgMethod[FedGen]):
    """FedAvg with classifiers that also learn from generated features."""

    def first_weights(self, seed: int) -> Weights:
        classes = self.recipe.model.classes
        with seeded(derive_seed(seed, _GENERATOR)):
            network = self._new_generator(_feature_count(self.recipe.model))
        return {
            **super().first_weights(seed),
            **as_part(_GENERATOR, weights_of(network)),
            LABEL_COUNTS: np.zeros(classes, np.float32),
        }

    # --- on a device ----------------------------------------------------------------------------

    def train(
        self, work: LocalWork, progress: Progress = no_progress, device: str = "cpu"
    ) -> TrainedModel:
        trained = super().train(work, progress, device)
        counts = np.bincount(work.shard.labels, minlength=work.recipe.model.classes)
        weights = {**trained.weights, LABEL_COUNTS: counts.astype(np.float32)}
        return TrainedModel(weights, trained.samples, trained.loss)

    def torch_loss(self, training: TorchTraining) -> Loss:
        work, settings = training.work, self.settings
        if work.round_number == 1:  # the generator is untrained
            return super().torch_loss(training)
        model = training.model
        network = self._generator_with(work.weights).to(training.device).eval()
        known = np.flatnonzero(work.weights[LABEL_COUNTS])  # classes in the last cohort
        random = generator(work.seed, "generated")
        decay = settings.decay ** (work.round_number - 1)

        def loss(batch: Batch) -> BatchLoss:
            labels = batch.labels
            z = model.features(batch.images)
            logits = model.classifier(z)
            with torch.no_grad():
                same = generate(network, labels, random)
                drawn = torch.from_numpy(random.choice(known, len(labels))).to(training.device)
                other = generate(network, drawn, random)
                # The classifier's answer for generated features of the same classes.
                target = F.softmax(model.classifier(same), dim=1)
            latent = F.kl_div(F.log_softmax(logits, dim=1), target, reduction="batchmean")
            label = F.cross_entropy(model.classifier(other), drawn)
            generated = settings.label_weight * label + settings.latent_weight * latent
            return BatchLoss(F.cross_entropy(logits, labels) + decay * generated, z)

        return loss

    # --- on the server --------------------------------------------------------------------------

    def aggregate(
        self,
        round_number: int,
        weights: Weights,
        updates: Iterable[Update],
        server_state: Weights | None = None,
    ) -> Aggregate:
        heads: dict[str, dict[str, Tensor]] = {}
        counts: dict[str, NDArray[np.float32]] = {}

        def kept() -> Iterator[Update]:
            """Yield the updates, and copy their classifiers and class counts."""
            for update in updates:
                yield update  # aggregation refuses it unless it has every weight
                self.settings.check_update(update.weights, f"device {update.device_id!r}")
                heads[update.device_id] = _classifier_layers(update.weights)
                counts[update.device_id] = np.array(update.weights[LABEL_COUNTS])

        combined = super().aggregate(round_number, weights, kept(), server_state)
        # Devices that the rule leaves out do not teach the generator either.
        devices = combined.devices
        held = np.stack([counts[device_id] for device_id in devices])
        network = self._generator_with(weights)
        seed = derive_seed(self.recipe.seed, _GENERATOR, round_number)
        trouble = ""
        try:
            self._teach(network, [heads[d] for d in devices], torch.from_numpy(held), seed)
        except Diverged as error:
            # The same updates would diverge again. The run goes on with the last generator.
            trouble = f"the generator stays as it was: {error}"
            log.warning("round %d: %s", round_number, trouble)
            network = self._generator_with(weights)
        learned = {
            **combined.weights,
            **as_part(_GENERATOR, weights_of(network)),
            # Always the plain mean. The median of a class that few devices have would be 0.
            LABEL_COUNTS: held.mean(axis=0, dtype=np.float64).astype(np.float32),
        }
        return replace(combined, weights=learned, trouble=trouble)

    def _teach(
        self,
        network: FeatureGenerator,
        heads: list[dict[str, Tensor]],
        counts: Tensor,
        seed: int,
    ) -> None:
        """Train the generator until the devices' classifiers recognise its features."""
        settings, classifier = self.settings, build_model(self.recipe.model).eval().classifier
        known = np.flatnonzero(counts.sum(dim=0).numpy())
        # Departure: a device's share of a class follows from the samples it holds. The code counts
        # drawn batches, starting at 1, and by a broadcast uses the mean over the batch's classes.
        shares = counts / counts.sum(dim=0).clamp(min=1)
        random = generator(seed, "teach")
        network.train()
        # Departure: Adam's moments start at zero each round. The server then has no state besides
        # the weights, and a resumed run continues to the bit. Learning rate and weights do not
        # decay as in the code (0.98 per round, 0.01).
        optimiser = Adam(list(network.parameters()), settings.generator_learning_rate)
        for step in range(1, settings.generator_steps + 1):
            labels = torch.from_numpy(random.choice(known, settings.generator_batch_size))
            noise = _noise(network, len(labels), random)
            features = network(noise, labels)
            agreement = torch.stack(
                [
                    share[labels]
                    * F.cross_entropy(
                        functional_call(classifier, head, features), labels, reduction="none"
                    )
                    for head, share in zip(heads, shares, strict=True)
                ]
            )
            diversity = diversity_loss(noise, features)
            loss = agreement.sum(dim=0).mean() + settings.diversity_weight * diversity
            optimiser.step(loss)
            require_finite_loss(
                loss.item(), step, settings.generator_steps, "fedgen.generator_learning_rate"
            )
        if not all(torch.isfinite(p).all() for p in network.parameters()):
            raise Diverged("a weight of the generator is not a finite number")

    def _new_generator(self, features: int) -> FeatureGenerator:
        return FeatureGenerator(self.settings, self.recipe.model.classes, features)

    def _generator_with(self, weights: Weights) -> FeatureGenerator:
        own = part_of(weights, _GENERATOR)
        with seeded(0):  # leaves other runs' random state alone
            network = self._new_generator(features=len(own["output.weight"]))
        load_weights(network, own)
        return network


def generate(network: FeatureGenerator, labels: Tensor, random: np.random.Generator) -> Tensor:
    """Generate features for these labels from fresh noise."""
    features: Tensor = network(_noise(network, len(labels), random).to(labels.device), labels)
    return features


def diversity_loss(noise: Tensor, features: Tensor) -> Tensor:
    """exp(-mean of |noise_i - noise_j|^2 * |features_i - features_j|): far noise, far features.

    Both distances are means over elements. The mean is over all pairs, also of a row with itself.
    """
    noise_distance = torch.cdist(noise, noise).square() / noise.shape[1]
    feature_distance = torch.cdist(features, features, p=1) / features.shape[1]
    return torch.exp(-(noise_distance * feature_distance).mean())


def _noise(network: FeatureGenerator, count: int, random: np.random.Generator) -> Tensor:
    # Uniform in [0, 1), as in the authors' code.
    return torch.from_numpy(random.random((count, network.noise_size), dtype=np.float32))


def _classifier_layers(weights: Weights) -> dict[str, Tensor]:
    """Copy the classifier's layers, by their names within the classifier."""
    prefix = "classifier."
    return {
        name.removeprefix(prefix): torch.tensor(weights[name])
        for name in weights
        if name.startswith(prefix)
    }


def _feature_count(spec: ModelSpec) -> int:
    with torch.no_grad():
        features = build_model(spec).eval().features(torch.zeros(1, *spec.image_shape))
    return features.shape[1]
