"""Tests of the JSON for the web page: operators' data, bounded and escaped."""

from __future__ import annotations

import asyncio
import io
import itertools
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from PIL import Image

from coordinator.web.gallery import PER_CLASS
from coordinator.web.histories import Histories
from coordinator.web.page_server import HEADERS
from coordinator.web.shapes import (
    MOST_DEVICES,
    MOST_ROUNDS,
    devices_shape,
    privacy_shape,
    round_shape,
    rounds_shape,
    thinned,
)
from hfmds.domain.digest import digest_of
from hfmds.domain.learning import Evaluation, Pool, Traffic
from hfmds.domain.pool_policy import PoolPolicy
from hfmds.domain.runs import Round, RunSpec
from hfmds.service.security.exclusions import Exclusions
from tests.cli.values import a_device
from tests.coordinator.web.web_bench import WebBench, batch_of, web_bench
from tests.coordinator.workbench import LEAKAGE, PROFILE, echo, make_spec

STATIC = Path(__file__).resolve().parents[3] / "coordinator" / "web" / "static"
HOSTILE = "<img src=x onerror=alert(1)>"


async def completed(page: WebBench, spec: RunSpec, run_id: str = "run") -> None:
    """Complete a run with one device."""
    await page.bench.create(spec, run_id)
    tasks = spec.recipe.rounds * (2 if spec.recipe.method.samples_per_device else 1)
    await page.bench.play("camera", tasks, echo)
    await page.bench.until(lambda run: run.state.ended, run_id)


def with_pool(**policy: Any) -> RunSpec:
    spec = make_spec(rounds=2, refresh_every=1)
    pool = PoolPolicy(leakage_action="drop", **policy) if policy else PoolPolicy()
    names = (HOSTILE, "two", "three")
    return replace(spec, recipe=replace(spec.recipe, pool=pool, class_names=names))


async def test_the_page_shows_a_run_and_its_rounds(tmp_path: Path) -> None:
    async with web_bench(tmp_path) as page:
        await completed(page, with_pool(psnr_nearest_max_db=20.0))
        (listed,) = (await page.get("/api/runs"))["runs"]
        assert listed["run_id"] == "run"
        assert (listed["state"], listed["method"], listed["completed_rounds"]) == (
            "completed",
            "hfmds",
            2,
        )
        run = await page.get("/api/runs/run")
        assert listed.items() <= run.items()
        assert run["limits"] == {"psnr_nearest_max_db": 20.0, "action": "drop"}
        assert run["recipe"]["class_names"] == [HOSTILE, "two", "three"]
        rounds = await page.get("/api/runs/run/rounds")
        assert rounds["cohort"] == ["camera"]
        assert [(r["number"], r["devices"], r["refreshed"]) for r in rounds["rounds"]] == [
            (1, 1, True),
            (2, 1, True),
        ]
        assert rounds["rounds"][0]["training_loss"] == 1.5
        assert rounds["rounds"][0]["accuracy"] is None  # there is no held-out set
        after = await page.get("/api/runs/run/rounds?after=1")
        assert after["rounds"] == rounds["rounds"][1:]
        (synthesis, training) = (await page.get("/api/runs/run/funnel"))["funnels"]
        assert (synthesis["kind"], training["kind"]) == ("synthesise", "train")
        assert ["accepted", 2] in training["steps"]
        (first, *_, last) = (await page.get("/api/runs/run/events"))["events"]
        assert (first["kind"], last["kind"]) == ("run-completed", "run-created")
        assert last["details"]["rounds"] == 2
        status = await page.get("/api/status")
        assert (status["runs"], status["drain"]["on"]) == ({"completed": 1}, False)
        assert await page.get("/api/me") == {"identity": ""}


async def test_the_page_shows_the_end_of_a_log(tmp_path: Path) -> None:
    async with web_bench(tmp_path) as page:
        await page.bench.create(make_spec(rounds=9))
        await asyncio.to_thread(page.bench.runs.pause, "run")
        await asyncio.to_thread(page.bench.runs.cancel, "run")
        _, events = page.bench.overview.events("run")
        assert page.bench.overview.last_events("run", 2) == events[-2:]
        assert page.bench.overview.last_events("run", 100) == events
        shown = (await page.get("/api/runs/run/events"))["events"]
        assert [event["sequence"] for event in shown] == [*range(len(events), 0, -1)]


