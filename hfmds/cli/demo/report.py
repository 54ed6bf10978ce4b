"""The report of the demo: three pictures and a file with all numbers."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hfmds.cli.demo.setting import DemoSetting
from hfmds.cli.demo.summary import RunSummary, Verdict
from hfmds.cli.json_values import record, to_json
from hfmds.cli.watch_run import FollowedRun
from hfmds.domain.learning import SyntheticBatch
from hfmds.errors import ConfigurationError

_PACKAGES = ("hfmds-fl", "numpy", "torch", "grpcio", "scikit-learn", "matplotlib")

ACCURACY, POOL, PSNR, NUMBERS = "accuracy.png", "pool.png", "psnr.png", "report.json"


@dataclass(frozen=True, slots=True)
class DemoResult:
    """The results of a demo."""

    setting: DemoSetting
    runs: tuple[FollowedRun, ...]
    summaries: tuple[RunSummary, ...]
    verdict: Verdict
    pool: SyntheticBatch | None  # the last pool; None: there was no refresh
    real_psnr: NDArray[np.float32]
    elapsed_seconds: float


def prepare_report_folder(folder: Path) -> None:
    """Refuse a folder that cannot be written, before the demo starts."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(
            f"cannot make the report folder {folder}: {error.strerror}; choose another --report"
        ) from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ConfigurationError(
            f"cannot write to the report folder {folder}; choose another --report"
        )


def write_report(folder: Path, result: DemoResult) -> list[Path]:
    """Write the report and return its files. It replaces an older report once it is complete.

    Other files in the folder stay.
    """
    # Imported late: matplotlib takes a second, and the fleet would wait for it.
    from hfmds.cli.demo.report_plots import draw_accuracy, draw_pool, draw_psnr

    draft = folder / f".draft-{os.getpid()}"
    try:
        draft.mkdir()
        draw_accuracy(draft / ACCURACY, result.runs)
        if result.pool is not None:
            draw_pool(draft / POOL, result.pool.images)
            draw_psnr(draft / PSNR, result.pool, result.real_psnr)
        (draft / NUMBERS).write_text(to_json(_numbers(result)) + "\n")
        return _replace_all(draft, folder)
    except OSError as error:
        raise ConfigurationError(
            f"cannot write the report to {folder}: {error.strerror}; choose another --report"
        ) from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _replace_all(draft: Path, folder: Path) -> list[Path]:
    """Move the new files in, the numbers last: they vouch for the pictures."""
    (folder / NUMBERS).unlink(missing_ok=True)
    written = []
    for name in (ACCURACY, POOL, PSNR, NUMBERS):
        if (draft / name).exists():
            written.append((draft / name).replace(folder / name))
        else:  # a file of an older report
            (folder / name).unlink(missing_ok=True)
    return written


def _numbers(result: DemoResult) -> dict[str, Any]:
    pool = result.pool
    return {
        "written_at": datetime.now(UTC),
        "elapsed_seconds": result.elapsed_seconds,
        "setting": result.setting,
        "verdict": result.verdict,
        "summaries": [
            {**record(summary), "moved_bytes": summary.moved_bytes} for summary in result.summaries
        ],
        "runs": [
            {"label": followed.label, "run": followed.run, "rounds": followed.rounds}
            for followed in result.runs
        ],
        "pool": {
            "labels": pool.images.labels,
            "psnr_paired_db": pool.psnr_paired,
            "psnr_nearest_db": pool.psnr_nearest,
            "real_to_nearest_real_db": result.real_psnr,
        }
        if pool
        else None,
        "versions": {name: _version(name) for name in _PACKAGES},
        "machine": {
            "python": sys.version.split()[0],
            "platform": platform.platform(),
            "processors": os.cpu_count(),
        },
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
