"""The coordinator's web page in a real browser, over real servers."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hfmds.data.packed import save_npz
from hfmds.domain.devices import DeviceProfile
from hfmds.domain.learning import LabelledImages
from hfmds.domain.pool_policy import PoolPolicy
from hfmds.domain.runs import RunSpec
from hfmds.service.security.identity import Identity, Kind
from hfmds.wire.clients.coordinator_client import CoordinatorClient
from tests.coordinator.web.test_page_access import TokensInMemory
from tests.coordinator.web.web_bench import web_bench
from tests.support.browser import Page, browser
from tests.support.fleet_certificates import FleetCertificates
from tests.support.operator import Operator
from tests.support.scripted_devices import MODEL, ScriptedDevice, peer
from tests.support.small_run import SECONDS, run_on
from tests.support.supervision import Launcher, servers

pytestmark = pytest.mark.integration

HOSTILE = "<img src=x onerror='window.hacked=1'>"
DESKTOP, PHONE = (1280, 900), (390, 844)

IN_ACCURACY = "document.querySelectorAll('#panel-accuracy ~ .panel-body {}').length"
LOOK_AGAIN = "void document.dispatchEvent(new Event('visibilitychange'))"
TILES = """[...document.querySelectorAll('.images canvas')].map(tile => {
    const {data} = tile.getContext('2d').getImageData(0, 0, tile.width, tile.height);
    return new Set(data).size;
})"""


def spec() -> RunSpec:
    specification = run_on()
    limits = PoolPolicy(psnr_nearest_max_db=20.0, ssim_nearest_max=0.5)
    names = (HOSTILE, "two", "three")
    return replace(
        specification, recipe=replace(specification.recipe, pool=limits, class_names=names)
    )


async def test_the_page_follows_a_run(launcher: Launcher, tmp_path: Path) -> None:
    held_out = tmp_path / "held-out.npz"
    pixels = np.arange(6 * 256, dtype=np.uint64).reshape(6, *MODEL.image_shape) % 251
    save_npz(held_out, LabelledImages(pixels.astype(np.uint8), np.arange(6) % 3))

    async with asyncio.timeout(SECONDS), AsyncExitStack() as stack:
        enter = stack.enter_async_context
        settings = {"web_listen": "127.0.0.1:0", "held_out": str(held_out)}
        at_work = await enter(AsyncExitStack())
        coordinator, store = await at_work.enter_async_context(
            servers(launcher, tmp_path, {}, **settings)
        )
        operator = await enter(Operator.of(coordinator.address))
        await operator.create(spec())
        address = json.loads((tmp_path / "coordinator.json").read_text())["web"]
        page = await enter(browser(tmp_path))
        await page.look_as(*DESKTOP)

        await page.open(f"{address}/#/run/run")
        await page.until("document.querySelector('.badge')?.textContent === 'running'")
        await page.until("document.body.innerText.includes('No model was evaluated yet.')")
        for device_id in ("a", "b"):
            where = coordinator.address, store.address
            await enter(ScriptedDevice(device_id, tmp_path, *where).working())
        await page.until("document.querySelector('.badge').textContent === 'completed'")
        await assert_run_is_drawn(page)
        await assert_keyboard_reaches_the_curves(page)
        await page.screenshot(tmp_path / "desktop.png")

        await page.look_as(*PHONE, dark=True)
        await page.until("document.querySelector('svg').clientWidth < 390")
        assert await page.evaluate("document.documentElement.scrollWidth") == PHONE[0]
        assert await page.evaluate("getComputedStyle(document.body).backgroundColor") == (
            "rgb(13, 17, 23)"
        )
        await page.screenshot(tmp_path / "phone.png")

        await page.open(f"{address}/#/devices")
        rows = "document.querySelectorAll('tbody tr').length"
        await page.until(f"{rows} === 2")
        await page.evaluate("document.querySelector('[data-key=available]').focus()")
        await visit(coordinator.address, HOSTILE)
        await page.until(f"{LOOK_AGAIN}, {rows} === 3")
        assert await page.evaluate("document.activeElement.dataset.key") == "available"
        assert HOSTILE in await page.evaluate("document.body.innerText")
        assert await page.evaluate("document.documentElement.scrollWidth") == PHONE[0]
        await page.open(f"{address}/#/")
        await page.until(f"{rows} === 1")
        await page.look_as(*DESKTOP)
        await assert_long_reasons_are_wrapped(page)

        assert await page.evaluate("window.hacked") is None
        assert page.complaints == []
        assert [url for url in page.requested if not url.startswith(address)] == []

        await at_work.aclose()  # stops the coordinator
        await page.evaluate(LOOK_AGAIN)
        await page.until("document.querySelector('#pulse').dataset.state === 'away'")
        text = await page.evaluate("document.querySelector('#alerts').innerText")
        assert "The coordinator does not answer. What you see is from before." in text
        assert await page.evaluate(rows) == 1
    assert all((tmp_path / f"{name}.png").stat().st_size > 20_000 for name in ("desktop", "phone"))


async def assert_run_is_drawn(page: Page) -> None:
    await page.until(f"{IN_ACCURACY.format('.plot circle')} === 3")  # a dot for each round
    await page.until("document.querySelectorAll('.subcharts .plot .series').length === 12")
    assert await page.evaluate("document.querySelectorAll('.plot .limits line').length") == 2
    assert await page.evaluate(IN_ACCURACY.format(".plot .marks line")) == 3
    tiles = await page.until(TILES)
    assert len(tiles) == 3 * 16
    assert all(levels > 1 for levels in tiles[1:]), "each tile has its image"
    name = await page.evaluate("document.querySelector('.class-name').firstChild.textContent")
    assert name == HOSTILE
    accepted = "[...document.querySelectorAll('.funnel tr')].map(row => row.innerText)"
    assert [row.split() for row in await page.evaluate(accepted)].count(["accepted", "6"]) == 2
    assert await page.evaluate("document.querySelector('.events td:nth-child(3)').innerText") == (
        "run-completed"
    )


async def assert_long_reasons_are_wrapped(page: Page) -> None:
    await page.evaluate(
        "document.querySelector('.doing').textContent = 'no device can. '.repeat(40)"
    )
    for cell in ("[data-name=Method]", ".progress .number", "[data-name=Created]"):
        lines = await page.evaluate(
            f"(() => {{ const all = document.createRange();"
            f"all.selectNodeContents(document.querySelector('{cell}'));"
            f"return new Set([...all.getClientRects()].map((one) => one.top)).size; }})()"
        )
        assert lines == 1, cell


async def assert_keyboard_reaches_the_curves(page: Page) -> None:
    await page.evaluate("document.querySelector('.plot svg').focus()")
    for _ in range(2):
        await page.press("ArrowRight")
    tooltip = await page.evaluate("document.querySelector('.tip').innerText")
    assert tooltip.startswith("round 2\nheld out ")
    await page.press("Escape")
    assert await page.evaluate("document.querySelector('.tip').hidden")


async def visit(coordinator: str, version: str) -> None:
    """Check in as a device with this version."""
    client = CoordinatorClient(peer("coordinator", coordinator), "visitor")
    try:
        await client.check_in(DeviceProfile(1, version, "none"), 0)
    finally:
        await client.close()


async def test_logging_in_and_out(tmp_path: Path) -> None:
    server = FleetCertificates.create(tmp_path).of(Identity(Kind.SERVICE, "coordinator"))
    tokens = TokensInMemory()

    async with (
        web_bench(tmp_path, tls=server, find_admin=tokens) as bench,
        browser(tmp_path, "--ignore-certificate-errors") as page,
    ):
        await page.open(bench.server.address)
        await fill_in(page, "wrong")
        await page.until(
            "document.querySelector('#note')?.innerText.includes('hfmds pki admin-token')"
        )
        await fill_in(page, "good")
        await page.until("document.querySelector('#identity')?.innerText.includes('vera')")
        assert await page.evaluate("document.cookie") == ""  # scripts cannot read the cookie
        await page.evaluate(
            "void setTimeout(() => document.querySelector('#logout button').click())"
        )
        await page.until("location.pathname === '/login'")
        await fill_in(page, "good")
        await page.until("document.querySelector('#pulse')?.dataset.state === 'live'")
        tokens.known.clear()  # revokes the token, so the page returns to the login form
        await page.evaluate(LOOK_AGAIN)
        await page.until("location.pathname === '/login'")


async def fill_in(page: Page, token: str) -> None:
    await page.until("document.querySelector('#token') !== null")
    await page.evaluate(
        f"document.querySelector('#token').value = '{token}'; "
        "void setTimeout(() => document.querySelector('form button').click())"
    )
