"""Random histories of pools, with kills, compared with a simple model of the store.

The store has the snapshots of the model, and keeps exactly the content that they need.
"""

from __future__ import annotations

import math
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from hfmds.domain.digest import Digest, digest_of
from hfmds.domain.learning import LabelledImages, SyntheticBatch
from hfmds.domain.pool_policy import PoolPolicy
from hfmds.domain.pools import Contribution, PoolState
from hfmds.errors import Conflict, NotAllowed, NotFound, TooLate, WrongState
from hfmds.event_chain import flaw
from hfmds.wire.tensors import encode_batch, read_batch
from tests.fuzz.budget import tried
from tests.synthesis_store.examples import GRACE_SECONDS, SPEC, Store

KEEP_SNAPSHOTS = 2
HALT_DB, HALT_MINIMUM_SAMPLES = 5.75, 3
DROP_DB = 4.5
POLICIES = [
    PoolPolicy(),
    PoolPolicy(refresh="accumulate"),
    PoolPolicy(refresh="accumulate", refresh_max_samples=4),
    PoolPolicy(max_pool_samples=4),
    PoolPolicy(halt_psnr_paired_p99_db=HALT_DB, halt_minimum_samples=HALT_MINIMUM_SAMPLES),
    PoolPolicy(refresh="decay"),
    PoolPolicy(near_action="drop"),
    PoolPolicy(near_action="drop", refresh="accumulate"),
    PoolPolicy(near_action="keep_better", refresh="accumulate"),
    PoolPolicy(psnr_paired_max_db=DROP_DB, leakage_action="drop"),
    PoolPolicy(psnr_paired_max_db=DROP_DB, leakage_action="drop", refresh="accumulate"),
]

runs = st.sampled_from(["run-1", "run-2"])
devices = st.sampled_from(["a", "b", "c"])
samples = st.lists(st.integers(0, 7), min_size=1, max_size=3)


def batch_of(numbers: Sequence[int]) -> SyntheticBatch:
    """Sample k is the image whose pixels are all k, and gives k dB away.

    Images without a pattern all look the same: those of a class are near duplicates.
    """
    pixels = np.array(numbers, np.uint8)[:, None, None, None] * np.ones(
        (1, *SPEC.model.image_shape), np.uint8
    )
    values = np.array(numbers, np.float32)
    labels = np.array(list(map(class_of, numbers)), np.int64)
    return SyntheticBatch(LabelledImages(pixels, labels), values, values, values / 10, values / 10)


def numbers_of(batch: SyntheticBatch) -> list[int]:
    numbers: list[int] = batch.images.pixels[:, 0, 0, 0].tolist()
    return numbers


@dataclass
class ModelPool:
    """What a pool should be."""

    run: int
    run_id: str
    policy: PoolPolicy
    quorum: int
    state: PoolState = PoolState.OPEN
    batches: dict[str, list[int]] = field(default_factory=dict)
    named: frozenset[str] = frozenset()

    def taken(self, device: str) -> list[int]:
        """What counts of a device's batch."""
        drops = self.policy.leakage_action == "drop"
        return [number for number in self.batches[device] if not drops or number <= DROP_DB]


Content = list[tuple[str, int]]
"""Samples and whose they are, in order."""


@dataclass
class ModelSnapshot:
    """What a snapshot should have."""

    pool_id: str
    run: int
    content: Content


def class_of(number: int) -> int:
    return number % SPEC.model.classes