async def test_the_page_shows_the_measured_leakage_of_pools(tmp_path: Path) -> None:
    async with web_bench(tmp_path) as page:
        await completed(page, with_pool())
        run = await page.get("/api/runs/run")
        newest = run["last_round"]["snapshot_id"]
        page.snapshots.seal(newest, "run", batch_of([0, 1], [10, 20]))
        privacy = await page.get("/api/runs/run/privacy")
        assert (privacy["total"], privacy["store_away"]) == (2, "")
        first, second = privacy["pools"]
        expected = {"mean": 9.0, "p99": 10.0, "max": 11.0}
        assert first["psnr_paired"] == second["psnr_paired"] == expected
        assert second["psnr_nearest"] == {"mean": 12.0, "p99": 13.0, "max": 14.0}
        assert "ssim_nearest" not in first  # the store no longer has it
        assert second["ssim_nearest"] == {"mean": 0.125, "p99": 0.13, "max": 0.13}
        page.snapshots.away = True
        page.clock.ahead_seconds = 2  # the server caches an answer for a second
        away = await page.get("/api/runs/run/privacy")
        assert away["store_away"] == "the synthesis store is away"
        assert away["pools"][1]["psnr_paired"] == expected


async def test_the_page_shows_a_picture_of_the_current_pool(tmp_path: Path) -> None:
    async with web_bench(tmp_path) as page:
        await page.bench.create(make_spec(rounds=9), "empty")
        assert (await page.get("/api/runs/empty/gallery"))["snapshot_id"] is None
        await asyncio.to_thread(page.bench.runs.cancel, "empty")
        await completed(page, with_pool())
        newest = (await page.get("/api/runs/run"))["last_round"]["snapshot_id"]
        thirty_images = batch_of([2] * 30, range(30))
        page.snapshots.seal(
            newest, "run", batch_of([0, 2], [200, 201]), thirty_images, batch_of([2], [9])
        )
        gallery = await page.get("/api/runs/run/gallery")
        assert (gallery["snapshot_id"], gallery["samples"], gallery["tile_width"]) == (
            newest,
            33,
            16,
        )
        assert gallery["rows"] == [
            {"class": 0, "name": HOSTILE, "samples": 1, "shown": 1},
            {"class": 2, "name": "three", "samples": 32, "shown": PER_CLASS},
        ]
        async with page.client.get(f"/api/runs/run/gallery/{newest}.png") as answer:
            assert answer.content_type == "image/png"
            picture = Image.open(io.BytesIO(await answer.read()))
        assert picture.size == (16 * PER_CLASS, 32)
        assert [picture.getpixel((16 * x, 16)) for x in range(3)] == [
            (201, 201, 201),
            (0, 0, 0),
            (1, 1, 1),
        ]
        assert page.snapshots.downloads == 2  # it needs two of three shards, each once
        await page.bench.create(make_spec(), "other")
        status, reason = await page.refused(f"/api/runs/other/gallery/{newest}.png")
        assert (status, reason) == (404, f"run 'other' has no snapshot {newest!r}")
        page.snapshots.away = True
        status, reason = await page.refused("/api/runs/run/gallery/unknown.png")
        assert (status, reason) == (503, "the synthesis store is away")


