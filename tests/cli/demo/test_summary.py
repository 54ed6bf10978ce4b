import pytest

from hfmds.cli.demo.summary import summarise, verdict
from tests.cli.values import LEAKAGE, a_followed_run


def test_the_last_five_rounds_count() -> None:
    summary = summarise(a_followed_run("HFMDS", [0.9, 0.1, 0.2, 0.3, 0.4, 0.5], pool=True))
    assert summary.final_accuracy == pytest.approx(0.3)
    assert summary.best_accuracy == 0.9
    assert summary.leakage == LEAKAGE
    assert summary.pool_samples == 40
    assert summary.moved_bytes == 6 * 3_000_000
    assert summary.seconds == pytest.approx(15)


def test_a_run_without_rounds_has_no_numbers() -> None:
    summary = summarise(a_followed_run("FedAvg", []))
    assert summary.final_accuracy is None
    assert summary.leakage is None


def test_a_win_is_stated_in_points() -> None:
    ours = summarise(a_followed_run("HFMDS", [0.8]))
    others = [summarise(a_followed_run("FedAvg", [0.5])), summarise(a_followed_run("slow", [0.6]))]
    text = verdict(ours, others)
    assert text.ahead
    assert text.words.startswith(
        "HFMDS is 30.0 points ahead of FedAvg and 20.0 points ahead of slow"
    )


@pytest.mark.parametrize(
    ("accuracy", "words"), [(0.9, "10.0 points behind FedAvg"), (0.8, "level with FedAvg")]
)
def test_a_result_without_a_win_is_stated(accuracy: float, words: str) -> None:
    ours = summarise(a_followed_run("HFMDS", [0.8]))
    text = verdict(ours, [summarise(a_followed_run("FedAvg", [accuracy]))])
    assert not text.ahead
    assert text.words.startswith("Not a win: ")
    assert words in text.words


def test_without_evaluation_no_result_is_claimed() -> None:
    ours = summarise(a_followed_run("HFMDS", [0.8]))
    text = verdict(ours, [summarise(a_followed_run("FedAvg", []))])
    assert not text.ahead
    assert text.words == "No comparison: FedAvg was not evaluated."
