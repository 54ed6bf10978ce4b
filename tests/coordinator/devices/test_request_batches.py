"""Simultaneous requests share a batch, and each caller gets its own answer."""

import asyncio
import threading
from collections.abc import Sequence

import pytest

from coordinator.devices.request_batches import Batcher
from hfmds.errors import NotFound, Unavailable


class Squares:
    """Answers with squares when the test permits it, and refuses negative numbers."""

    def __init__(self) -> None:
        self.may_answer = threading.Event()
        self.trips: list[list[int]] = []

    def __call__(self, asked: Sequence[int]) -> list[int | Exception]:
        assert self.may_answer.wait(30)
        self.trips.append(list(asked))
        if 13 in asked:
            raise Unavailable("no thirteen today")
        return [n * n if n >= 0 else NotFound(f"there is no {n}") for n in asked]


async def asked(batcher: Batcher[int, int], squares: Squares, *numbers: int) -> list[object]:
    """Ask for these numbers at the same time, and return the answers."""
    tasks = [asyncio.create_task(batcher.ask(number)) for number in numbers]
    await asyncio.sleep(0)
    squares.may_answer.set()
    return list(await asyncio.gather(*tasks, return_exceptions=True))


@pytest.mark.parametrize(("most", "trips"), [(10, [[1, 2, 3, 4]]), (3, [[1, 2, 3], [4]])])
async def test_simultaneous_requests_share_batches(most: int, trips: list[list[int]]) -> None:
    squares = Squares()
    batcher = Batcher[int, int](squares, most)
    assert await asked(batcher, squares, 1, 2, 3, 4) == [1, 4, 9, 16]
    assert squares.trips == trips
    assert await batcher.ask(5) == 25  # the batcher also works later
    assert squares.trips == [*trips, [5]]


async def test_an_error_reaches_only_its_caller() -> None:
    squares = Squares()
    first, second, third = await asked(Batcher[int, int](squares, 10), squares, 1, -2, 3)
    assert (first, third) == (1, 9)
    assert isinstance(second, NotFound)


async def test_a_failed_batch_reaches_all_its_callers_and_the_next_succeeds() -> None:
    squares = Squares()
    batcher = Batcher[int, int](squares, 10)
    answers = await asked(batcher, squares, 1, 13)
    assert all(isinstance(answer, Unavailable) for answer in answers)
    assert await batcher.ask(3) == 9


async def test_a_cancelled_caller_does_not_delay_others() -> None:
    squares = Squares()
    batcher = Batcher[int, int](squares, 10)
    gone, stays = (asyncio.create_task(batcher.ask(number)) for number in (1, 2))
    await asyncio.sleep(0)
    gone.cancel()
    squares.may_answer.set()
    assert await stays == 4
    assert gone.cancelled()
