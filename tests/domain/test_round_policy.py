"""How many devices are asked, when a run stops early, and which models are kept."""

from __future__ import annotations

import pytest

from hfmds.domain.round_policy import EarlyStop, EvaluationByDevices, Retention, RoundPolicy
from hfmds.errors import InvalidInput


def test_three_more_than_ten_are_asked_unless_it_is_said_otherwise() -> None:
    assert RoundPolicy().asked(10) == 13


@pytest.mark.parametrize(
    ("accuracies", "stops"),
    [
        ([], False),
        ([0.5], False),
        ([0.5, 0.5], False),
        ([0.5, 0.5, 0.5], True),
        ([0.5, 0.25, 0.75], False),
        ([0.5, 0.25, 0.75, 0.5, 0.75], True),
        ([0.25, 0.375, 0.5], False),
    ],
)
def test_patience_ends_after_rounds_without_improvement(
    accuracies: list[float], stops: bool
) -> None:
    assert EarlyStop(patience_rounds=2).exhausted(accuracies) is stops


def test_an_improvement_is_above_the_last_one_that_counted() -> None:
    stop = EarlyStop(patience_rounds=2, min_improvement=0.25)
    assert stop.exhausted([0.25, 0.375, 0.5])  # 0.5 is not more than 0.25 above 0.25
    assert not stop.exhausted([0.25, 0.375, 0.5625])  # small steps add up


@pytest.mark.parametrize(
    ("retention", "kept"),
    [
        (Retention(), [1, 2, 3, 4, 5, 6, 7]),
        (Retention(keep_last=1), [3, 7]),
        (Retention(keep_last=3), [3, 5, 6, 7]),
        (Retention(keep_every=2), [2, 3, 4, 6, 7]),
        (Retention(keep_last=2, keep_every=5), [3, 5, 6, 7]),
    ],
)
def test_the_best_and_the_last_are_kept_whatever_else_is(
    retention: Retention, kept: list[int]
) -> None:
    assert [n for n in range(1, 8) if retention.keeps(n, last=7, best=3)] == kept


def test_without_an_evaluation_there_is_no_best_to_keep() -> None:
    assert [n for n in range(1, 4) if Retention(keep_last=1).keeps(n, last=3, best=0)] == [3]


@pytest.mark.parametrize(("minimum", "asked", "least"), [(3, 2, 2), (2, 5, 2), (2, 0, 0)])
def test_as_many_must_evaluate_as_must_train_or_all_that_are_asked(
    minimum: int, asked: int, least: int
) -> None:
    policy = RoundPolicy(minimum, evaluation=EvaluationByDevices(asked))
    assert policy.least_evaluations == least


def test_settings_out_of_range_are_refused_by_name() -> None:
    with pytest.raises(InvalidInput, match=r"early_stop\.patience_rounds is 0"):
        EarlyStop(patience_rounds=0)
    with pytest.raises(InvalidInput, match=r"early_stop\.min_improvement is 2"):
        EarlyStop(patience_rounds=1, min_improvement=2)
    with pytest.raises(InvalidInput, match=r"retention\.keep_last is -1"):
        Retention(keep_last=-1)
