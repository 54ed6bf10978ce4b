"""A device with peers in memory, in normal operation and with failures."""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import logging
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edge_client.device.traffic import TrafficBudget
from hfmds.domain.learning import Evaluation, Traffic
from hfmds.domain.pool_policy import PoolPolicy
from hfmds.domain.tasks import Assignment, Finished, RetryLater
from hfmds.errors import (
    Conflict,
    CorruptData,
    HfmdsError,
    InvalidInput,
    NotAllowed,
    NotFound,
    TooLate,
    Unavailable,
    WrongState,
)
from hfmds.storage import blobs, staging
from hfmds.wire.conversions.device_calls import outcome_from, outcome_message
from hfmds.wire.tensors import encode_batch, encode_weights, read_batch
from tests.edge_client.fakes import (
    CHUNK,
    COORDINATOR,
    RECIPE,
    STORE,
    WEIGHTS,
    Device,
    FakeEngine,
    batch,
    images,
    unavailable,
)
from tests.support.still_images import StillImages

# --- successful work ------------------------------------------------------------------------------


async def test_training_submits_an_update(device: Device) -> None:
    await device.work(device.train_task())
    report = device.coordinator.updates["t1"]
    expected = encode_weights({"w": WEIGHTS["w"] + 7})
    assert device.coordinator.shelf.contents[report.update] == expected
    assert (report.samples, report.loss) == (3, 0.5)
    [work] = device.engine.works
    assert (work.recipe, work.round_number, work.seed) == (RECIPE, 1, 7)
    assert work.pool is None
    assert device.metric("tasks_total", kind="train", outcome="accepted") == 1
    assert device.metric("training_loss") == 0.5
    assert device.metric("round") == 1


async def test_training_takes_the_snapshot_in_manifest_order(device: Device) -> None:
    device.store.seal("snap", batch(2, 1), batch(0), batch(1, 1))
    await device.work(device.train_task(snapshot_id="snap"))
    pool = device.engine.works[0].pool
    assert pool is not None
    assert pool.labels.tolist() == [2, 1, 0, 1, 1]
    assert pool.pixels[:, 0, 0, 0].tolist() == [2, 1, 0, 1, 1]
    assert pool.shares is None


async def test_training_takes_the_shares_of_mixtures(device: Device) -> None:
    shares = np.array([[0.25, 0.75, 0], [0, 0.5, 0.5]], np.float32)
    mixtures = dataclasses.replace(
        batch(1, 1), images=dataclasses.replace(images(1, 1), shares=shares)
    )
    device.store.seal("snap", mixtures, mixtures)
    await device.work(device.train_task(snapshot_id="snap"))
    pool = device.engine.works[0].pool
    assert pool is not None
    assert pool.shares is not None
    np.testing.assert_array_equal(pool.shares, np.concatenate([shares, shares]))


async def test_synthesis_puts_a_batch_and_reports_its_leakage(device: Device) -> None:
    await device.work(device.synthesise_task())
    report = device.coordinator.syntheses["s1"]
    assert device.store.pools == {("pool-1", "dev-1"): report.batch}
    assert device.store.made_with == {("pool-1", "dev-1"): device.coordinator.weights}
    assert report.samples == 3
    assert report.synthetic_accuracy == 0.9
    assert report.leakage.paired_mean == pytest.approx(10)
    assert report.leakage.nearest_max == pytest.approx(13)
    assert device.metric("batch_psnr_db", real="paired", statistic="max") == pytest.approx(12)
    assert device.metric("synthetic_accuracy_ratio") == 0.9
    assert device.metric("tasks_total", kind="synthesise", outcome="accepted") == 1


def with_policy(task: Assignment, **settings: Any) -> Assignment:
    recipe = dataclasses.replace(task.recipe, pool=PoolPolicy(**settings))
    return dataclasses.replace(task, recipe=recipe)


async def test_synthetic_images_over_the_limits_never_leave_the_device(
    device: Device, tmp_path: Path
) -> None:
    await device.work(
        with_policy(device.synthesise_task(), psnr_paired_max_db=11, leakage_action="drop")
    )
    report = device.coordinator.syntheses["s1"]  # of 8, 10 and 12 dB
    assert report.samples == 2
    assert report.leakage.paired_max == pytest.approx(10)
    (tmp_path / "sent").write_bytes(device.store.shelf.contents[report.batch])
    sent = read_batch(tmp_path / "sent", "the batch")
    assert sent.psnr_paired.tolist() == [8, 10]
    assert sent.images.labels.tolist() == [0, 1]
    assert device.metric("withheld_samples_total") == 1


async def test_images_that_the_store_would_refuse_are_not_sent(device: Device) -> None:
    await device.work(
        with_policy(device.synthesise_task(), psnr_paired_max_db=11, leakage_action="refuse")
    )
    assert "sample 2: psnr_paired 12 is above 11" in device.coordinator.failures["s1"]
    assert device.store.calls == []


