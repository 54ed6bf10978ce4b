"""Counts of the flop counter against counts by hand, on the paper's CNN for 16x16 grey images."""

from hfmds.experiments.report.flops import DeviceCost, device_cost
from hfmds.experiments.trials.running import shards_of
from tests.experiments.tiny import a_trial, some_data

# Multiplications of one image. 16x16 -> conv 5x5 -> 12x12 -> pool 6x6 -> conv 5x5 -> 2x2 -> pool 1
CONV1 = 12 * 12 * 32 * 5 * 5
CONV2 = 2 * 2 * 64 * 32 * 5 * 5
HIDDEN = 64 * 512
CLASSIFIER = 512 * 10
FORWARD = 2 * (CONV1 + CONV2 + HIDDEN + CLASSIFIER)
# Gradients of weights and of inputs, as much as forward each; the images need none.
TRAINING = 3 * FORWARD - 2 * CONV1
SHARD = 8  # images of a device


def cost(**changed: object) -> DeviceCost:
    data = some_data()
    trial = a_trial(data, **changed)
    return device_cost(trial.recipe, shards_of(trial, data)["device-0"])


def test_fedavg_is_its_training() -> None:
    counted = cost()
    assert counted.training == SHARD * TRAINING
    assert counted.synthesis == counted.preparation == 0
    assert counted.per_round == counted.training


def test_local_epochs_multiply() -> None:
    assert cost(training__local_epochs=3).training == 3 * SHARD * TRAINING


def test_hfmds_trains_on_as_many_synthetic_images_and_synthesises() -> None:
    counted = cost(method="hfmds")
    assert counted.training == SHARD * TRAINING
    assert counted.training_with_pool == 2 * SHARD * TRAINING
    images, steps = 3, 2
    # Features and logits of the shard; the CAM and the logits of z_h; per step forward and the
    # gradient of the images; once more at the beginning for the two gradients' ratio; and forward
    # over the images as sent.
    through_classifier = 2 * CLASSIFIER
    features = FORWARD - through_classifier
    expected = SHARD * FORWARD
    expected += images * 2 * through_classifier  # CAM: forward, and back to the features
    expected += images * through_classifier  # the margin of z_h
    expected += images * steps * 2 * FORWARD
    # L_HFM's gradient does not pass the classifier, L_C's does.
    expected += images * (FORWARD + features + FORWARD)
    expected += images * FORWARD
    assert counted.synthesis == expected
    # Four rounds: the first without a pool, refreshes at the second and the fourth.
    assert (counted.rounds_with_pool, counted.refreshes) == (3, 2)
    assert counted.per_round == (7 * SHARD * TRAINING + 2 * expected) / 4


def test_a_run_that_ends_before_its_first_pool_has_none() -> None:
    counted = cost(method="hfmds", hfmds__first_round=5)
    assert (counted.rounds_with_pool, counted.refreshes) == (0, 0)
    assert counted.per_round == SHARD * TRAINING


def test_a_gan_and_its_pool_are_shared_by_the_rounds_of_the_classifier() -> None:
    """Two rounds of the GAN and then four, in which its pool is used."""
    counted = cost(method="fedgan")
    assert counted.training_with_pool == 2 * SHARD * TRAINING
    assert (counted.rounds_with_pool, counted.refreshes) == (4, 1)
    assert counted.preparation > 0
    assert counted.synthesis > 0
    shared = (counted.synthesis + counted.preparation) / 4
    assert counted.per_round == counted.training_with_pool + shared


def test_a_pool_made_once_is_shared_by_all_rounds() -> None:
    counted = cost(method="fedmix")
    assert counted.per_round == counted.training_with_pool + counted.synthesis / 4


def test_fedmix_differentiates_twice() -> None:
    assert cost(method="fedmix").training_with_pool > 2 * SHARD * TRAINING
