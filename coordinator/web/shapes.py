"""JSON for the web page, made of the domain's values. Every list is bounded.

The keys are the names of the values. Times are ISO 8601 in UTC. Numbers that are not finite are
null.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, TypeVar

from coordinator.web.gallery import Picture
from hfmds.domain.administration.operations import STEPS, Funnel, Status
from hfmds.domain.devices import Device, DeviceState
from hfmds.domain.histograms import Histogram
from hfmds.domain.learning import LeakageSummary
from hfmds.domain.pool_policy import NO_LIMIT, PoolPolicy
from hfmds.domain.pools import Snapshot
from hfmds.domain.runs import Round, Run
from hfmds.event_chain import Event

Shape = dict[str, Any]
T = TypeVar("T")

MOST_RUNS = 200
MOST_ROUNDS = 400  # points that a curve on a screen can show
MOST_POOLS = 200
MOST_DEVICES = 200
MOST_COHORT = 100  # devices that the page names

_BY_STATE = (DeviceState.WORKING, DeviceState.AVAILABLE, DeviceState.AWAY)


def status_shape(status: Status) -> Shape:
    """Describe the coordinator."""
    drain = status.drain
    return {
        "drain": {"on": drain.on, "by": drain.by, "since": drain.since and drain.since.isoformat()},
        "runs": dict(status.runs),
        "devices": dict(status.devices),
        "tasks": dict(status.tasks),
    }


def runs_shape(runs: Sequence[Run]) -> Shape:
    """Describe the newest runs."""
    return {"total": len(runs), "runs": [summary_shape(run) for run in runs[:MOST_RUNS]]}


def summary_shape(run: Run) -> Shape:
    """Describe a run in a line of a table."""
    recipe, progress, last = run.spec.recipe, run.progress, run.last_round
    return {
        "run_id": run.run_id,
        "state": run.state.value,
        "state_reason": run.state_reason,
        "ended": run.state.ended,
        "created_at": run.created_at.isoformat(),
        "method": recipe.method.name,
        "rounds": recipe.rounds,
        "completed_rounds": run.completed_rounds,
        "best_round": run.best_round,
        "accuracy": _finite(last.accuracy) if last else None,
        "progress": progress
        and {
            "round": progress.round_number,
            "phase": progress.phase.value,
            "done": progress.done,
            "expected": progress.expected,
        },
    }


def run_shape(run: Run) -> Shape:
    """Describe a run with its recipe and its last round."""
    recipe = run.spec.recipe
    return {
        **summary_shape(run),
        "last_round": run.last_round and round_shape(run.last_round),
        "recipe": _plain(asdict(recipe)),
        "policy": _plain(asdict(run.spec.policy)),
        "start_from": str(run.spec.start_from) if run.spec.start_from else None,
        "limits": limits_shape(recipe.pool),
    }


def limits_shape(policy: PoolPolicy) -> Shape:
    """Describe the leakage limits of a run's pools; leave out those that are not set."""
    return {
        name: limit for name, none in NO_LIMIT.items() if (limit := getattr(policy, name)) < none
    } | {"action": policy.leakage_action}


def rounds_shape(rounds: Sequence[Shape], cohort: Sequence[str]) -> Shape:
    """Describe completed rounds; choose evenly if a curve cannot show all."""
    return {
        "total": len(rounds),
        "rounds": thinned(rounds, MOST_ROUNDS),
        "cohort": cohort[:MOST_COHORT],
    }


def round_shape(completed: Round) -> Shape:
    """Describe a completed round."""
    held_out, by_devices = completed.evaluation, completed.device_evaluation
    staleness, pool = completed.staleness, completed.pool
    return {
        "number": completed.number,
        "devices": len(completed.device_ids),
        "training_loss": _finite(completed.training_loss),
        "accuracy": _finite(held_out.accuracy) if held_out else None,
        "loss": _finite(held_out.loss) if held_out else None,
        "device_accuracy": _finite(by_devices.accuracy) if by_devices else None,
        "device_loss": _finite(by_devices.loss) if by_devices else None,
        "refreshed": completed.refreshed,
        "snapshot_id": pool.snapshot_id if pool else None,
        "pool_samples": pool.samples if pool else 0,
        "leakage": leakage_shape(pool.leakage) if pool else None,
        "received_bytes": completed.traffic.received_bytes,
        "sent_bytes": completed.traffic.sent_bytes,
        "duration_seconds": _finite(completed.duration_seconds),
        "staleness": _finite(staleness.mean) if staleness else None,
    }


def leakage_shape(leakage: LeakageSummary) -> Shape:
    """Describe the PSNR of a pool, in dB, to the paired and to the nearest real image."""
    return {
        "psnr_paired": _spread(leakage.paired_mean, leakage.paired_p99, leakage.paired_max),
        "psnr_nearest": _spread(leakage.nearest_mean, leakage.nearest_p99, leakage.nearest_max),
    }


