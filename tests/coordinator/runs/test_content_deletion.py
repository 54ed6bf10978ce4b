"""Deletion of the content that ended runs no longer need."""

from __future__ import annotations

import asyncio
from pathlib import Path

from coordinator.runs.content_deletion import sweep
from hfmds.domain.digest import digest_of
from hfmds.domain.runs import RunState
from tests.coordinator.workbench import Workbench, make_spec, model_after, nudge, workbench
from tests.support.waiting import eventually


def content(bench: Workbench) -> set[str]:
    return {digest.sha256 for digest in bench.app.contents.of("run").blobs.digests()}


async def until_cleared(bench: Workbench, leftover: str) -> None:
    await eventually(lambda: leftover not in content(bench))


async def test_updates_left_by_a_killed_coordinator_are_deleted_at_the_next_start(
    tmp_path: Path,
) -> None:
    async with workbench(tmp_path) as bench:
        await bench.create(make_spec(rounds=2))
        await bench.play("a", 2, nudge(1.0))
        await bench.until(lambda run: run.state is RunState.COMPLETED)
        models = [await model_after(bench, number) for number in (1, 2)]
        await eventually(lambda: len(content(bench)) == 2)  # the models of the rounds
        kept = content(bench)
        # A kill between the record of the last round and the deletion leaves this.
        leftover_digest = bench.app.contents.of("run").blobs.put_bytes(b"an update").sha256
    async with workbench(tmp_path) as bench:
        await until_cleared(bench, leftover_digest)
        assert content(bench) == kept
        assert [await model_after(bench, number) for number in (1, 2)] == models


async def test_a_cancelled_round_loses_its_updates_and_keeps_its_models(tmp_path: Path) -> None:
    async with workbench(tmp_path) as bench:
        waiting = await bench.arrive("a", "b")
        await bench.create(make_spec(rounds=2, devices=2))
        a, b = await asyncio.gather(*waiting)
        await asyncio.gather(bench.do("a", a, nudge(1.0)), bench.do("b", b, nudge(2.0)))
        a = await bench.check_in("a")
        assert a.round_number == 2
        update = bench.put_update(a, b"uploaded, not handed in")
        await bench.do("a", a, nudge(3.0))
        first = digest_of(await model_after(bench, 1)).sha256
        assert {first, update.sha256} < content(bench)
        await asyncio.to_thread(bench.runs.cancel, "run")
        await until_cleared(bench, update.sha256)
        assert content(bench) == {first}


async def test_the_content_of_an_active_run_is_kept(tmp_path: Path) -> None:
    async with workbench(tmp_path) as bench:
        waiting = await bench.arrive("a")
        await bench.create(make_spec(devices=1))
        [a] = await asyncio.gather(*waiting)
        update = bench.put_update(a, b"uploaded, not handed in")
        sweep(bench.records, bench.app.contents.of("run").blobs, "run")
        assert update.sha256 in content(bench)