async def test_the_page_shows_devices_by_state(tmp_path: Path) -> None:
    async with web_bench(tmp_path) as page:
        hostile = replace(PROFILE, software_version=HOSTILE)
        await page.bench.check_ins.check_in("camera", hostile, 0.0, "")
        await page.bench.arrive_and_leave("phone")
        await page.bench.leases.leave("phone")
        page.gate.replace(Exclusions(quarantined={"phone": HOSTILE}))
        devices = await page.get("/api/devices")
        assert devices["counts"] == {"working": 0, "available": 1, "away": 1}
        assert [device["device_id"] for device in devices["devices"]] == ["camera", "phone"]
        assert devices["devices"][0]["software_version"] == HOSTILE
        assert [device["quarantine"] for device in devices["devices"]] == [None, HOSTILE]
        (phone,) = (await page.get("/api/devices?state=away"))["devices"]
        assert (phone["device_id"], phone["state"], phone["samples"]) == ("phone", "away", 5)
        status, reason = await page.refused("/api/devices?state=busy")
        assert (status, reason) == (
            400,
            "state is 'busy'; it must be one of available, working, away",
        )


UNKNOWN = [
    ("/api/runs/none", 404, "there is no run 'none'"),
    ("/api/runs/none/rounds", 404, "there is no run 'none'"),
    ("/api/runs/none/events", 404, "there is no log of a run 'none'"),
    ("/api/runs/a%2F..%2Fb", 404, "run"),
    ("/api/runs/run/rounds?after=-1", 400, "after is '-1'; it must be a whole number"),
    ("/api/runs/run/funnel?round=9999999999", 400, "round is '9999999999'"),
    ("/api/nothing", 404, "Not Found"),
    ("/static/..%2Fserver.py", 404, "Not Found"),
    ("/static/login.html", 404, "Not Found"),
    ("/login", 404, "Not Found"),  # there is no login without TLS
]


async def test_unknown_paths_and_values_are_refused_with_a_reason(tmp_path: Path) -> None:
    async with web_bench(tmp_path) as page:
        for path, status, reason in UNKNOWN:
            answer_status, answer_reason = await page.refused(path)
            assert (path, answer_status) == (path, status)
            assert reason in answer_reason


async def test_every_answer_carries_the_security_headers(tmp_path: Path) -> None:
    async with web_bench(tmp_path) as page:
        for path in ("/", "/static/main.js", "/static/style.css", "/api/runs", "/nothing"):
            async with page.client.get(path) as answer:
                assert HEADERS.items() <= dict(answer.headers).items()
                assert "Set-Cookie" not in answer.headers
        policy = HEADERS["Content-Security-Policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self';")
        assert "unsafe" not in policy
        for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS"):
            async with page.client.request(method, "/api/runs") as answer:
                assert (answer.status, answer.headers["Allow"]) == (405, "GET,HEAD")
        async with page.client.head("/api/runs") as answer:
            assert (answer.status, await answer.read()) == (200, b"")


async def test_an_unchanged_answer_is_not_sent_again(tmp_path: Path) -> None:
    async with web_bench(tmp_path) as page:
        async with page.client.get("/static/main.js") as answer:
            known = {"If-None-Match": answer.headers["ETag"]}
        async with page.client.get("/static/main.js", headers=known) as answer:
            assert (answer.status, await answer.read()) == (304, b"")
        async with page.client.get("/api/devices") as answer:
            tag = answer.headers["ETag"]
        async with page.client.get("/api/devices", headers={"If-None-Match": tag}) as answer:
            assert (answer.status, await answer.read()) == (304, b"")
        await page.bench.arrive_and_leave("camera")
        page.clock.ahead_seconds = 2
        async with page.client.get("/api/devices", headers={"If-None-Match": tag}) as answer:
            assert answer.status == 200


def test_the_page_refers_to_no_other_server() -> None:
    files = {path.name: path.read_text() for path in STATIC.iterdir()}
    assert {"index.html", "login.html", "main.js", "style.css"} <= files.keys()
    for name, text in files.items():
        text = text.replace("http://www.w3.org/2000/svg", "")  # a name, not an address
        assert not re.search(r"(?<!^)(?<! )//", text, re.MULTILINE), name  # a comment
        assert "innerHTML" not in text, f"{name}: text must stay text"
        assert "insertAdjacentHTML" not in text, name
        assert " style=" not in text, f"{name}: the policy allows no style in markup"
    for name in ("index.html", "login.html"):
        assert "<script>" not in files[name]
        assert "onclick" not in files[name]


