"""What a run's pools take and keep: plain values that devices, coordinator and store share.

Limits that are not given are the highest value a measurement can have, so that nothing is above.
"""

from __future__ import annotations

from dataclasses import dataclass

from hfmds.domain.validation import require, require_at_least, require_one_of, require_range

HIGHEST_PSNR_DB = 100.0
"""Stands for infinity, so that means stay finite: no PSNR is reported above it."""

HIGHEST_SSIM = 1.0

PIXEL_TYPES = ("uint8", "fp16")
LEAKAGE_ACTIONS = ("report", "refuse", "drop")
NEAR_ACTIONS = ("count", "drop", "keep_better")
REFRESHES = ("replace", "accumulate", "decay")

PSNR_LIMITS = (
    "psnr_paired_max_db",
    "psnr_nearest_max_db",
    "halt_psnr_paired_p99_db",
    "halt_psnr_nearest_p99_db",
)
SSIM_LIMITS = (
    "ssim_paired_max",
    "ssim_nearest_max",
    "halt_ssim_paired_p99",
    "halt_ssim_nearest_p99",
)
NO_LIMIT = dict.fromkeys(PSNR_LIMITS, HIGHEST_PSNR_DB) | dict.fromkeys(SSIM_LIMITS, HIGHEST_SSIM)
"""The value of each limit that stands for none."""

_SAMPLE_LIMITS = (*PSNR_LIMITS[:2], *SSIM_LIMITS[:2])

# Distances at which images of a kind count as near duplicates: docs/results/store.md.
NEAR_PHOTOGRAPHS = 0.35
NEAR_NOISE = 0.45  # to the eye: too much for photographs


@dataclass(frozen=True, slots=True)
class PoolPolicy:
    """What a pool takes and keeps; by default, what is well-formed, and every image once."""

    pixel_type: str = "uint8"  # or fp16
    max_samples_per_class: int = 0  # of one device; 0: any
    max_pool_samples: int = 0  # of all devices; 0: any
    psnr_paired_max_db: float = HIGHEST_PSNR_DB
    psnr_nearest_max_db: float = HIGHEST_PSNR_DB
    ssim_paired_max: float = HIGHEST_SSIM
    ssim_nearest_max: float = HIGHEST_SSIM
    leakage_action: str = "report"  # on a sample above one of these: or refuse, drop
    halt_psnr_paired_p99_db: float = HIGHEST_PSNR_DB
    halt_psnr_nearest_p99_db: float = HIGHEST_PSNR_DB
    halt_ssim_paired_p99: float = HIGHEST_SSIM
    halt_ssim_nearest_p99: float = HIGHEST_SSIM
    halt_minimum_samples: int = 100
    near_threshold: float = NEAR_PHOTOGRAPHS  # 0: nobody looks for near duplicates
    near_max_samples: int = 200_000  # with more, nobody does either; 0: any
    near_action: str = "count"  # or drop, keep_better
    refresh: str = "replace"  # or accumulate, decay
    refresh_max_samples: int = 0  # 0: any
    refresh_keep_fraction: float = 0.5  # of each class, with decay

    def __post_init__(self) -> None:
        require_one_of("pool.pixel_type", self.pixel_type, PIXEL_TYPES)
        require_one_of("pool.leakage_action", self.leakage_action, LEAKAGE_ACTIONS)
        require_one_of("pool.near_action", self.near_action, NEAR_ACTIONS)
        require_one_of("pool.refresh", self.refresh, REFRESHES)
        require_at_least(
            0,
            pool__max_samples_per_class=self.max_samples_per_class,
            pool__max_pool_samples=self.max_pool_samples,
            pool__halt_minimum_samples=self.halt_minimum_samples,
            pool__near_max_samples=self.near_max_samples,
            pool__refresh_max_samples=self.refresh_max_samples,
        )
        for name in PSNR_LIMITS:
            limit = getattr(self, name)
            require_range(
                f"pool.{name}",
                limit,
                0 <= limit <= HIGHEST_PSNR_DB,
                f"in [0, {HIGHEST_PSNR_DB:g}] dB",
            )
        for name in SSIM_LIMITS:
            limit = getattr(self, name)
            require_range(f"pool.{name}", limit, -1 <= limit <= HIGHEST_SSIM, "in [-1, 1]")
        near, fraction = self.near_threshold, self.refresh_keep_fraction
        require_range("pool.near_threshold", near, 0 <= near <= 1, "in [0, 1]")
        require_range("pool.refresh_keep_fraction", fraction, 0 < fraction < 1, "in (0, 1)")
        self._refuse_settings_without_effect()

    def _refuse_settings_without_effect(self) -> None:
        """Their author would not know that they do nothing."""
        require(
            self.leakage_action == "report" or self.limits_samples,
            f"pool.leakage_action is {self.leakage_action}, but no sample can be above a limit; "
            f"set one of {', '.join(f'pool.{name}' for name in _SAMPLE_LIMITS)}",
        )
        require(
            self.near_action == "count" or self.near_threshold > 0,
            f"pool.near_action is {self.near_action}, but nobody looks for near duplicates; "
            "set pool.near_threshold",
        )
        require(
            self.refresh != "replace" or self.refresh_max_samples == 0,
            f"pool.refresh_max_samples is {self.refresh_max_samples}, but pool.refresh is replace; "
            "leave it out, or choose accumulate or decay",
        )
        default = type(self).__dataclass_fields__["refresh_keep_fraction"].default
        require(
            self.refresh == "decay" or self.refresh_keep_fraction == default,
            f"pool.refresh_keep_fraction is {self.refresh_keep_fraction}, but pool.refresh is "
            f"{self.refresh}; leave it out, or choose decay",
        )

    @property
    def limits_samples(self) -> bool:
        """Whether the leakage of a single sample has a limit."""
        return any(getattr(self, name) < NO_LIMIT[name] for name in _SAMPLE_LIMITS)
