"""Builds a snapshot: carried-over shards first, then shards of the pool's batches.

The builder reads one batch at a time. A shard has at most 128 samples of one device and one
refresh: small enough for a device with little room, and large enough to be worth a file. A batch
that fits in one shard and lost no sample is reused as the shard.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from datetime import datetime

import numpy as np

from hfmds.algorithm.leakage.leakage_limits import accepted, leaking
from hfmds.domain.digest import Digest
from hfmds.domain.learning import SyntheticBatch
from hfmds.domain.pool_policy import PoolPolicy
from hfmds.domain.pools import Contribution, Shard, Snapshot
from hfmds.errors import Unavailable, WrongState
from hfmds.storage.blobs import Blobs
from hfmds.wire.tensors import encode_batch
from synthesis_store.content.orphans import Orphans
from synthesis_store.content.stored_batches import read_stored_batch
from synthesis_store.contributors.store_identity import StoreIdentity
from synthesis_store.snapshots.carry_over import CarriedShard, carry_over
from synthesis_store.snapshots.merging import (
    HASH_BYTES,
    Merging,
    SampleFacts,
    sample_hashes,
    split_hashes,
)
from synthesis_store.snapshots.near_duplicates import NearDuplicates
from synthesis_store.snapshots.snapshot_records import (
    BuiltSnapshot,
    KnownShard,
    SealInput,
    SnapshotRecords,
)

SHARD_SAMPLES = 128


class SnapshotBuilder:
    """Builds the shards and the description of a snapshot, and stores the shards."""

    def __init__(
        self,
        records: SnapshotRecords,
        orphans: Orphans,
        blobs: Blobs,
        identity: StoreIdentity,
        now: Callable[[], datetime],
    ) -> None:
        self._records = records
        self._orphans = orphans
        self._blobs = blobs
        self._identity = identity
        self._now = now
        self._stopping = threading.Event()

    def stop(self) -> None:
        """Give up the snapshot that is being built at its next step, and build no more."""
        self._stopping.set()

    def build(self, seal_input: SealInput, lost: Set[Digest] = frozenset()) -> BuiltSnapshot:
        """Build a snapshot whose shards are stored but that is in no table yet.

        `lost` are shards of the snapshot before whose content is lost.
        """
        written: set[Digest] = set()
        try:
            return self._build(seal_input, lost, written)
        except BaseException:
            self._orphans.discard(written)
            raise

    def discard(self, built: BuiltSnapshot) -> None:
        """Delete the shards that were written for a snapshot that is not recorded."""
        self._orphans.discard(built.written)

    def _build(
        self, seal_input: SealInput, lost: Set[Digest], written: set[Digest]
    ) -> BuiltSnapshot:
        """Build a snapshot and add each shard that is written to `written`."""
        policy, parent = seal_input.spec.policy, seal_input.parent_snapshot_id
        before = self._records.known_shards(parent) if parent else []
        available = [known for known in before if known.shard.digest not in lost]
        carried = self._carried(seal_input, available)
        near = NearDuplicates(policy)
        too_many = policy.near_threshold > 0 and _too_many(seal_input, carried)
        if policy.near_threshold > 0 and not too_many:
            self._find_near_duplicates(seal_input, carried, near)
        merging = Merging(
            seal_input.spec.model.classes, (known.hashes for known in before), near.left_out
        )
        shards = self._carry(carried, merging, near.left_out, written)
        carried_samples = merging.samples
        leaks = _LeakCounts()
        for contribution in seal_input.present:
            shards += self._contributed(seal_input, contribution, merging, leaks, written)
        if not shards:
            raise WrongState(
                f"pool {seal_input.pool_id} cannot be sealed: no sample of its batches is left"
            )
        manifest = tuple(known.shard for known in shards)
        snapshot = Snapshot(
            snapshot_id=_snapshot_id(seal_input.pool_id, manifest),
            pool_id=seal_input.pool_id,
            spec=seal_input.spec,
            samples=merging.samples,
            class_histogram=merging.class_histogram,
            duplicates=merging.duplicates,
            leakage=merging.leakage(),
            sealed_at=self._now(),
            size_bytes=sum(shard.digest.size_bytes for shard in manifest),
            parent_snapshot_id=parent,
            carried_samples=carried_samples,
            repeated_samples=merging.repeated,
            near_duplicates=near.count,
            near_duplicates_dropped=len(near.left_out),
            leaking_samples=leaks.leaking,
            leaking_samples_dropped=leaks.dropped,
            leaking_batches=seal_input.leaking_batches,
            near_duplicates_unknown=too_many,
            histograms=merging.histograms(),
            shards=manifest,
        )
        return BuiltSnapshot(snapshot, tuple(shards), frozenset(written), merging.percentiles())

    # --- from the snapshot before ---------------------------------------------------------------

    def _carried(self, seal_input: SealInput, before: Sequence[KnownShard]) -> list[_CarriedPart]:
        """Return what the policy carries over, before near duplicates are left out."""
        allowed = [known for known in before if known.shard.contributor not in seal_input.withdrawn]
        carried = carry_over(
            seal_input.spec.policy,
            [known.shard for known in allowed],
            seal_input.new_samples,
            lambda position: self._read(allowed[position].shard.digest).images.labels,
            int(hashlib.sha256(seal_input.parent_snapshot_id.encode()).hexdigest()[:15], 16),
        )
        return [_CarriedPart.of(allowed[shard.position], shard) for shard in carried]

    def _carry(
        self,
        carried: Sequence[_CarriedPart],
        merging: Merging,
        left_out: Set[bytes],
        written: set[Digest],
    ) -> list[KnownShard]:
        parts = (part.without(left_out) for part in carried)
        shards = [self._as_shard(part, written) for part in parts if part.indices]
        for known in shards:
            merging.carry(SampleFacts(known.hashes, known.measurements, known.shard.class_counts))
        return shards

    def _as_shard(self, part: _CarriedPart, written: set[Digest]) -> KnownShard:
        known, shard = part.known, part.known.shard
        if len(part.indices) == shard.samples:
            return known
        batch = self._samples_of(part)
        facts = SampleFacts.of(batch, b"".join(part.hashes))
        digest = self._write(batch, written)
        return _known_shard(digest, facts, shard.contributor, shard.first_round)

    def _samples_of(self, part: _CarriedPart) -> SyntheticBatch:
        return self._read(part.known.shard.digest).take(np.array(part.indices, np.int64))

    # --- near duplicates ------------------------------------------------------------------------

    def _find_near_duplicates(
        self, seal_input: SealInput, carried: Sequence[_CarriedPart], near: NearDuplicates
    ) -> None:
        """Look at all samples before any shard is written.

        Otherwise a better sample that comes late would find the worse one already written.
        """
        for part in carried:
            near.add(self._samples_of(part), part.hashes)
        for contribution in seal_input.present:
            batch = accepted(self._read(contribution.batch), seal_input.spec.policy)
            near.add(batch, split_hashes(sample_hashes(batch)))

    # --- from the pool --------------------------------------------------------------------------

    def _contributed(
        self,
        seal_input: SealInput,
        contribution: Contribution,
        merging: Merging,
        leaks: _LeakCounts,
        written: set[Digest],
    ) -> Iterator[KnownShard]:
        batch = self._read(contribution.batch)
        kept, facts = merging.add(leaks.passing(batch, seal_input.spec.policy))
        contributor = self._identity.pseudonym(contribution.device_id)
        round_number = seal_input.spec.round_number
        if kept is batch and len(batch) <= SHARD_SAMPLES:
            yield _known_shard(contribution.batch, facts, contributor, round_number)
            return
        for start in range(0, len(kept), SHARD_SAMPLES):
            piece = kept.take(np.arange(start, min(start + SHARD_SAMPLES, len(kept))))
            hashes = facts.hashes[start * HASH_BYTES :][: len(piece) * HASH_BYTES]
            piece_facts = SampleFacts.of(piece, hashes)
            digest = self._write(piece, written)
            yield _known_shard(digest, piece_facts, contributor, round_number)

    # --- content --------------------------------------------------------------------------------

    def _read(self, digest: Digest) -> SyntheticBatch:
        self._require_running()
        return read_stored_batch(self._blobs, digest)

    def _write(self, batch: SyntheticBatch, written: set[Digest]) -> Digest:
        self._require_running()
        digest = self._blobs.put_bytes(encode_batch(batch))
        written.add(digest)
        return digest

    def _require_running(self) -> None:
        if self._stopping.is_set():
            raise Unavailable("the store is stopping; try again")


class _LeakCounts:
    """Counts the samples that are over the leakage limits."""

    def __init__(self) -> None:
        self.leaking = 0
        self.dropped = 0

    def passing(self, batch: SyntheticBatch, policy: PoolPolicy) -> SyntheticBatch:
        """Return the samples that the policy lets pass: `batch` itself if all do."""
        over = leaking(batch, policy)
        kept = accepted(batch, policy, over)
        self.leaking += int(over.sum())
        self.dropped += len(batch) - len(kept)
        return kept


@dataclass(frozen=True, slots=True)
class _CarriedPart:
    """Samples of a shard of the snapshot before."""

    known: KnownShard
    indices: tuple[int, ...]

    @classmethod
    def of(cls, known: KnownShard, carried: CarriedShard) -> _CarriedPart:
        all_indices = tuple(range(known.shard.samples))
        return cls(known, all_indices if carried.indices is None else carried.indices)

    @property
    def hashes(self) -> list[bytes]:
        """The hash of each sample."""
        hashes = split_hashes(self.known.hashes)
        return [hashes[index] for index in self.indices]

    def without(self, left_out: Set[bytes]) -> _CarriedPart:
        """Return the part without the samples that are left out."""
        pairs = zip(self.indices, self.hashes, strict=True)
        return _CarriedPart(
            self.known, tuple(index for index, name in pairs if name not in left_out)
        )


def _too_many(seal_input: SealInput, carried: Iterable[_CarriedPart]) -> bool:
    """Return whether there are too many samples to search for near duplicates.

    The search takes about a millisecond and a kilobyte for each sample.
    """
    limit = seal_input.spec.policy.near_max_samples
    return 0 < limit < seal_input.new_samples + sum(len(part.indices) for part in carried)


def _known_shard(
    digest: Digest, facts: SampleFacts, contributor: str, first_round: int
) -> KnownShard:
    samples = len(facts.hashes) // HASH_BYTES
    shard = Shard(digest, samples, contributor, facts.class_counts, first_round)
    return KnownShard(shard, facts.hashes, facts.measurements)


def _snapshot_id(pool_id: str, shards: Sequence[Shard]) -> str:
    content = "\n".join((pool_id, *(shard.digest.sha256 for shard in shards)))
    return hashlib.sha256(content.encode()).hexdigest()[:32]
