"""Work on blocks in several threads: what comes out is what one thread would have made."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterable

import numpy as np
import pytest

from hfmds.algorithm.aggregation import rules
from hfmds.algorithm.aggregation.blocks import Block, in_threads, threads_for
from hfmds.domain.learning import Update, Weights
from hfmds.errors import Diverged

BLOCKS = [Block("w", start, start + 1) for start in range(50)]
MANY = 1 << 30  # values


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_each_block_is_worked_on_once(threads: int) -> None:
    done: list[Block] = []
    in_threads(done.extend, BLOCKS, threads)
    assert sorted(done, key=lambda block: block.start) == BLOCKS


@pytest.mark.parametrize("threads", [1, 4])
def test_there_may_be_fewer_blocks_than_threads(threads: int) -> None:
    for blocks in (BLOCKS[:1], []):
        done: list[Block] = []
        in_threads(done.extend, blocks, threads)
        assert done == blocks


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_the_error_is_that_of_the_first_block_that_has_one(threads: int) -> None:
    def work(blocks: Iterable[Block]) -> None:
        for block in blocks:
            if block.start in (7, 8, 20):
                raise Diverged(f"block {block.start}")

    for _ in range(20):
        with pytest.raises(Diverged, match="block 7"):
            in_threads(work, BLOCKS, threads)


def test_an_error_that_comes_later_is_told_if_its_block_is_earlier() -> None:
    second_has_failed = threading.Event()

    def work(blocks: Iterable[Block]) -> None:
        for block in blocks:
            if block.start == 0:
                assert second_has_failed.wait(60)
            else:
                second_has_failed.set()
            raise Diverged(f"block {block.start}")

    with pytest.raises(Diverged, match="block 0"):
        in_threads(work, BLOCKS, threads=2)


def test_who_stops_does_not_wait_for_the_others() -> None:
    program = (
        "import threading, time\n"
        "from hfmds.algorithm.aggregation.blocks import Block, in_threads\n"
        "begun = threading.Barrier(3)\n"
        "def work(blocks):\n"
        "    for block in blocks:\n"
        "        begun.wait()\n"
        "        time.sleep(3600)\n"
        "blocks = [Block('w', n, n + 1) for n in range(2)]\n"
        "threading.Thread(target=in_threads, args=(work, blocks, 2), daemon=True).start()\n"
        "begun.wait()\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


@pytest.mark.parametrize("combine", [rules.mean, rules.median])
def test_as_many_threads_as_there_are_give_the_same_bits(
    combine: Callable[..., Weights], monkeypatch: pytest.MonkeyPatch
) -> None:
    shapes = {"a": (3, 1 << 16), "b": (70_001,), "c": ()}
    draw = np.random.default_rng(0)
    updates = [
        Update(
            f"d{n}", {k: draw.normal(size=s).astype(np.float32) for k, s in shapes.items()}, 1, 0.0
        )
        for n in range(5)
    ]
    found = []
    for threads in (1, 4):
        monkeypatch.setattr(rules, "threads_for", lambda values, threads=threads: threads)
        combined = combine(updates, updates[0].weights, list(shapes))
        found.append({name: combined[name].tobytes() for name in shapes})
    assert found[0] == found[1]


def test_threads_are_for_those_who_have_enough_to_do() -> None:
    assert threads_for(0) == threads_for(1000) == 1
    assert 1 <= threads_for(MANY) <= 4


def test_of_devices_that_diverged_the_first_in_the_model_is_named() -> None:
    like = {"a": np.zeros(1 << 18, np.float32), "b": np.zeros(1 << 18, np.float32)}
    updates = [Update(f"d{n}", {k: v.copy() for k, v in like.items()}, 1, 0.0) for n in range(8)]
    updates[2].weights["b"][-1] = np.nan
    updates[5].weights["a"][1 << 17] = np.inf
    updates[6].weights["a"][0] = -np.inf
    for combine in (rules.mean, rules.median):
        for _ in range(5):
            with pytest.raises(Diverged, match=r"device 'd6' .*'a'"):
                combine(updates, like, list(like))
