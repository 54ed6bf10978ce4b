"""What watchers are told of a run, as words of a notice: its id, and its progress if known."""

from __future__ import annotations

from collections.abc import Sequence

from hfmds.domain.runs import Phase, Progress


def news_of(run_id: str, progress: Progress | None) -> tuple[str, ...]:
    """The words."""
    if progress is None:
        return (run_id,)
    counts = progress.round_number, progress.done, progress.expected
    return (run_id, progress.phase.name, *map(str, counts))


def progress_in(news: Sequence[str]) -> Progress | None:
    """The progress that the words tell."""
    if len(news) != 5:
        return None
    _, phase, round_number, done, expected = news
    return Progress(int(round_number), Phase[phase], int(done), int(expected))