def privacy_shape(
    rounds: Sequence[Shape], snapshots: Mapping[str, Snapshot], policy: PoolPolicy
) -> Shape:
    """Describe the measured leakage of each pool, and the limits.

    Rounds have the PSNR. Only snapshots that the store still has tell the SSIM, to 0.01.
    """
    refreshes = [shape for shape in rounds if shape["refreshed"] and shape["leakage"]]
    pools = []
    for refresh in thinned(refreshes, MOST_POOLS):
        shape = {
            "round": refresh["number"],
            "snapshot_id": refresh["snapshot_id"],
            "samples": refresh["pool_samples"],
            **refresh["leakage"],
        }
        snapshot = snapshots.get(refresh["snapshot_id"])
        if snapshot and snapshot.histograms.samples:
            shape["ssim_paired"] = _spread_of(snapshot.histograms.ssim_paired)
            shape["ssim_nearest"] = _spread_of(snapshot.histograms.ssim_nearest)
        pools.append(shape)
    return {"total": len(refreshes), "pools": pools, "limits": limits_shape(policy)}


def funnels_shape(funnels: Sequence[Funnel]) -> Shape:
    """Describe how far tasks got, for each kind of task, step by step."""
    return {
        "funnels": [
            {
                "kind": funnel.kind,
                "steps": [[step, getattr(funnel, step)] for step in STEPS],
                "pending": funnel.pending,
                "unneeded": funnel.unneeded,
                "late": dict(funnel.late),
                "failed": dict(funnel.failed),
                "refused": dict(funnel.refused),
            }
            for funnel in funnels
        ]
    }


def devices_shape(devices: Sequence[Device], state: str, quarantined: Mapping[str, str]) -> Shape:
    """Describe the fleet in numbers, and the devices of one state or of all, working ones first.

    `quarantined` has the reason of each device in quarantine.
    """
    counts = Counter(device.state for device in devices)
    wanted = [device for device in devices if state in ("", device.state.value)]
    wanted.sort(key=lambda device: (_BY_STATE.index(device.state), device.device_id))
    return {
        "counts": {known.value: counts[known] for known in _BY_STATE},
        "total": len(wanted),
        "devices": [
            {
                "device_id": device.device_id,
                "state": device.state.value,
                "quarantine": quarantined.get(device.device_id),
                "stage": device.stage.name.lower() if device.stage is not None else None,
                "task_id": device.task_id,
                "last_seen_at": device.last_seen_at.isoformat(),
                "accepted_tasks": device.accepted_tasks,
                "failed_tasks": device.failed_tasks,
                "last_failure": device.last_failure,
                "samples": device.profile.samples,
                "software_version": device.profile.software_version,
                "engine": device.profile.engine,
                "labels": list(device.profile.labels),
            }
            for device in wanted[:MOST_DEVICES]
        ],
    }


def picture_shape(picture: Picture, class_names: Sequence[str]) -> Shape:
    """Describe the picture of a pool: its pool, and the classes of its rows."""
    snapshot = picture.snapshot
    return {
        "snapshot_id": snapshot.snapshot_id,
        "round": snapshot.spec.round_number,
        "samples": snapshot.samples,
        "sealed_at": snapshot.sealed_at.isoformat(),
        "mixtures": snapshot.spec.with_shares,
        "tile_width": picture.tile_width,
        "tile_height": picture.tile_height,
        "classes": sum(count > 0 for count in snapshot.class_histogram),
        "rows": [
            {
                "class": row.number,
                "name": class_names[row.number] if class_names else str(row.number),
                "samples": row.samples,
                "shown": row.shown,
            }
            for row in picture.rows
        ],
    }


def events_shape(events: Sequence[Event]) -> Shape:
    """Describe the last events of a log, newest first."""
    return {
        "events": [
            {
                "sequence": event.sequence,
                "at": event.at.isoformat(),
                "kind": event.kind,
                "details": json.loads(event.details),
            }
            for event in reversed(events)
        ]
    }


def thinned(items: Sequence[T], most: int) -> Sequence[T]:
    """Choose at most so many items evenly, with the first and the last."""
    if len(items) <= most:
        return items
    return [items[i * (len(items) - 1) // (most - 1)] for i in range(most)]


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _spread(mean: float, p99: float, maximum: float) -> Shape:
    return {"mean": _finite(mean), "p99": _finite(p99), "max": _finite(maximum)}


def _spread_of(histogram: Histogram) -> Shape:
    """Estimate from the middles of the bins for the mean, from their ends for the others.

    So no value is too low.
    """
    ends = [histogram.lowest + histogram.width * (i + 1) for i in range(len(histogram.counts))]
    total = sum(count * end for count, end in zip(histogram.counts, ends, strict=True))
    mean = total / histogram.samples - histogram.width / 2
    p99 = histogram.beginning_of(99) + histogram.width
    largest = max(end for end, count in zip(ends, histogram.counts, strict=True) if count)
    return {name: round(v, 4) for name, v in _spread(mean, p99, largest).items()}


def _plain(value: Any) -> Any:
    """Convert the value to types that JSON has."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return _finite(value)
    return value if isinstance(value, bool | int | str | None) else str(value)