TEXT_ON_GROUND = [
    *itertools.product(["ink", "muted"], ["ground", "surface", "sunken"]),
    *[
        ("accent", "surface"),
        ("accent", "accent-soft"),
        ("accent", "ground"),
        ("surface", "accent"),
    ],
    *[(name, f"{name}-soft") for name in ("good", "warn", "bad")],
    ("bad", "surface"),
]


def test_text_has_enough_contrast_in_light_and_dark() -> None:
    style = (STATIC / "style.css").read_text()
    light, dark = re.findall(r":root \{(.*?)\}", style, re.DOTALL)
    for scheme in (light, dark):
        colours = dict(re.findall(r"--([a-z0-9-]+): #([0-9a-f]{6});", scheme))
        for text, ground in TEXT_ON_GROUND:
            ratio = contrast(colours[text], colours[ground])
            assert ratio >= 4.5, f"{text} on {ground}: {ratio:.2f}, below WCAG's AA"


def contrast(text: str, ground: str) -> float:
    """Return the contrast ratio of WCAG 2."""
    brighter, darker = sorted(map(luminance, (text, ground)), reverse=True)
    return (brighter + 0.05) / (darker + 0.05)


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (0, 2, 4)]
    red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


COHORT = tuple(f"device-{i:04}" for i in range(150))


def a_round(number: int, *, loss: float = 1.0) -> Round:
    return Round(
        number=number,
        device_ids=COHORT,
        weights=digest_of(b"w"),
        training_loss=loss,
        evaluation=Evaluation(0.5, 1.25, 10),
        refreshed=number % 2 == 0,
        pool=Pool(f"snapshot-{number}", 40, LEAKAGE),
        traffic=Traffic(2, 1),
        duration_seconds=2.5,
    )


def test_ten_thousand_rounds_are_thinned_to_a_small_answer() -> None:
    rounds = [round_shape(a_round(number)) for number in range(1, 10_001)]
    shape = rounds_shape(rounds, COHORT)
    numbers = [entry["number"] for entry in shape["rounds"]]
    assert (shape["total"], len(numbers), numbers[0], numbers[-1]) == (
        10_000,
        MOST_ROUNDS,
        1,
        10_000,
    )
    assert all(24 <= later - earlier <= 26 for earlier, later in itertools.pairwise(numbers))
    assert len(shape["cohort"]) == 100
    assert len(json.dumps(shape)) < 250_000
    privacy = privacy_shape(rounds, {}, PoolPolicy())
    assert (privacy["total"], len(privacy["pools"])) == (5000, 200)
    assert privacy["pools"][-1]["round"] == 10_000


def test_a_nan_loss_becomes_null() -> None:
    shape = round_shape(a_round(1, loss=float("nan")))
    assert shape["training_loss"] is None
    json.dumps(shape, allow_nan=False)


def test_thinning_keeps_short_sequences() -> None:
    assert thinned([1, 2, 3], 3) == [1, 2, 3]
    assert thinned(range(1, 8), 4) == [1, 3, 5, 7]
    assert thinned([], 4) == []


def test_the_devices_shown_of_a_large_fleet_are_bounded() -> None:
    devices = [replace(a_device(), device_id=f"device-{i:05}") for i in range(1000)]
    shape = devices_shape(devices, "", {})
    assert (shape["total"], len(shape["devices"])) == (1000, MOST_DEVICES)
    assert sum(shape["counts"].values()) == 1000


async def test_a_history_is_cached_until_its_run_is_deleted(tmp_path: Path) -> None:
    async with web_bench(tmp_path) as page:
        await completed(page, make_spec(rounds=2))
        histories = Histories(page.bench.runs)
        run = page.bench.runs.get("run")
        first = histories.of(run)
        assert ([entry["number"] for entry in first.rounds], first.cohort) == ([1, 2], ("camera",))
        assert histories.of(run) is first
        await asyncio.to_thread(page.bench.runs.delete, "run")
        await page.bench.create(make_spec(rounds=9))
        assert histories.of(page.bench.runs.get("run")).rounds == []
