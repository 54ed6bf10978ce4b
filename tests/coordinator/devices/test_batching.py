"""Questions that come at the same time are answered batcher, and each on its own."""

import asyncio
import threading
from collections.abc import Sequence

import pytest

from coordinator.devices.batching import Batcher
from hfmds.errors import NotFound, Unavailable


class Squares:
    """Answers with squares, when it may; of negative numbers it knows none."""

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
    """What they get who ask for these at once."""
    tasks = [asyncio.create_task(batcher.ask(number)) for number in numbers]
    await asyncio.sleep(0)
    squares.may_answer.set()
    return list(await asyncio.gather(*tasks, return_exceptions=True))


@pytest.mark.parametrize(("most", "trips"), [(10, [[1, 2, 3, 4]]), (3, [[1, 2, 3], [4]])])
async def test_what_is_asked_at_once_is_answered_in_as_few_trips_as_may_be(
    most: int, trips: list[list[int]]
) -> None:
    squares = Squares()
    batcher = Batcher[int, int](squares, most)
    assert await asked(batcher, squares, 1, 2, 3, 4) == [1, 4, 9, 16]
    assert squares.trips == trips
    assert await batcher.ask(5) == 25  # also later
    assert squares.trips == [*trips, [5]]


async def test_an_error_is_of_the_one_who_asked() -> None:
    squares = Squares()
    one, two, three = await asked(Batcher[int, int](squares, 10), squares, 1, -2, 3)
    assert (one, three) == (1, 9)
    assert isinstance(two, NotFound)


async def test_when_nothing_can_be_answered_all_are_told_and_the_next_is_answered() -> None:
    squares = Squares()
    batcher = Batcher[int, int](squares, 10)
    told = await asked(batcher, squares, 1, 13)
    assert all(isinstance(each, Unavailable) for each in told)
    assert await batcher.ask(3) == 9


async def test_who_does_not_wait_any_more_is_not_in_the_way() -> None:
    squares = Squares()
    batcher = Batcher[int, int](squares, 10)
    gone, stays = (asyncio.create_task(batcher.ask(number)) for number in (1, 2))
    await asyncio.sleep(0)
    gone.cancel()
    squares.may_answer.set()
    assert await stays == 4
    assert gone.cancelled()
