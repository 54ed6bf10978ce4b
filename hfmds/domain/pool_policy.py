"""What the pools of a run take and keep. Devices, coordinator and store share this policy.

The default of a leakage limit is the highest value the measurement can have: no limit.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from hfmds.domain.validation import STRICT, Count, LargeCount, SettingsTable, require

HIGHEST_PSNR_DB = 100.0
"""The highest reported PSNR. It stands for infinity, so that means stay finite."""

HIGHEST_SSIM = 1.0

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
"""The value of each limit that means no limit."""

_SAMPLE_LIMITS = (*PSNR_LIMITS[:2], *SSIM_LIMITS[:2])

# Distances of near duplicates for each kind of image: docs/results/store.md.
NEAR_PHOTOGRAPHS = 0.35
NEAR_NOISE = 0.45  # too large for photographs


@dataclass(frozen=True, config=STRICT)
class PoolPolicy(SettingsTable):
    """What a pool takes and keeps; by default every well-formed image, once."""

    table = "pool"
    pixel_type: Literal["uint8", "fp16"] = Field(
        default="uint8", description="How the pixels of synthetic images are written."
    )
    max_samples_per_class: Count = Field(
        default=0, ge=0, description="Most samples of a class from one device; 0: no limit."
    )
    max_pool_samples: LargeCount = Field(
        default=0, ge=0, description="Most samples of all devices together; 0: no limit."
    )
    psnr_paired_max_db: float = Field(
        default=HIGHEST_PSNR_DB,
        ge=0,
        le=HIGHEST_PSNR_DB,
        description="Highest PSNR of a sample to its paired real image, in dB.",
    )
    psnr_nearest_max_db: float = Field(
        default=HIGHEST_PSNR_DB,
        ge=0,
        le=HIGHEST_PSNR_DB,
        description="Highest PSNR of a sample to the nearest real image, in dB.",
    )
    ssim_paired_max: float = Field(
        default=HIGHEST_SSIM,
        ge=-1,
        le=HIGHEST_SSIM,
        description="Highest SSIM of a sample to its paired real image.",
    )
    ssim_nearest_max: float = Field(
        default=HIGHEST_SSIM,
        ge=-1,
        le=HIGHEST_SSIM,
        description="Highest SSIM of a sample to the nearest real image.",
    )
    leakage_action: Literal["report", "refuse", "drop"] = Field(
        default="report", description="What happens to a sample above one of these limits."
    )
    halt_psnr_paired_p99_db: float = Field(
        default=HIGHEST_PSNR_DB,
        ge=0,
        le=HIGHEST_PSNR_DB,
        description="99th percentile of paired PSNR that halts a pool, in dB.",
    )
    halt_psnr_nearest_p99_db: float = Field(
        default=HIGHEST_PSNR_DB,
        ge=0,
        le=HIGHEST_PSNR_DB,
        description="99th percentile of nearest PSNR that halts a pool, in dB.",
    )
    halt_ssim_paired_p99: float = Field(
        default=HIGHEST_SSIM,
        ge=-1,
        le=HIGHEST_SSIM,
        description="99th percentile of paired SSIM that halts a pool.",
    )
    halt_ssim_nearest_p99: float = Field(
        default=HIGHEST_SSIM,
        ge=-1,
        le=HIGHEST_SSIM,
        description="99th percentile of nearest SSIM that halts a pool.",
    )
    halt_minimum_samples: Count = Field(
        default=100, ge=0, description="Samples below which an open pool is never halted."
    )
    near_threshold: float = Field(
        default=NEAR_PHOTOGRAPHS,
        ge=0,
        le=1,
        description="Distance below which two images are near duplicates; 0: no search.",
    )
    near_max_samples: LargeCount = Field(
        default=200_000,
        ge=0,
        description="Samples above which no near duplicates are searched; 0: no limit.",
    )
    near_action: Literal["count", "drop", "keep_better"] = Field(
        default="count", description="What happens to near duplicates."
    )
    refresh: Literal["replace", "accumulate", "decay"] = Field(
        default="replace", description="What a snapshot takes over from the one before."
    )
    refresh_max_samples: LargeCount = Field(
        default=0, ge=0, description="Most samples of a snapshot that takes over; 0: no limit."
    )
    refresh_keep_fraction: float = Field(
        default=0.5, gt=0, lt=1, description="Share of each class that decay takes over."
    )

    def __post_init__(self) -> None:
        self._refuse_settings_without_effect()

    def _refuse_settings_without_effect(self) -> None:
        """Refuse settings that would do nothing."""
        require(
            self.leakage_action == "report" or self.limits_samples,
            f"pool.leakage_action is {self.leakage_action}, but no sample can be above a limit; "
            f"set one of {', '.join(f'pool.{name}' for name in _SAMPLE_LIMITS)}",
        )
        require(
            self.near_action == "count" or self.near_threshold > 0,
            f"pool.near_action is {self.near_action}, but near duplicates are not searched; "
            "set pool.near_threshold",
        )
        require(
            self.refresh != "replace" or self.refresh_max_samples == 0,
            f"pool.refresh_max_samples is {self.refresh_max_samples}, but pool.refresh is replace; "
            "leave it out, or choose accumulate or decay",
        )
        default = self.__pydantic_fields__["refresh_keep_fraction"].default
        require(
            self.refresh == "decay" or self.refresh_keep_fraction == default,
            f"pool.refresh_keep_fraction is {self.refresh_keep_fraction}, but pool.refresh is "
            f"{self.refresh}; leave it out, or choose decay",
        )

    @property
    def limits_samples(self) -> bool:
        """Whether the leakage of a single sample has a limit."""
        return any(getattr(self, name) < NO_LIMIT[name] for name in _SAMPLE_LIMITS)
