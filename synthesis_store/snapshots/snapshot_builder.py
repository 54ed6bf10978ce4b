"""Makes snapshots: what is taken over from the one before, then the pool's batches, as shards.

Batches are read one at a time. A shard is at most 128 samples of one device and one refresh: small
enough that a device can be given few of them, and large enough to be worth a file. A contribution
within that, of which nothing was left out, is its batch as it came.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from datetime import datetime

import numpy as np

from hfmds.algorithm.leakage.leakage_limits import leaking, passed
from hfmds.domain.digest import Digest, digest_of
from hfmds.domain.learning import SyntheticBatch
from hfmds.domain.pool_policy import PoolPolicy
from hfmds.domain.pools import Contribution, Shard, Snapshot
from hfmds.errors import NotFound, Unavailable, WrongState
from hfmds.storage.blobs import Blobs
from hfmds.wire.tensors import encode_batch, read_batch
from synthesis_store.access.pseudonyms import Identity
from synthesis_store.retention.blob_references import Contents
from synthesis_store.snapshots.carry_over import Carried, carry_over
from synthesis_store.snapshots.merging import (
    HASH_BYTES,
    Known,
    Merging,
    sample_hashes,
    split_hashes,
)
from synthesis_store.snapshots.near_duplicates import NearDuplicates
from synthesis_store.snapshots.snapshot_records import Basis, KnownShard, Made, SnapshotRecords

SHARD_SAMPLES = 128


class ContentMissing(Unavailable):
    """A batch or shard is not where content is kept."""

    def __init__(self, digest: Digest) -> None:
        super().__init__(f"batch {digest} was removed meanwhile; try again")
        self.digest = digest


class Leaks:
    """Counts samples over the limits of leakage while they are left out or not."""

    def __init__(self) -> None:
        self.found = 0
        self.dropped = 0

    def passed(self, batch: SyntheticBatch, policy: PoolPolicy) -> SyntheticBatch:
        """What the policy lets pass: `batch` itself if that is all of it."""
        over = leaking(batch, policy)
        kept = passed(batch, policy, over)
        self.found += int(over.sum())
        self.dropped += len(batch) - len(kept)
        return kept


class Sealing:
    """Turns the basis of a snapshot into stored shards and their description."""

    def __init__(
        self,
        records: SnapshotRecords,
        contents: Contents,
        blobs: Blobs,
        identity: Identity,
        now: Callable[[], datetime],
    ) -> None:
        self._records = records
        self._contents = contents
        self._blobs = blobs
        self._identity = identity
        self._now = now
        self._stopping = threading.Event()

    def stop(self) -> None:
        """Give up what is being made at its next step, and make no more."""
        self._stopping.set()

    def make(self, basis: Basis, lost: Set[Digest] = frozenset()) -> Made:
        """The snapshot whose shards are stored, but which nobody knows yet.

        `lost` are shards of the snapshot before that cannot be taken over.
        """
        drafts: dict[Digest, str] = {}
        try:
            return self._make(basis, lost, drafts)
        except BaseException:
            self._contents.give_up(drafts.items())
            raise

    def _make(self, basis: Basis, lost: Set[Digest], drafts: dict[Digest, str]) -> Made:
        """`drafts` grows with what is written on the way, each with its mark."""
        parent = basis.parent_snapshot_id
        before = self._records.known_shards(parent) if parent else []
        carried = self._carried(
            basis, [known for known in before if known.shard.digest not in lost]
        )
        near = NearDuplicates(basis.spec.policy)
        looks = basis.spec.policy.near_threshold > 0
        too_many = looks and _too_many(basis, carried)
        if looks and not too_many:
            self._find_near_duplicates(basis, carried, near)
        merging = Merging(
            basis.spec.model.classes, (known.hashes for known in before), near.left_out
        )
        shards = self._taken_over(carried, merging, near.left_out, drafts)
        carried_samples = merging.samples
        leaks = Leaks()
        for contribution in basis.present:
            shards += self._contributed(basis, contribution, merging, leaks, drafts)
        if not shards:
            raise WrongState(
                f"pool {basis.pool_id} cannot be sealed: nothing of its batches is left"
            )
        manifest = tuple(known.shard for known in shards)
        snapshot = Snapshot(
            snapshot_id=_snapshot_id(basis.pool_id, manifest),
            pool_id=basis.pool_id,
            spec=basis.spec,
            samples=merging.samples,
            class_histogram=merging.class_histogram,
            duplicates=merging.duplicates,
            leakage=merging.leakage(),
            sealed_at=self._now(),
            size_bytes=sum(shard.digest.size_bytes for shard in manifest),
            parent_snapshot_id=parent,
            carried_samples=carried_samples,
            repeated_samples=merging.repeated,
            near_duplicates=near.found,
            near_duplicates_dropped=len(near.left_out),
            leaking_samples=leaks.found,
            leaking_samples_dropped=leaks.dropped,
            leaking_batches=basis.leaking_batches,
            near_duplicates_unknown=too_many,
            histograms=merging.histograms(),
            shards=manifest,
        )
        return Made(snapshot, tuple(shards), drafts, merging.percentiles())

    # --- from the snapshot before ---------------------------------------------------------------

    def _carried(self, basis: Basis, before: Sequence[KnownShard]) -> list[_Part]:
        """What the policy takes over, before near duplicates are left out."""
        allowed = [known for known in before if known.shard.contributor not in basis.withdrawn]
        kept = carry_over(
            basis.spec.policy,
            [known.shard for known in allowed],
            basis.new_samples,
            lambda position: self.read(allowed[position].shard.digest).images.labels,
            int(hashlib.sha256(basis.parent_snapshot_id.encode()).hexdigest()[:15], 16),
        )
        return [_Part.of(allowed[one.position], one) for one in kept]

    def _taken_over(
        self,
        carried: Sequence[_Part],
        merging: Merging,
        left_out: Set[bytes],
        drafts: dict[Digest, str],
    ) -> list[KnownShard]:
        parts = (part.without(left_out) for part in carried)
        shards = [self._stored(part, drafts) for part in parts if part.indices]
        for known in shards:
            merging.take_over(Known(known.hashes, known.measurements, known.shard.class_counts))
        return shards

    def _stored(self, part: _Part, drafts: dict[Digest, str]) -> KnownShard:
        known, shard = part.known, part.known.shard
        if len(part.indices) == shard.samples:
            return known
        batch = self._batch_of(part)
        facts = Known.of(batch, b"".join(part.hashes))
        digest = self._store(batch, drafts)
        return _known_shard(digest, facts, shard.contributor, shard.first_round)

    def _batch_of(self, part: _Part) -> SyntheticBatch:
        return self.read(part.known.shard.digest).take(np.array(part.indices, np.int64))

    # --- near duplicates ------------------------------------------------------------------------

    def _find_near_duplicates(
        self, basis: Basis, carried: Sequence[_Part], near: NearDuplicates
    ) -> None:
        """Look at all that may come into the snapshot, before any of it is written.

        A better one that comes late would otherwise find the worse one stored.
        """
        for part in carried:
            near.add(self._batch_of(part), part.hashes)
        for contribution in basis.present:
            batch = passed(self.read(contribution.batch), basis.spec.policy)
            near.add(batch, split_hashes(sample_hashes(batch)))

    # --- from the pool --------------------------------------------------------------------------

    def _contributed(
        self,
        basis: Basis,
        contribution: Contribution,
        merging: Merging,
        leaks: Leaks,
        drafts: dict[Digest, str],
    ) -> Iterator[KnownShard]:
        batch = self.read(contribution.batch)
        kept, facts = merging.add(leaks.passed(batch, basis.spec.policy))
        contributor = self._identity.pseudonym(contribution.device_id)
        if kept is batch and len(batch) <= SHARD_SAMPLES:
            yield _known_shard(contribution.batch, facts, contributor, basis.spec.round_number)
            return
        for start in range(0, len(kept), SHARD_SAMPLES):
            piece = kept.take(np.arange(start, min(start + SHARD_SAMPLES, len(kept))))
            hashes = facts.hashes[start * HASH_BYTES :][: len(piece) * HASH_BYTES]
            piece_facts = Known.of(piece, hashes)
            digest = self._store(piece, drafts)
            yield _known_shard(digest, piece_facts, contributor, basis.spec.round_number)

    # --- content --------------------------------------------------------------------------------

    def read(self, digest: Digest, *, to_check: bool = False) -> SyntheticBatch:
        """A batch or shard that is here, as `read_batch` has it."""
        self._require_going_on()
        try:
            path = self._blobs.local_path(digest)
            return read_batch(path, f"batch {digest}", to_check=to_check)
        except (NotFound, FileNotFoundError) as error:
            raise ContentMissing(digest) from error

    def _require_going_on(self) -> None:
        if self._stopping.is_set():
            raise Unavailable("the store is stopping; try again")

    def _store(self, batch: SyntheticBatch, drafts: dict[Digest, str]) -> Digest:
        self._require_going_on()
        data = encode_batch(batch)
        digest = digest_of(data)
        drafts[digest] = self._contents.expect(digest, instead_of=drafts.get(digest, ""))
        return self._blobs.put_bytes(data)


@dataclass(frozen=True, slots=True)
class _Part:
    """Samples of a shard of the snapshot before."""

    known: KnownShard
    indices: tuple[int, ...]

    @classmethod
    def of(cls, known: KnownShard, carried: Carried) -> _Part:
        whole = tuple(range(known.shard.samples))
        return cls(known, whole if carried.indices is None else carried.indices)

    @property
    def hashes(self) -> list[bytes]:
        """Of each of them."""
        every = split_hashes(self.known.hashes)
        return [every[index] for index in self.indices]

    def without(self, left_out: Set[bytes]) -> _Part:
        """Those of them that are not left out."""
        named = zip(self.indices, self.hashes, strict=True)
        return _Part(self.known, tuple(index for index, name in named if name not in left_out))


def _too_many(basis: Basis, carried: Iterable[_Part]) -> bool:
    """Whether near duplicates are not looked for: it takes about a millisecond and kilobyte each.

    Whoever waits for a snapshot, and the memory of the store, have an end.
    """
    most = basis.spec.policy.near_max_samples
    return 0 < most < basis.new_samples + sum(len(part.indices) for part in carried)


def _known_shard(digest: Digest, facts: Known, contributor: str, first_round: int) -> KnownShard:
    samples = len(facts.hashes) // HASH_BYTES
    shard = Shard(digest, samples, contributor, facts.class_counts, first_round)
    return KnownShard(shard, facts.hashes, facts.measurements)


def _snapshot_id(pool_id: str, shards: Sequence[Shard]) -> str:
    content = "\n".join((pool_id, *(shard.digest.sha256 for shard in shards)))
    return hashlib.sha256(content.encode()).hexdigest()[:32]