async def test_evaluation_submits_only_numbers(device: Device) -> None:
    await device.work(device.evaluate_task())
    report = device.coordinator.evaluations["e1"]
    assert report.evaluation == Evaluation(accuracy=0.75, loss=7.0, samples=3)
    size = device.coordinator.weights.size_bytes
    assert report.traffic == Traffic(received_bytes=size, sent_bytes=0)
    assert device.coordinator.calls.count("submit_evaluation") == 1
    assert not {"submit_update"} & set(device.coordinator.calls)
    assert device.store.calls == []
    assert device.metric("tasks_total", kind="evaluate", outcome="accepted") == 1


@pytest.mark.parametrize("needs_plan", [True, False])
async def test_only_an_engine_that_needs_the_plan_gets_it(device: Device, needs_plan: bool) -> None:
    device.coordinator.plan = plan = device.coordinator.shelf.put(b"a plan")
    device.engine.needs_plan = needs_plan
    await device.work(device.train_task(), device.synthesise_task(), device.evaluate_task())
    plans = [work.plan.read_bytes() if work.plan else None for work in device.engine.works]
    assert plans == [b"a plan" if needs_plan else None] * 3
    size = device.coordinator.weights.size_bytes
    received = device.coordinator.updates["t1"].traffic.received_bytes
    assert received == size + (plan.size_bytes if needs_plan else 0)  # later tasks use the cache
    assert device.coordinator.syntheses["s1"].traffic.received_bytes == 0


async def test_held_out_images_are_only_evaluated_on(tmp_path: Path) -> None:
    device = Device(tmp_path, held_out=StillImages("held out", images(2, 2)))
    await device.work(device.train_task(), device.synthesise_task(), device.evaluate_task())
    shards = [work.shard.labels.tolist() for work in device.engine.works]
    assert shards == [[0, 1, 2], [0, 1, 2], [2, 2]]
    assert device.coordinator.evaluations["e1"].evaluation.samples == 2


async def test_a_restarted_device_submits_its_finished_evaluation(device: Device) -> None:
    device.coordinator.errors["submit_evaluation"] = [Killed()]  # type: ignore[list-item]
    with pytest.raises(Killed):
        await device.work(device.evaluate_task())
    again = Device(device.folder, device.coordinator, device.store)
    await again.work(device.evaluate_task())
    assert again.coordinator.evaluations["e1"].evaluation.accuracy == 0.75
    assert again.engine.works == []  # the device computes nothing twice