def decayed(before: Content, found: Content) -> Content:
    """What a draw left of the content before, at the beginning of what is found: half of a class.

    Which samples it draws is its own affair.
    """
    expected = {label: count // 2 for label, count in by_class(before).items() if count > 1}
    kept = found[: sum(expected.values())]
    assert by_class(kept) == expected
    rest = iter(before)
    assert all(one in rest for one in kept)  # in the same order
    return kept


def by_class(content: Content) -> Counter[int]:
    return Counter(class_of(number) for _, number in content)


def near_duplicates(policy: PoolPolicy, numbers: Iterable[int]) -> set[int]:
    """Of those that come in this order, the ones that have to go."""
    if policy.near_action == "count":
        return set()
    groups: dict[int, list[int]] = {}
    for number in numbers:
        groups.setdefault(class_of(number), []).append(number)
    stays = {
        min(group) if policy.near_action == "keep_better" else group[0] for group in groups.values()
    }
    return {number for group in groups.values() for number in group} - stays


def digest_for(numbers: Sequence[int]) -> Digest:
    return digest_of(encode_batch(batch_of(numbers)))


class PoolMachine(RuleBasedStateMachine):
    """A store beside its model."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.store = Store(Path(self.folder.name), keep_snapshots=KEEP_SNAPSHOTS)
        self.pools: dict[str, ModelPool] = {}
        self.snapshots: dict[str, ModelSnapshot] = {}  # oldest first
        self.withdrawn: set[tuple[str, str]] = set()
        self.live: dict[str, int] = {}  # number of the run that has the id now
        self.referenced: dict[int, list[str]] = {}  # by run: what it has named
        self.opened = 0
        self.runs_begun = 0
        self.head = ""
        self.crash_left_content = False

    def teardown(self) -> None:
        self.folder.cleanup()

    # --- what may happen ------------------------------------------------------------------------

    @rule(
        data=st.data(),
        run_id=runs,
        policy=st.sampled_from(POLICIES),
        quorum=st.sampled_from([0, 2]),
    )
    def open(self, data: st.DataObject, run_id: str, policy: PoolPolicy, quorum: int) -> None:
        some = st.lists(st.sampled_from(list(self.snapshots)), max_size=2, unique=True)
        self.open_pool(run_id, policy, quorum, data.draw(some) if self.snapshots else [])

    def open_pool(
        self, run_id: str, policy: PoolPolicy, quorum: int = 0, referenced: Sequence[str] = ()
    ) -> str:
        if run_id not in self.live:
            self.runs_begun += 1
            self.live[run_id] = self.runs_begun
        self.opened += 1
        pool_id = f"pool-{self.opened}"
        spec = replace(SPEC, run_id=run_id, policy=policy, seal_quorum=quorum)
        self.pools[pool_id] = ModelPool(self.live[run_id], run_id, policy, quorum)
        self.referenced[self.live[run_id]] = list(referenced)
        for named in (referenced, ()):  # again, it changes nothing
            self.store.pools.open(pool_id, spec, named)
        return pool_id

    @initialize(batches=st.dictionaries(devices, samples, min_size=1))
    def begin(self, batches: dict[str, list[int]]) -> None:
        """So that there is a snapshot in every tale."""
        self.refresh_pool("run-1", POLICIES[0], batches)

    @rule(
        run_id=runs,
        policy=st.sampled_from(POLICIES),
        batches=st.dictionaries(devices, samples, min_size=1),
    )
    def refresh(self, run_id: str, policy: PoolPolicy, batches: dict[str, list[int]]) -> None:
        """As a run does it: alone, the steps would hardly ever come in this order."""
        self.refresh_pool(run_id, policy, batches)

    def refresh_pool(self, run_id: str, policy: PoolPolicy, batches: dict[str, list[int]]) -> None:
        pool_id = self.open_pool(run_id, policy)
        for device, numbers in batches.items():
            self.put_batch(pool_id, device, numbers)
        self.seal_pool(pool_id, set(batches))

    @precondition(lambda self: self.pools)
    @rule(data=st.data(), device=devices, numbers=samples)
    def put(self, data: st.DataObject, device: str, numbers: list[int]) -> None:
        self.put_batch(data.draw(st.sampled_from(sorted(self.pools))), device, numbers)

    def put_batch(self, pool_id: str, device: str, numbers: list[int]) -> None:
        pool = self.pools[pool_id]
        others = sum(len(b) for d, b in pool.batches.items() if d != device)
        if pool.batches.get(device) == numbers and pool.state in (PoolState.OPEN, PoolState.SEALED):
            pass  # also when it is sealed: a late retry
        elif self.is_withdrawn(device, pool.run_id):
            with pytest.raises(NotAllowed, match="withdrawn"):
                self.store.put(device, batch_of(numbers), pool_id)
            return
        elif pool.state is not PoolState.OPEN:
            with pytest.raises(NotAllowed if pool.state is PoolState.HALTED else TooLate):
                self.store.put(device, batch_of(numbers), pool_id)
            return
        elif pool.policy.max_pool_samples and others + len(numbers) > 4:
            with pytest.raises(Exception, match="samples with this batch"):
                self.store.put(device, batch_of(numbers), pool_id)
            return
        else:
            pool.batches[device] = numbers
            if self.halts_while_filled(pool):
                pool.state = PoolState.HALTED
                with pytest.raises(NotAllowed, match="halted"):
                    self.store.put(device, batch_of(numbers), pool_id)
                return
        self.store.put(device, batch_of(numbers), pool_id)

    @precondition(lambda self: self.pools)
    @rule(data=st.data(), chosen=st.sets(devices, min_size=1))
    def seal(self, data: st.DataObject, chosen: set[str]) -> None:
        self.seal_pool(data.draw(st.sampled_from(sorted(self.pools))), chosen)

    def seal_pool(self, pool_id: str, chosen: set[str]) -> None:
        pool = self.pools[pool_id]
        present = frozenset(chosen & pool.batches.keys())
        named = [Contribution(d, digest_for(pool.batches[d])) for d in present]
        if pool.state in (PoolState.ABANDONED, PoolState.HALTED):
            expected: type[Exception] | None = WrongState
        elif pool.state is PoolState.OPEN:
            expected = None if present else WrongState
            if present and self.halts_when_sealed(pool, present):
                expected, pool.state = WrongState, PoolState.HALTED
            elif present and not self.leaves_something(pool, present):
                expected = WrongState
        elif self.snapshot_of(pool_id) is None:
            expected = NotFound
        else:
            expected = None if present == pool.named else Conflict
        if expected:
            with pytest.raises(expected):
                self.store.app.sealing.seal(pool_id, named)
            return
        sealed = self.store.app.sealing.seal(pool_id, named)
        if pool.state is PoolState.OPEN:
            self.expect_sealed(pool_id, present)
        assert sealed.missing == ()
        assert sealed.snapshot.snapshot_id == self.snapshot_of(pool_id)

    @rule()
    def seal_due(self) -> None:
        self.store.app.sealing.seal_due()
        for pool_id, pool in self.pools.items():
            ripe = pool.quorum and len(pool.batches) >= pool.quorum
            if pool.state is PoolState.OPEN and ripe and any(map(pool.taken, pool.batches)):
                if self.halts_when_sealed(pool, pool.batches):
                    pool.state = PoolState.HALTED
                else:
                    self.expect_sealed(pool_id, frozenset(pool.batches))

    # Always the same device: it never comes back, and soon none would be left.
    @rule(device=st.just("b"), run_id=st.sampled_from(["", "run-1"]))
    def withdraw(self, device: str, run_id: str) -> None:
        removed = 0
        for pool in self.pools.values():
            affected = pool.state is PoolState.OPEN and run_id in ("", pool.run_id)
            if affected and (device, run_id) not in self.withdrawn:
                removed += pool.batches.pop(device, None) is not None
        self.withdrawn.add((device, run_id))
        assert self.store.app.retention.withdraw(device, run_id).removed_batches == removed

    @rule(run_id=runs)
    def release(self, run_id: str) -> None:
        number = self.live.pop(run_id, None)
        given_up = sum(snapshot.run == number for snapshot in self.snapshots.values())
        assert self.store.app.retention.release(run_id) == given_up
        for pool in self.pools.values():
            if pool.run == number and pool.state is PoolState.OPEN:
                pool.state = PoolState.ABANDONED

    @rule()
    def collect(self) -> None:
        needed = {
            snapshot_id
            for number in self.live.values()
            for snapshot_id in (*self.of_run(number)[-KEEP_SNAPSHOTS:], *self.referenced[number])
        }
        doomed = [one for one in self.snapshots if one not in needed]
        assert list(self.store.app.retention.collect(dry_run=True).snapshot_ids) == doomed
        assert list(self.store.app.retention.collect().snapshot_ids) == doomed
        for snapshot_id in doomed:
            pool = self.pools[self.snapshots.pop(snapshot_id).pool_id]
            pool.batches.clear()
        for pool_id, pool in list(self.pools.items()):
            # A released run is forgotten with its last snapshot, which another run may have named.
            if pool.run not in self.live.values() and not self.of_run(pool.run):
                del self.pools[pool_id]

    # --- kills ----------------------------------------------------------------------------------

    @rule(numbers=samples)
    def restart_in_the_middle_of_a_put(self, numbers: list[int]) -> None:
        self.store.blobs.put_bytes(encode_batch(batch_of(numbers)))
        self.restart()

    @precondition(lambda self: any(p.batches for p in self.pools.values()))
    @rule()
    def restart_in_the_middle_of_sealing(self) -> None:
        for pool_id, pool in self.pools.items():
            if pool.state is PoolState.OPEN and pool.batches:
                named = frozenset(self.store.app.snapshot_records.batches(pool_id))
                with suppress(WrongState):
                    basis = self.store.app.snapshot_records.seal_input(pool_id, named)
                    self.store.app.builder.build(basis)
        self.restart()

    @precondition(lambda self: len(self.snapshots) > KEEP_SNAPSHOTS)
    @rule()
    def restart_in_the_middle_of_collecting(self) -> None:
        oldest = next(iter(self.snapshots))
        if self.store.app.snapshot_retention.collect_snapshot(oldest, "test"):
            self.pools[self.snapshots.pop(oldest).pool_id].batches.clear()
        self.restart()

    def restart(self) -> None:
        moment = self.store.clock.moment
        self.store.engine.dispose()
        self.store = Store(Path(self.folder.name), keep_snapshots=KEEP_SNAPSHOTS)
        self.store.clock.moment = moment
        self.crash_left_content = True

    @rule()
    def clean_up(self) -> None:
        """Let the sweep find what crashes left, and come back after the grace time."""
        self.store.app.retention.clean_up()
        self.store.clock.advance(GRACE_SECONDS)
        self.store.app.retention.clean_up()
        self.crash_left_content = False

    # --- what must be true ----------------------------------------------------------------------

    @invariant()
    def snapshots_are_as_they_should_be(self) -> None:
        listed = [one.snapshot_id for one in self.store.app.snapshots.list(None)]
        assert listed == list(reversed(self.snapshots))
        for snapshot_id, expected in self.snapshots.items():
            assert self.content(snapshot_id) == expected.content

    @invariant()
    def pools_are_in_their_states(self) -> None:
        for pool_id, pool in self.pools.items():
            status = self.store.pools.status(pool_id)
            assert status.state is pool.state
            if pool.state is PoolState.OPEN:
                assert status.devices == len(pool.batches)
                assert status.samples == sum(len(pool.taken(device)) for device in pool.batches)
                assert status.leakage.samples == status.samples

    @invariant()
    def what_is_needed_is_kept_and_nothing_else(self) -> None:
        needed = {
            digest_for(numbers)
            for pool in self.pools.values()
            if pool.state is PoolState.OPEN
            for numbers in pool.batches.values()
        }
        for snapshot_id in self.snapshots:
            needed |= {shard.digest for shard in self.store.app.snapshots.get(snapshot_id).shards}
        stored = set(self.store.blobs.digests())
        assert needed <= stored
        assert needed == stored or self.crash_left_content

    @invariant()
    def the_log_is_sound_and_only_grows(self) -> None:
        log = self.store.app.events.list(0, 100_000)
        assert flaw(log, self.store.app.events.log_id, self.head) == ""
        self.head = log[-1].hash if log else ""

    # --- the model ------------------------------------------------------------------------------

    def expect_sealed(self, pool_id: str, present: Iterable[str]) -> None:
        pool = self.pools[pool_id]
        pool.state, pool.named = PoolState.SEALED, frozenset(present)
        snapshot_id = self.store.pools.status(pool_id).snapshot_id
        carried = self.carried(pool, self.content(snapshot_id))
        new = [(one, number) for one in sorted(pool.named) for number in pool.taken(one)]
        left_out = near_duplicates(pool.policy, [number for _, number in (*carried, *new)])
        content: Content = []
        for device, number in (*carried, *new):
            if number not in left_out and number not in {known for _, known in content}:
                content.append((device, number))
        newest, *_ = self.store.app.snapshot_records.snapshots()
        self.snapshots[snapshot_id] = ModelSnapshot(pool_id, pool.run, content)
        assert newest.snapshot_id == snapshot_id or pool.quorum

    def carried(self, pool: ModelPool, found: Content) -> Content:
        """Return what should be carried over; where a draw decides, what was."""
        before = self.before(pool)
        if pool.policy.refresh == "replace":
            return []
        new = sum(len(pool.taken(device)) for device in pool.named)
        if pool.policy.refresh == "decay":
            return decayed(before, found)
        most = pool.policy.refresh_max_samples
        room = min(len(before), max(0, most - new)) if most else len(before)
        return before[len(before) - room :]

    def before(self, pool: ModelPool) -> Content:
        """What the run's last snapshot has of devices that were not withdrawn."""
        earlier = self.of_run(pool.run)
        content = self.snapshots[earlier[-1]].content if earlier else []
        return [one for one in content if not self.is_withdrawn(one[0], pool.run_id)]

    def leaves_something(self, pool: ModelPool, devices: Iterable[str]) -> bool:
        """Whether a snapshot of these would have a sample."""
        if any(map(pool.taken, devices)):
            return True
        before = self.before(pool)
        if pool.policy.refresh == "decay":
            return any(count // 2 for count in by_class(before).values())
        return pool.policy.refresh == "accumulate" and bool(before)

    def halts_while_filled(self, pool: ModelPool) -> bool:
        """Sample k has a PSNR of k dB, which a histogram knows to be above k - 0.5."""
        found = sorted(number for batch in pool.batches.values() for number in batch)
        if pool.policy.halt_psnr_paired_p99_db > HALT_DB or len(found) < HALT_MINIMUM_SAMPLES:
            return False
        return found[math.floor(0.99 * (len(found) - 1))] - 0.5 >= HALT_DB

    def halts_when_sealed(self, pool: ModelPool, devices: Iterable[str]) -> bool:
        if pool.policy.halt_psnr_paired_p99_db > HALT_DB:
            return False
        distinct = {number for device in devices for number in pool.batches[device]}
        return bool(np.percentile(list(distinct), 99) > HALT_DB)

    def content(self, snapshot_id: str) -> Content:
        snapshot = self.store.app.snapshots.get(snapshot_id)
        content = []
        for shard in snapshot.shards:
            batch = read_batch(self.store.blobs.local_path(shard.digest), "shard")
            content += [(self.device(shard.contributor), number) for number in numbers_of(batch)]
        assert len(content) == snapshot.samples
        return content

    def device(self, contributor: str) -> str:
        pseudonym = self.store.app.identity.pseudonym
        return next(device for device in "abc" if pseudonym(device) == contributor)

    def snapshot_of(self, pool_id: str) -> str | None:
        found = (key for key, one in self.snapshots.items() if one.pool_id == pool_id)
        return next(found, None)

    def of_run(self, number: int) -> list[str]:
        return [key for key, snapshot in self.snapshots.items() if snapshot.run == number]

    def is_withdrawn(self, device: str, run_id: str) -> bool:
        return bool({(device, ""), (device, run_id)} & self.withdrawn)


class TestInShort(PoolMachine.TestCase):  # type: ignore[misc, name-defined]
    settings = settings(tried(6), stateful_step_count=25)


@pytest.mark.integration
@pytest.mark.soak
class TestAtLength(PoolMachine.TestCase):  # type: ignore[misc, name-defined]
    settings = settings(tried(10), stateful_step_count=40)
