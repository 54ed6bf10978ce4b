from __future__ import annotations

import pytest

from hfmds.domain.methods import (
    METHODS,
    FedAvg,
    FedGan,
    FedGen,
    FedMix,
    FedProx,
    Hfmds,
    Method,
    Moon,
)
from hfmds.errors import InvalidInput


def test_methods_are_known_by_their_name():
    assert METHODS["moon"] is Moon
    assert {name: kind.name for name, kind in METHODS.items()} == {name: name for name in METHODS}


@pytest.mark.parametrize(
    ("kind", "bad", "message"),
    [
        (FedProx, {"mu": -0.1}, r"fedprox.mu is -0.1; it must be at least 0"),
        (FedProx, {"mu": float("nan")}, r"fedprox.mu is nan"),
        (Moon, {"mu": -1}, r"moon.mu is -1; it must be at least 0"),
        (Moon, {"temperature": 0}, r"moon.temperature is 0; it must be above 0"),
        (FedGen, {"decay": 1.1}, r"fedgen.decay is 1.1; it must be in \(0, 1\]"),
        (
            FedGen,
            {"generator_batch_size": 1},
            r"fedgen.generator_batch_size is 1; .* in \[2, 4096\]",
        ),
        (
            FedGen,
            {"generator_learning_rate": 0},
            r"fedgen.generator_learning_rate is 0; .* above 0",
        ),
        (
            FedGen,
            {"generator_batch_size": 4097},
            r"fedgen.generator_batch_size is 4097; it must be in \[2, 4096\]",
        ),
        (
            FedGen,
            {"generator_steps": 10_001},
            r"fedgen.generator_steps is 10001; .* in \[0, 10000\]",
        ),
        (FedGen, {"noise_size": 65_537}, r"fedgen.noise_size is 65537; .* in \[1, 65536\]"),
        (FedGen, {"hidden_size": 65_537}, r"fedgen.hidden_size is 65537; .* in \[1, 65536\]"),
        (FedGan, {"noise_size": 4097}, r"fedgan.noise_size is 4097; .* in \[1, 4096\]"),
        (FedGan, {"width": 4097}, r"fedgan.width is 4097; .* in \[1, 4096\]"),
        (FedGen, {"latent_weight": -1}, r"fedgen.latent_weight is -1"),
        (FedMix, {"mixing": 1.0}, r"fedmix.mixing is 1.0; it must be in \[0, 1\)"),
        (FedMix, {"images_per_average": 1}, r"fedmix.images_per_average is 1; .* at least 2"),
        (FedMix, {"samples_per_device": 0}, r"fedmix.samples_per_device is 0; .* at least 1"),
        (FedGan, {"gan_rounds": 0}, r"fedgan.gan_rounds is 0; it must be at least 1"),
        (FedGan, {"width": 0}, r"fedgan.width is 0; it must be in \[1, 4096\]"),
        (FedGan, {"gan_learning_rate": -1}, r"fedgan.gan_learning_rate is -1; .* above 0"),
        (Hfmds, {"steps": -1}, r"hfmds.steps is -1; it must be at least 0"),
        (Hfmds, {"mu": float("inf")}, r"hfmds.mu is inf; it must be a number"),
        (Hfmds, {"prototype_momentum": 1.5}, r"hfmds.prototype_momentum is 1.5; .* in \[0, 1\]"),
        (Hfmds, {"every_rounds": 0}, r"hfmds.every_rounds is 0; it must be at least 1"),
    ],
)
def test_a_setting_out_of_its_range_is_refused_by_its_name(
    kind: type[Method], bad: dict[str, float], message: str
):
    with pytest.raises(InvalidInput, match=message):
        kind(**bad)


@pytest.mark.parametrize(
    ("method", "refreshes"),
    [
        (FedAvg(), []),
        (FedProx(), []),
        (Moon(), []),
        (FedGen(), []),
        (FedMix(), [1]),
        (FedGan(gan_rounds=3), [4]),
        (Hfmds(), [20]),
        (Hfmds(every_rounds=5, first_round=2), [2, 7, 12, 17, 22]),
        (Hfmds(every_rounds=10, first_round=1), [1, 11, 21]),
    ],
)
def test_when_a_pool_is_made_anew(method: Method, refreshes: list[int]):
    assert [t for t in range(1, 25) if method.refreshes(t)] == refreshes
    assert bool(method.samples_per_device) == bool(refreshes)


def test_what_devices_train_in_which_round():
    names = ("conv1.weight", "generator/output.bias", "fedgen/label_counts", "gan/generator/x")
    for method in (FedAvg(), FedProx(), Moon(), FedMix(), Hfmds()):
        assert all(method.trains(name, t) for name in names for t in (1, 30))
    fedgen, fedgan = FedGen(), FedGan(gan_rounds=3)
    assert [fedgen.trains(name, 1) for name in names[:3]] == [True, False, True]
    assert [fedgan.trains("gan/generator/x", t) for t in (1, 3, 4, 9)] == [True, True, False, False]
    assert [fedgan.trains("conv1.weight", t) for t in (1, 3, 4, 9)] == [False, False, True, True]
    assert [m.preparation_rounds for m in (FedAvg(), FedMix(), fedgan)] == [0, 0, 3]


def test_only_fedmix_shares_mixtures():
    assert [name for name, kind in METHODS.items() if kind.with_shares] == ["fedmix"]