async def test_unmeasured_leakage_is_not_reported(
    device: Device, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    device.engine.health = None
    await device.work(device.synthesise_task())
    assert device.coordinator.syntheses["s1"].synthetic_accuracy is None
    # A NaN would spoil averages over the fleet.
    assert device.metric("synthetic_accuracy_ratio") is None
    assert device.metric("batch_psnr_db", real="paired", statistic="max") == pytest.approx(12)
    assert "3 synthetic images accepted; PSNR to the real ones 10.0 dB" in caplog.text


async def test_the_profile_describes_the_device(device: Device) -> None:
    await device.work()
    [profile] = device.coordinator.profiles
    assert (profile.samples, profile.engine) == (3, "fake-cpu")


async def test_the_device_waits_for_the_retry_time(
    device: Device, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    retry_times = (12.0, 0.0, math.inf, math.nan)
    await device.work(*(RetryLater(seconds, "no round is open") for seconds in retry_times))
    assert device.slept == [12.0, 0.1, 3600.0, 0.1]
    assert caplog.text.count("waiting for work: no round is open") == 1


async def test_finished_ends_the_device(device: Device) -> None:
    await device.work(Finished("the run is over"), device.train_task())
    assert not device.coordinator.updates


# --- traffic and the cache ------------------------------------------------------------------------


async def test_traffic_is_counted_per_task(device: Device) -> None:
    device.store.seal("snap", batch(2, 1), batch(0))
    await device.work(device.train_task("t1", snapshot_id="snap"), device.train_task("t2", seed=8))
    weights_bytes = device.coordinator.weights.size_bytes
    shard_bytes = device.store.snapshots["snap"].size_bytes
    first, second = (device.coordinator.updates[t] for t in ("t1", "t2"))
    assert first.traffic == Traffic(weights_bytes + shard_bytes, first.update.size_bytes)
    assert second.traffic == Traffic(0, second.update.size_bytes)
    assert device.metric("received_bytes_total") == weights_bytes + shard_bytes
    assert device.metric("sent_bytes_total") == 2 * first.update.size_bytes


async def test_cached_content_is_not_fetched_again(device: Device) -> None:
    device.store.seal("snap", batch(2, 1))
    await device.work(*(device.train_task(f"t{i}", i, "snap") for i in (1, 2, 3)))
    assert device.coordinator.calls.count("download") == 1
    assert device.store.calls == ["get_share", "download_shards"]


async def test_own_batch_is_not_fetched_back(device: Device) -> None:
    await device.work(device.synthesise_task())
    device.store.seal_shards("snap", device.coordinator.syntheses["s1"].batch)
    await device.work(device.train_task(snapshot_id="snap"))
    assert "download_shards" not in device.store.calls
    assert device.coordinator.updates["t1"].traffic.received_bytes == 0


async def test_a_device_with_little_room_trains_on_a_share_of_the_snapshot(device: Device) -> None:
    device.store.seal("snap", batch(2, 1), batch(0), batch(1, 1))
    first, second, _ = (shard.digest for shard in device.store.snapshots["snap"].shards)
    device.pool_max_bytes = first.size_bytes + second.size_bytes
    await device.work(*(device.train_task(f"t{i}", i, "snap") for i in (1, 2)))
    for work in device.engine.works:
        assert work.pool is not None
        assert work.pool.labels.tolist() == [2, 1, 0]
    received = device.coordinator.updates["t1"].traffic.received_bytes
    assert received == device.coordinator.weights.size_bytes + device.pool_max_bytes


async def test_a_device_has_the_same_share_in_all_rounds(device: Device) -> None:
    for name in ("one", "two"):
        device.store.seal(name, batch(2, 1))
    await device.work(
        *(device.train_task(f"t{i}", i, name) for i, name in enumerate(("one", "two")))
    )
    assert len(device.store.seeds) == 2
    assert len(set(device.store.seeds)) == 1


async def test_the_error_of_a_cache_too_small_for_a_shard_names_the_remedy(device: Device) -> None:
    device.store.seal("snap", batch(2, 1))
    device.pool_max_bytes = 10
    await device.work(device.train_task(snapshot_id="snap"))
    assert "raise HFMDS_POOL_MAX_BYTES" in device.coordinator.failures["t1"]


async def test_a_broken_transfer_of_shards_resumes(device: Device) -> None:
    device.store.seal("snap", batch(2, 1), batch(0), batch(1, 1))
    sizes = [shard.digest.size_bytes for shard in device.store.snapshots["snap"].shards]
    device.store.shelf.broken_after = sizes[0] + 2 * CHUNK
    await device.work(device.train_task(snapshot_id="snap"))
    assert device.store.calls == ["get_share", "download_shards", "download_shards"]
    received = device.coordinator.updates["t1"].traffic.received_bytes
    assert received == device.coordinator.weights.size_bytes + sum(sizes)
    pool = device.engine.works[0].pool
    assert pool is not None
    assert pool.labels.tolist() == [2, 1, 0, 1, 1]


async def test_altered_cached_content_is_fetched_again(device: Device) -> None:
    await device.work(device.train_task("t1"))
    blob = next((device.folder / "cache" / "blobs").rglob(device.coordinator.weights.sha256))
    blob.write_bytes(b"\0" * device.coordinator.weights.size_bytes)
    await device.work(device.train_task("t2"))
    assert device.coordinator.calls.count("download") == 2
    assert device.coordinator.updates["t2"].update == device.coordinator.updates["t1"].update


async def test_corrupt_download_is_fetched_again(device: Device) -> None:
    device.coordinator.shelf.garbled = 2
    await device.work(device.train_task())
    assert "t1" in device.coordinator.updates
    assert device.coordinator.calls.count("download") == 3


async def test_a_permanently_corrupt_download_is_reported(device: Device) -> None:
    device.coordinator.shelf.garbled = 99
    await device.work(device.train_task())
    assert device.coordinator.weights.sha256[:12] in device.coordinator.failures["t1"]
    assert device.coordinator.calls.count("download") == 3


async def test_a_broken_download_resumes(device: Device) -> None:
    device.coordinator.shelf.broken_after = 32
    await device.work(device.train_task())
    assert device.coordinator.updates["t1"].traffic.received_bytes > 0
    assert device.coordinator.calls.count("download") == 2


@pytest.mark.parametrize("error", [CorruptData("altered"), WrongState("offset 3 is next")])
async def test_a_failed_upload_restarts(device: Device, error: HfmdsError) -> None:
    device.coordinator.errors["submit_update"] = [error]
    await device.work(device.train_task())
    assert "t1" in device.coordinator.updates


async def test_a_lost_update_is_sent_again(device: Device) -> None:
    device.coordinator.errors["submit_update"] = [WrongState("not uploaded")]
    await device.work(device.train_task())
    assert "t1" in device.coordinator.updates
    assert device.coordinator.calls.count("submit_update") == 2
    assert device.coordinator.failures == {}


# --- peers that are away --------------------------------------------------------------------------


async def test_an_outage_of_the_coordinator_is_logged_once_and_waited_for(
    device: Device, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    device.coordinator.errors["check_in"] = [unavailable(COORDINATOR) for _ in range(20)]
    await device.work(device.train_task())
    assert "t1" in device.coordinator.updates
    warnings = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(warnings) == 1
    assert "127.0.0.1:7401" in warnings[0].getMessage()
    assert "HFMDS_COORDINATOR" in warnings[0].getMessage()
    assert warnings[0].exc_info is None
    assert "coordinator at 127.0.0.1:7401 answers again" in caplog.text
    waits = device.slept[:20]
    assert max(waits) <= 30
    assert max(waits) > 5
    assert len(set(waits)) == 20  # jitter


async def test_the_return_of_the_coordinator_is_noticed_without_work(device: Device) -> None:
    nothing = RetryLater(0.0, "no work for this device")
    device.coordinator.errors["check_in"] = [unavailable(COORDINATOR)] * 2
    await device.work(nothing, nothing)
    # Unreached, away, and back. After that the device waits for work in long calls.
    assert device.coordinator.waits == [5, 5, 5, 30, 30]


@pytest.mark.parametrize("method", ["download", "submit_update"])
async def test_finished_work_is_kept_until_the_coordinator_is_back(
    device: Device, method: str
) -> None:
    device.coordinator.errors[method] = [unavailable(COORDINATOR) for _ in range(5)]
    await device.work(device.train_task())
    assert "t1" in device.coordinator.updates
    assert len(device.engine.works) == 1  # computed once


@pytest.mark.parametrize("method", ["get_share", "download_shards"])
async def test_training_waits_for_the_store(device: Device, method: str) -> None:
    device.store.seal("snap", batch(2, 1))
    device.store.errors[method] = [unavailable(STORE) for _ in range(5)]
    await device.work(device.train_task(snapshot_id="snap"))
    assert "t1" in device.coordinator.updates


async def test_a_batch_is_kept_until_the_store_is_back(
    device: Device, caplog: pytest.LogCaptureFixture
) -> None:
    device.store.errors["put_batch"] = [unavailable(STORE) for _ in range(5)]
    await device.work(device.synthesise_task())
    assert "s1" in device.coordinator.syntheses
    assert caplog.text.count("HFMDS_STORE") == 1


async def test_an_internal_error_of_the_coordinator_is_retried(device: Device) -> None:
    device.coordinator.errors["submit_update"] = [HfmdsError("internal error 1234")]
    await device.work(device.train_task())
    assert "t1" in device.coordinator.updates


async def test_a_run_that_does_not_exist_yet_is_awaited(
    device: Device, caplog: pytest.LogCaptureFixture
) -> None:
    device.run_id = "mnist"
    device.coordinator.errors["check_in"] = [NotFound("there is no run 'mnist'")] * 3
    await device.work(device.train_task())
    assert "t1" in device.coordinator.updates
    assert caplog.text.count("HFMDS_RUN is 'mnist'") == 1


@pytest.mark.parametrize("error", [NotAllowed("not your certificate"), InvalidInput("bad id")])
async def test_refusal_at_check_in_ends_the_device(device: Device, error: HfmdsError) -> None:
    device.coordinator.errors["check_in"] = [error]
    with pytest.raises(type(error)):
        await device.work()


async def test_readiness_follows_the_coordinator(device: Device) -> None:
    seen: list[str | None] = []

    async def watch(_: float) -> None:
        seen.append(device.peers.coordinator_retry.trouble())

    device.sleep = watch
    device.coordinator.errors["check_in"] = [unavailable(COORDINATOR)]
    await device.work(RetryLater(1.0, "no round is open"))
    assert seen[0] is not None
    assert "unavailable" in seen[0]
    assert seen[1:] == [None]


# --- leases ---------------------------------------------------------------------------------------


async def test_lease_is_renewed_every_third_while_computing(device: Device) -> None:
    device.engine.enough = lambda: device.coordinator.renewals >= 3
    await device.work(device.train_task())
    assert "t1" in device.coordinator.updates
    assert device.slept[0] == 10.0  # of 30


async def test_lease_is_renewed_while_the_store_is_away(device: Device) -> None:
    device.store.errors["put_batch"] = [unavailable(STORE) for _ in range(10)]
    await device.work(device.synthesise_task())
    assert device.coordinator.renewals >= 3


async def test_work_whose_round_closed_is_stopped(
    device: Device, caplog: pytest.LogCaptureFixture
) -> None:
    device.engine.enough = lambda: False  # forever

    life = asyncio.create_task(device.work(device.train_task()))
    await asyncio.to_thread(device.engine.started.wait)
    device.coordinator.errors["renew_lease"] = [TooLate("round 1 is closed", "goal-reached")]
    await life
    assert device.engine.abandoned
    assert not device.coordinator.updates
    assert not device.coordinator.failures
    assert "too late (goal-reached), the work is dropped: round 1 is closed" in caplog.text
    assert device.metric("tasks_total", kind="train", outcome="late") == 1


async def test_a_renewal_during_acceptance_does_not_stop_the_work(device: Device) -> None:
    device.coordinator.errors["renew_lease"] = [TooLate("accepted before", "accepted")]
    device.engine.enough = lambda: "renew_lease" in device.coordinator.calls
    await device.work(device.train_task())
    assert "t1" in device.coordinator.updates
    assert not device.engine.abandoned
    assert device.metric("tasks_total", kind="train", outcome="accepted") == 1


@pytest.mark.parametrize("method", ["download", "submit_update"])
@pytest.mark.parametrize("error", [TooLate("round 1 is closed"), Conflict("another was accepted")])
async def test_late_result_is_dropped_and_the_device_goes_on(
    device: Device, method: str, error: HfmdsError
) -> None:
    device.coordinator.errors[method] = [error]
    await device.work(device.train_task("t1"), device.train_task("t2", 2))
    assert list(device.coordinator.updates) == ["t2"]
    assert not device.coordinator.failures


async def test_sealed_pool_drops_the_batch(device: Device) -> None:
    device.store.errors["put_batch"] = [TooLate("the pool is sealed")]
    await device.work(device.synthesise_task("s1"), device.synthesise_task("s2", 2))
    assert list(device.coordinator.syntheses) == ["s2"]


async def test_repeatedly_late_tasks_are_paced(device: Device) -> None:
    device.store.errors["put_batch"] = [TooLate("in quarantine") for _ in range(3)]
    await device.work(*[device.synthesise_task("s1")] * 4, device.synthesise_task("s2", 2))
    assert [s for s in device.slept if s != 10.0] == [0.5, 1.0]  # the second and third refusal
    assert list(device.coordinator.syntheses) == ["s1", "s2"]
    assert len(device.engine.works) == 2  # the device reuses the batch of s1
    assert device.metric("tasks_total", kind="synthesise", outcome="late") == 3


async def test_every_check_in_reports_the_free_memory(device: Device) -> None:
    free = iter([1000, 2000, 3000])
    device.free_memory_bytes = lambda: next(free)
    await device.work(device.train_task())
    assert [profile.free_memory_bytes for profile in device.coordinator.profiles] == [1000, 2000]


async def test_outage_during_renewal_does_not_stop_the_work(device: Device) -> None:
    device.coordinator.errors["renew_lease"] = [unavailable(COORDINATOR) for _ in range(5)]
    device.engine.enough = lambda: device.coordinator.renewals >= 1
    await device.work(device.train_task())
    assert "t1" in device.coordinator.updates


# --- failing tasks --------------------------------------------------------------------------------


async def test_failure_is_reported_and_the_device_goes_on(device: Device) -> None:
    device.engine.error = InvalidInput("training diverged: the loss is nan at step 3 of 9")
    await device.work(device.train_task("t1"), device.train_task("t2", 2))
    assert list(device.coordinator.failures) == ["t1", "t2"]
    assert "loss is nan" in device.coordinator.failures["t1"]
    assert device.metric("tasks_total", kind="train", outcome="failed") == 2


async def test_failures_in_a_row_are_paced(device: Device) -> None:
    device.engine.error = InvalidInput("no")
    await device.work(*(device.train_task(f"t{i}", i) for i in range(1, 4)))
    assert [s for s in device.slept if s != 10.0] == [0.5, 1.0, 2.0]


async def test_the_text_of_an_unexpected_error_stays_on_the_device(
    device: Device, caplog: pytest.LogCaptureFixture
) -> None:
    device.engine.error = ValueError("pixel 17 of Ada's portrait")
    await device.work(device.train_task())
    assert device.coordinator.failures == {"t1": "unexpected ValueError; the device's log has more"}
    assert "Ada" in caplog.text


async def test_images_that_do_not_fit_the_model_are_reported(
    device: Device, caplog: pytest.LogCaptureFixture
) -> None:
    wide = dataclasses.replace(images(0, 1), pixels=np.zeros((2, 1, 2, 5), np.uint8))
    device.local = StillImages("its data", wide, source="/home/ada/wide")
    await device.work(device.train_task(), device.synthesise_task())
    assert "its data" in device.coordinator.failures["t1"]
    assert "[1, 2, 5]" in device.coordinator.failures["s1"]
    assert "ada" not in str(device.coordinator.failures)  # the path of the images is private
    assert "/home/ada/wide" in caplog.text
    assert "download" not in device.coordinator.calls  # the device downloads nothing


async def test_an_unknown_class_is_reported_without_its_name(
    device: Device, caplog: pytest.LogCaptureFixture
) -> None:
    device.local = StillImages(
        "its data", images(0, 1), ("cat", "yak"), named_by_owner=True, source="/home/ada/pets"
    )
    task = device.train_task()
    recipe = dataclasses.replace(RECIPE, class_names=("ant", "bee", "cat"))
    await device.work(dataclasses.replace(task, recipe=recipe))
    report = device.coordinator.failures["t1"]
    assert "a class of its data is not one of the run's classes (ant, bee, cat)" in report
    assert "yak" not in report
    assert "ada" not in report
    assert "class 'yak'" in caplog.text
    assert "/home/ada/pets" in caplog.text


async def test_diverged_synthesis_is_reported(device: Device) -> None:
    class Diverging(FakeEngine):
        def synthesise(self, *args, **kwargs):  # type: ignore[no-untyped-def]
            synthesis = super().synthesise(*args, **kwargs)
            health = dataclasses.replace(synthesis.health, matching_loss=math.nan)
            return dataclasses.replace(synthesis, health=health)

    device.engine = Diverging()
    await device.work(device.synthesise_task())
    assert "diverged" in device.coordinator.failures["s1"]
    assert not device.store.pools


@pytest.mark.parametrize("answer", [TooLate("over"), NotFound("no such task")])
async def test_a_refused_failure_report_does_not_stop_the_device(
    device: Device, answer: HfmdsError
) -> None:
    device.engine.error = InvalidInput("no")
    device.coordinator.errors["report_failure"] = answers = [answer]
    await device.work(device.train_task())
    assert not answers  # the device reported it once
    assert not device.coordinator.failures


async def test_a_task_of_a_later_version_is_given_up_and_the_device_continues(
    device: Device,
) -> None:
    message = outcome_message(device.train_task("later"))
    message.assignment.recipe.ClearField("method")
    later = bytes([15 << 3 | 2, 0])  # field 15 is a method of a later version
    recipe = message.assignment.recipe.SerializeToString() + later
    message.assignment.recipe.ParseFromString(recipe)
    received = outcome_from(type(message).FromString(message.SerializeToString()))
    await device.work(received, device.train_task("t2", 2))
    assert device.coordinator.failures.keys() == {"later"}
    assert "Recipe.method" in device.coordinator.failures["later"]
    assert list(device.coordinator.updates) == ["t2"]
    assert device.slept[0] == 0.5  # the backoff protects the coordinator
    assert device.metric("tasks_total", kind="unknown", outcome="failed") == 1


async def test_damaged_memory_fails_no_task(device: Device) -> None:
    await device.work(device.train_task("t1", 1))
    (kept,) = (device.folder / "runs").rglob("train-1")
    kept.write_bytes(b"nothing")
    await device.work(device.train_task("t2", 2))
    assert not device.coordinator.failures
    assert device.coordinator.updates["t2"].update == device.coordinator.updates["t1"].update


async def test_unknown_snapshot_is_reported(device: Device) -> None:
    await device.work(device.train_task(snapshot_id="gone"))
    assert "'gone'" in device.coordinator.failures["t1"]


# --- stops, kills and restarts --------------------------------------------------------------------


async def _stop_while_computing(device: Device, task_id: str = "t1") -> None:
    device.engine.enough = lambda: False
    life = asyncio.create_task(device.work(device.train_task(task_id)))
    await asyncio.to_thread(device.engine.started.wait)
    life.cancel()
    with pytest.raises(asyncio.CancelledError):
        await life
    assert not device.engine.running


async def test_stopping_leaves_the_task_without_a_report(device: Device) -> None:
    await _stop_while_computing(device)
    assert device.engine.abandoned
    assert not device.coordinator.updates
    assert not device.coordinator.failures


async def test_restarted_device_gives_the_same_update(device: Device) -> None:
    await _stop_while_computing(device)
    again = Device(device.folder, device.coordinator, device.store)
    await again.work(device.train_task())
    assert again.coordinator.calls.count("download") == 1  # the cache has the weights
    other = Device(device.folder / "other")
    await other.work(other.train_task())
    assert again.coordinator.updates["t1"].update == other.coordinator.updates["t1"].update


class Killed(BaseException):
    """Simulates kill -9: no code of the device runs after it."""


async def test_a_restarted_device_submits_its_finished_result(device: Device) -> None:
    device.coordinator.errors["submit_update"] = [Killed()]  # type: ignore[list-item]
    with pytest.raises(Killed):
        await device.work(device.train_task())
    again = Device(device.folder, device.coordinator, device.store)
    await again.work(device.train_task())
    assert "t1" in again.coordinator.updates
    assert again.engine.works == []  # the device computes nothing twice


async def test_finished_result_of_another_task_is_not_mixed_up(device: Device) -> None:
    device.coordinator.errors["submit_update"] = [TooLate("over")]
    await device.work(device.train_task("t1"))
    await device.work(device.train_task("t2", seed=100))
    assert len(device.engine.works) == 2


async def test_repeated_refresh_gives_the_same_batch(device: Device) -> None:
    """A repeated round starts from the memory before the round."""
    await device.work(device.synthesise_task("s1", 5), device.synthesise_task("s2", 10))
    await device.work(device.synthesise_task("s3", 10))
    first, second, repeated = (device.coordinator.syntheses[t].batch for t in ("s1", "s2", "s3"))
    assert first != second
    assert repeated == second


async def test_repeated_round_gives_the_same_update(device: Device) -> None:
    await device.work(device.train_task("t1", 1), device.train_task("t2", 2))
    await device.work(device.train_task("t3", 2))
    first, second, repeated = (device.coordinator.updates[t].update for t in ("t1", "t2", "t3"))
    assert first != second
    assert repeated == second


async def test_device_killed_between_memory_and_result_gives_the_same_update(
    device: Device,
) -> None:
    await device.work(device.train_task("t1", 1))
    device.coordinator.errors["submit_update"] = [Killed()]  # type: ignore[list-item]
    with pytest.raises(Killed):
        await device.work(device.train_task("t2", 2))
    (device.folder / "result.json").unlink()  # as after an earlier kill
    await device.work(device.train_task("t2", 2), device.train_task("t3", 3))
    assert [work.round_number for work in device.engine.works] == [1, 2, 2, 3]
    other = Device(device.folder / "other")
    await other.work(*(other.train_task(f"t{n}", n) for n in (1, 2, 3)))
    for task_id in ("t2", "t3"):
        ours, theirs = device.coordinator.updates[task_id], other.coordinator.updates[task_id]
        assert ours.update == theirs.update


async def test_kinds_of_tasks_have_memories_of_their_own(device: Device) -> None:
    await device.work(device.train_task("t1", 1), device.synthesise_task("s1", 2))
    await device.work(device.train_task("t2", 2))
    assert [list(work.memory) for work in device.engine.works] == [[], [], ["tasks"]]


async def test_memories_of_runs_do_not_mix(device: Device) -> None:
    other = dataclasses.replace(device.synthesise_task("s2", 2), run_uid="run.2")
    await device.work(device.synthesise_task("s1", 1), other)
    assert [work.memory for work in device.engine.works] == [{}, {}]


async def test_method_that_remembers_nothing_leaves_no_trace(device: Device) -> None:
    device.engine.remembers = False
    await device.work(device.train_task("t1", 1), device.train_task("t2", 2))
    assert not (device.folder / "runs").exists()


async def test_unavailable_is_no_failure(device: Device) -> None:
    device.coordinator.errors["check_in"] = [Unavailable("x")]
    await device.work(device.train_task())
    assert not device.coordinator.failures


async def test_small_cache_never_loses_what_the_task_uses(tmp_path: Path) -> None:
    device = Device(tmp_path, cache_max_bytes=1000)
    batches = [batch(*[i % 3] * 5) for i in range(3)]
    assert all(len(encode_batch(b)) < 1000 for b in batches)
    device.store.seal("snap", *batches)
    await device.work(device.train_task(snapshot_id="snap"))
    assert "t1" in device.coordinator.updates


# --- limits of the owner --------------------------------------------------------------------------


async def test_the_device_rests_until_its_conditions_hold(
    device: Device, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    reasons = ["the device is not charging", "the device is not charging", None, None]
    device.refusal = lambda: reasons.pop(0)
    await device.work(device.train_task())
    assert device.slept[:2] == [60.0, 60.0]
    assert "t1" in device.coordinator.updates
    assert caplog.text.count("resting: the device is not charging") == 1
    assert "going on" in caplog.text


async def test_a_device_that_must_rest_leaves_its_task_and_takes_it_again(device: Device) -> None:
    unplugged = [True]

    def refusal() -> str | None:
        if device.engine.running and unplugged:
            unplugged.clear()
            return "the device is not charging"
        return None

    device.refusal, device.look_every_seconds = refusal, 0.01
    device.engine.enough = lambda: device.engine.abandoned  # the second computation ends at once
    await device.work(device.train_task(), device.train_task())
    assert device.engine.abandoned
    assert device.coordinator.calls.count("leave") == 1
    assert device.coordinator.failures == {}
    assert "t1" in device.coordinator.updates
    assert device.metric("tasks_total", kind="train", outcome="left") == 1


async def test_with_once_the_device_stops_without_work(device: Device) -> None:
    device.once = True
    await device.work(
        device.train_task(), RetryLater(60.0, "nothing to do"), device.train_task("t2")
    )
    assert list(device.coordinator.updates) == ["t1"]
    assert 60.0 not in device.slept


async def test_with_once_failed_tasks_are_an_error(device: Device) -> None:
    device.once = True
    device.coordinator.shelf.garbled = 3  # the first task fails, the second succeeds
    with pytest.raises(WrongState, match="1 of this device's tasks") as failure:
        await device.work(
            device.train_task("t1"), device.train_task("t2"), RetryLater(5.0, "nothing")
        )
    assert failure.value.exit_code == 1
    assert "t2" in device.coordinator.updates
    device.once = False
    device.coordinator.shelf.garbled = 0
    await device.work(device.train_task("t3"))  # a device that continues has log and metrics


async def test_with_once_a_device_that_must_rest_stops(device: Device) -> None:
    device.once, device.refusal = True, lambda: "the device is not idle"
    await device.work(device.train_task())
    assert device.coordinator.calls == []


async def test_with_once_an_unavailable_coordinator_is_an_error(device: Device) -> None:
    device.once = True
    device.coordinator.errors["check_in"] = [unavailable(COORDINATOR)]
    with pytest.raises(Unavailable, match="HFMDS_COORDINATOR"):
        await device.work()


async def test_traffic_is_counted_and_a_task_too_large_for_the_day_is_given_up(
    tmp_path: Path,
) -> None:
    device = Device(tmp_path)
    size = device.coordinator.weights.size_bytes
    device.traffic_bytes_per_day = 3 * size
    await device.work(device.train_task(), device.train_task("t2"))
    moved = device.coordinator.updates["t1"].traffic
    assert moved.received_bytes == size
    assert list(device.coordinator.updates) == ["t1"]
    assert device.coordinator.causes["t2"].name == "UNSUITABLE"
    assert "HFMDS_TRAFFIC_BYTES_PER_DAY" in device.coordinator.failures["t2"]
    assert f"{moved.received_bytes + moved.sent_bytes} of {3 * size} bytes" in (
        TrafficBudget.refusal(device.budget) or ""
    )


async def test_altered_and_broken_transfers_count_as_traffic(device: Device) -> None:
    size = device.coordinator.weights.size_bytes
    device.traffic_bytes_per_day = 1000 * size
    device.coordinator.shelf.garbled = 2
    await device.work(device.train_task("t1"))
    sent = device.coordinator.updates["t1"].traffic.sent_bytes
    assert device.metric("received_bytes_total") == 3 * size
    assert device.budget.left_bytes() == 1000 * size - 3 * size - sent


async def test_an_abandoned_download_counts_as_traffic(device: Device) -> None:
    device.traffic_bytes_per_day = 10_000_000
    device.coordinator.shelf.garbled = 99
    await device.work(device.train_task("t1"))
    assert "t1" in device.coordinator.failures
    spent = device.traffic_bytes_per_day - device.budget.left_bytes()
    assert spent == 3 * device.coordinator.weights.size_bytes


@pytest.mark.parametrize("garbled", [0, 99])
async def test_the_count_is_on_disk_after_every_transfer(device: Device, garbled: int) -> None:
    device.traffic_bytes_per_day = 10**9  # the traffic stays below a hundredth of it
    device.coordinator.shelf.garbled = garbled
    await device.work(device.train_task("t1"))
    assert ("t1" in device.coordinator.failures) == bool(garbled)
    bytes_left = device.budget.left_bytes()
    assert bytes_left < 10**9
    assert TrafficBudget(device.folder / "traffic.json", 10**9).left_bytes() == bytes_left


async def test_a_download_does_not_restart_beyond_the_limit(device: Device) -> None:
    size = device.coordinator.weights.size_bytes
    device.traffic_bytes_per_day = 2 * size
    device.coordinator.shelf.garbled = 99
    await device.work(device.train_task("t1"))
    assert "HFMDS_TRAFFIC_BYTES_PER_DAY" in device.coordinator.failures["t1"]
    assert device.metric("received_bytes_total") == 2 * size


@pytest.mark.parametrize("short_by", [0, 1])
async def test_a_restarted_transfer_needs_room_only_for_missing_shards(
    device: Device, short_by: int
) -> None:
    device.store.seal("snap", batch(0), batch(1))
    sizes = [shard.digest.size_bytes for shard in device.store.snapshots["snap"].shards]
    once = device.coordinator.weights.size_bytes + sum(sizes)
    device.traffic_bytes_per_day = once + sizes[1] - short_by
    device.store.shelf.garbled = 1  # alters the last byte of the last shard
    await device.work(device.train_task("t1", snapshot_id="snap"))
    assert ("t1" in device.coordinator.failures) == bool(short_by)
    received = once if short_by else once + sizes[1]
    assert device.metric("received_bytes_total") == received


async def test_images_that_could_not_be_sent_today_are_not_synthesised(device: Device) -> None:
    pixels = RECIPE.method.samples_per_device * 4  # images of 2 x 2
    device.traffic_bytes_per_day = device.coordinator.weights.size_bytes + pixels - 1
    await device.work(device.synthesise_task())
    assert "HFMDS_TRAFFIC_BYTES_PER_DAY" in device.coordinator.failures["s1"]
    assert device.engine.works == []
    assert "download" not in device.coordinator.calls


async def test_a_disk_that_fills_up_during_a_download_ends_the_task_with_the_reason(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(staging, "open_private", no_room)
    await device.work(device.train_task())
    assert "the device's disk is full" in device.coordinator.failures["t1"]
    assert str(device.folder) not in device.coordinator.failures["t1"]
    assert device.coordinator.calls.count("download") == 1  # one attempt
    assert device.peers.coordinator_retry.trouble() is None  # the coordinator answered


@pytest.mark.parametrize(
    ("task", "where", "call"),
    [
        *(
            (task, where, call)
            for task in ("train_task", "synthesise_task")
            for where, call in (
                *((blobs, "open_private"), (os, "fsync")),
                *((Path, "mkdir"), (Path, "open")),
            )
        ),
        ("evaluate_task", os, "fsync"),
        ("evaluate_task", Path, "open"),
    ],
)
async def test_a_result_stays_in_memory_while_the_disk_is_full(
    tmp_path: Path,
    task: str,
    where: object,
    call: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    device = Device(tmp_path)
    with_room = getattr(where, call)
    full_disk_writes = [2]  # number of writes that find a full disk

    def called(*given: Any, **named: Any) -> Any:
        if device.engine.works and full_disk_writes[0] and given[1:] != ("rb",):
            full_disk_writes[0] -= 1
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return with_room(*given, **named)

    monkeypatch.setattr(where, call, called)
    await device.work(getattr(device, task)())
    assert full_disk_writes == [0]
    assert len(device.engine.works) == 1  # computed once
    assert device.coordinator.failures == {}
    kept = (
        device.coordinator.updates | device.coordinator.syntheses | device.coordinator.evaluations
    )
    assert len(kept) == 1
    assert "no space left in" in caplog.text
    assert "waits in memory" in caplog.text
