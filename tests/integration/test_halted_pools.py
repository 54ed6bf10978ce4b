"""Runs on real servers whose pool leaks too much."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from hfmds.domain.pool_policy import PoolPolicy
from tests.support.operator import Operator
from tests.support.scripted_devices import MODEL
from tests.support.small_run import SECONDS, Stage, run_on
from tests.support.supervision import Launcher, servers

pytestmark = pytest.mark.integration

# Each device makes 64 images of 9 dB.
WHILE_FILLED = PoolPolicy(halt_psnr_paired_p99_db=8)
WHEN_SEALED = PoolPolicy(halt_psnr_paired_p99_db=8, halt_minimum_samples=1000)
ON_THE_DEVICE = PoolPolicy(psnr_paired_max_db=8, leakage_action="drop")


@pytest.mark.parametrize(
    ("policy", "reasons"),
    [
        (
            WHILE_FILLED,
            ["only 1 could", "is halted: the 99th percentile of psnr_paired of its 128"],
        ),
        (WHEN_SEALED, ["the synthesis store refuses", "psnr_paired of its 127 samples is 9.00 dB"]),
        (ON_THE_DEVICE, ["64 of 64 samples cannot be taken: sample 0: psnr_paired 9 is above 8"]),
    ],
    ids=["while filled", "when sealed", "on the device"],
)
async def test_a_run_with_too_much_leakage_is_paused_with_the_reason(
    launcher: Launcher, tmp_path: Path, policy: PoolPolicy, reasons: list[str]
) -> None:
    spec = run_on()
    spec = replace(spec, recipe=replace(spec.recipe, pool=policy))

    async with (
        asyncio.timeout(SECONDS),
        servers(launcher, tmp_path, {}) as (coordinator, store),
        Operator.of(coordinator.address) as operator,
        AsyncExitStack() as devices,
    ):
        await operator.create(spec)
        stage = Stage(tmp_path, MODEL, coordinator.address, store.address, operator)
        for device_id in ("a", "b"):
            await devices.enter_async_context(stage.device(device_id).working())
        reason_text = await operator.until_paused()
    for reason in reasons:
        assert reason in reason_text
