"""Synthetic data of a run: pools, their batches, and sealed snapshots."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from hfmds.domain.digest import Digest
from hfmds.domain.histograms import LeakageHistograms as LeakageHistograms
from hfmds.domain.learning import LeakageSummary
from hfmds.domain.pool_policy import PoolPolicy as PoolPolicy
from hfmds.domain.recipe import ModelSpec, Normalisation
from hfmds.domain.validation import require
from hfmds.errors import InvalidInput

_YEAR_SECONDS = 31_536_000


@dataclass(frozen=True, slots=True)
class PoolSpec:
    """What a pool accepts."""

    run_id: str
    round_number: int
    weights: Digest
    model: ModelSpec
    max_samples_per_device: int
    method: str
    with_shares: bool = False
    normalisation: Normalisation | None = None  # None: unknown
    policy: PoolPolicy = field(default_factory=PoolPolicy)
    seal_quorum: int = 0  # 0: no sealing by number
    seal_deadline_seconds: float = 0.0  # 0: no sealing by time

    def __post_init__(self) -> None:
        require(self.seal_quorum >= 0, f"seal_quorum is {self.seal_quorum}; it must be at least 0")
        if not 0 <= self.seal_deadline_seconds <= _YEAR_SECONDS:
            raise InvalidInput(
                f"seal_deadline_seconds is {self.seal_deadline_seconds}; it must be from 0 to a "
                f"year, {_YEAR_SECONDS}"
            )
        if self.normalisation and len(self.normalisation.mean) != self.model.channels:
            raise InvalidInput(
                f"normalisation has {len(self.normalisation.mean)} channels, "
                f"the model {self.model.channels}"
            )


class PoolState(enum.Enum):
    """Where a pool is in its life."""

    OPEN = "open"
    SEALED = "sealed"
    HALTED = "halted"
    ABANDONED = "abandoned"


@dataclass(frozen=True, slots=True)
class PoolStatus:
    """A pool and its content."""

    pool_id: str
    spec: PoolSpec
    state: PoolState
    state_reason: str
    devices: int
    samples: int
    leaking_samples: int
    leaking_batches: int
    leakage: LeakageHistograms
    opened_at: datetime
    snapshot_id: str = ""  # empty: none


@dataclass(frozen=True, slots=True, order=True)
class Contribution:
    """A device's batch."""

    device_id: str
    batch: Digest


@dataclass(frozen=True, slots=True)
class Shard:
    """A part of the images that one device contributed at one refresh."""

    digest: Digest
    samples: int
    contributor: str
    class_counts: Mapping[int, int] = field(default_factory=dict, hash=False)
    first_round: int = 0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A sealed pool. `shards` is empty in lists."""

    snapshot_id: str
    pool_id: str
    spec: PoolSpec
    samples: int
    class_histogram: tuple[int, ...]
    duplicates: int
    leakage: LeakageSummary
    sealed_at: datetime
    size_bytes: int
    parent_snapshot_id: str = ""  # empty: none
    carried_samples: int = 0
    repeated_samples: int = 0
    near_duplicates: int = 0
    near_duplicates_dropped: int = 0
    leaking_samples: int = 0
    leaking_samples_dropped: int = 0
    leaking_batches: int = 0
    near_duplicates_unknown: bool = False  # too many samples to search
    histograms: LeakageHistograms = field(default_factory=LeakageHistograms)
    shards: tuple[Shard, ...] = ()


@dataclass(frozen=True, slots=True)
class SharedShard:
    """A shard of the share for which a device has room."""

    shard: Shard
    missing: bool


@dataclass(frozen=True, slots=True)
class Collected:
    """What a collection removed, or would remove."""

    snapshot_ids: tuple[str, ...]
    erased_blobs: int
    erased_bytes: int


@dataclass(frozen=True, slots=True)
class Withdrawal:
    """The result of the withdrawal of a device's contributions."""

    removed_batches: int
    remaining_snapshots: int
