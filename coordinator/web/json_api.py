"""The JSON behind the web page, also for scripts. It changes nothing: GET and HEAD only.

    /api/me                             the visitor's identity, if known
    /api/status                         the coordinator: drain, and counts of runs, devices, tasks
    /api/runs                           the newest 200 runs
    /api/runs/RUN                       a run: state, progress, recipe, limits of leakage
    /api/runs/RUN/rounds?after=N        its completed rounds after N, at most 400, evenly chosen
    /api/runs/RUN/privacy               measured leakage of its pools, at most 200, evenly chosen
    /api/runs/RUN/funnel?round=N        how far its tasks got, in one round or in all
    /api/runs/RUN/events                the newest 100 events of its log
    /api/runs/RUN/gallery               its newest pool: the classes and images of the picture
    /api/runs/RUN/gallery/SNAPSHOT.png  that picture: tiles without gaps, a class in each row
    /api/devices?state=S                the fleet by state; at most 200 devices, working ones first

Visitors share an answer for one second. Errors are `{"error": "what, where, remedy"}`.
"""

from __future__ import annotations

import asyncio
import json
import time
from bisect import bisect_right
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from operator import itemgetter
from typing import Any, TypeVar

from aiohttp import web

from coordinator.oversight.overview import Overview
from coordinator.runs.runs import Runs
from coordinator.web.answers import answer
from coordinator.web.gallery import Gallery, SnapshotStore
from coordinator.web.histories import Histories
from coordinator.web.page_access import PageAccess
from coordinator.web.shapes import (
    Shape,
    devices_shape,
    events_shape,
    funnels_shape,
    picture_shape,
    privacy_shape,
    rounds_shape,
    run_shape,
    runs_shape,
    status_shape,
)
from hfmds.domain.devices import DeviceState, require_id
from hfmds.domain.pools import Snapshot
from hfmds.domain.runs import Run
from hfmds.errors import HfmdsError, InvalidInput, NotFound, Unavailable

T = TypeVar("T")

_JSON = "application/json"
_MOST_EVENTS = 100
_SHARED_SECONDS = 1.0
_STORE_SECONDS = 20.0
_THREADS = 2  # devices' calls need the others


class JsonApi:
    """Answers questions about runs, the fleet and pools."""

    def __init__(
        self,
        runs: Runs,
        overview: Overview,
        store: SnapshotStore,
        access: PageAccess,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._runs = runs
        self._overview = overview
        self._store = store
        self._access = access
        self._histories = Histories(runs)
        self._gallery = Gallery(store, clock)
        self._clock = clock
        self._threads = asyncio.Semaphore(_THREADS)
        self._shared: dict[str, tuple[float, asyncio.Task[bytes]]] = {}

    def add_to(self, application: web.Application) -> None:
        """Add the routes, each with the method of AdminService that needs the same permission."""
        routes: Mapping[str, tuple[str, Callable[[web.Request], Awaitable[Shape]]]] = {
            "/api/status": ("GetStatus", self._status),
            "/api/runs": ("ListRuns", self._list),
            "/api/runs/{run}": ("GetRun", self._get),
            "/api/runs/{run}/rounds": ("ListRounds", self._rounds),
            "/api/runs/{run}/privacy": ("ListRounds", self._privacy),
            "/api/runs/{run}/funnel": ("GetFunnel", self._funnel),
            "/api/runs/{run}/events": ("ListEvents", self._events),
            "/api/runs/{run}/gallery": ("GetRun", self._pictured),
            "/api/devices": ("ListDevices", self._devices),
        }
        for path, (method, shape) in routes.items():
            application.router.add_get(path, self._answer(method, shape))
        application.router.add_get("/api/me", self._me)
        application.router.add_get("/api/runs/{run}/gallery/{snapshot}.png", self._png)

    def _answer(
        self, method: str, shape: Callable[[web.Request], Awaitable[Shape]]
    ) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def handler(request: web.Request) -> web.Response:
            await self._access.require(request, method)
            body = await self._shared_answer(request.path_qs, lambda: _body(shape(request)))
            return answer(request, body, _JSON)

        return handler

    async def _shared_answer(self, what: str, make: Callable[[], Awaitable[bytes]]) -> bytes:
        """Return the answer; share one that is in progress or less than a second old."""
        now = self._clock()
        self._shared = {
            name: (at, task)
            for name, (at, task) in self._shared.items()
            if at > now - _SHARED_SECONDS or not task.done()
        }
        if what not in self._shared:
            self._shared[what] = now, asyncio.ensure_future(make())
        # Shielded: a visitor that hangs up does not cancel the answer for the others.
        return await asyncio.shield(self._shared[what][1])

    async def _in_thread(self, function: Callable[..., T], *args: Any) -> T:
        async with self._threads:
            return await asyncio.to_thread(function, *args)

    async def _me(self, request: web.Request) -> web.Response:
        identity = await self._access.require(request, "GetStatus")
        return answer(request, _encoded({"identity": str(identity or "")}), _JSON)

    async def _status(self, request: web.Request) -> Shape:
        return status_shape(await self._in_thread(self._overview.status))

    async def _list(self, request: web.Request) -> Shape:
        return runs_shape(await self._in_thread(self._runs.list))

    async def _get(self, request: web.Request) -> Shape:
        return run_shape(await self._run(request))

    async def _rounds(self, request: web.Request) -> Shape:
        after = _number(request, "after")
        history = await self._in_thread(self._histories.of, await self._run(request))
        first = bisect_right(history.rounds, after, key=itemgetter("number"))
        return rounds_shape(history.rounds[first:], history.cohort)

    async def _privacy(self, request: web.Request) -> Shape:
        run = await self._run(request)
        rounds = (await self._in_thread(self._histories.of, run)).rounds
        snapshots: dict[str, Snapshot] = {}
        store_error = ""
        if any(completed["refreshed"] for completed in rounds):
            try:
                async with _store_deadline():
                    listed = await self._store.list_snapshots(run.run_id)
                snapshots = {snapshot.snapshot_id: snapshot for snapshot in listed}
            except HfmdsError as error:  # PSNR is known here
                store_error = str(error)
        return privacy_shape(rounds, snapshots, run.spec.recipe.pool) | {"store_away": store_error}

    async def _funnel(self, request: web.Request) -> Shape:
        number = _number(request, "round")
        return funnels_shape(
            await self._in_thread(self._overview.funnels, _run_id(request), number)
        )

    async def _events(self, request: web.Request) -> Shape:
        events = await self._in_thread(self._overview.last_events, _run_id(request), _MOST_EVENTS)
        return events_shape(events)

    async def _devices(self, request: web.Request) -> Shape:
        state = request.query.get("state", "")
        known = [each_state.value for each_state in DeviceState]
        if state not in ("", *known):
            raise InvalidInput(f"state is {state[:50]!r}; it must be one of {', '.join(known)}")
        devices = await self._in_thread(self._overview.device_list.page)
        return devices_shape(devices, state, self._access.quarantined)

    async def _pictured(self, request: web.Request) -> Shape:
        run = await self._run(request)
        last = run.last_round
        if last is None or last.pool is None:
            return {"snapshot_id": None, "rows": []}
        async with _store_deadline():
            picture = await self._gallery.picture(run.run_id, last.pool.snapshot_id)
        return picture_shape(picture, run.spec.recipe.class_names)

    async def _png(self, request: web.Request) -> web.Response:
        await self._access.require(request, "GetRun")
        snapshot_id = require_id(request.match_info["snapshot"], "snapshot")
        run = await self._run(request)  # it must exist
        async with _store_deadline():
            picture = await self._gallery.picture(run.run_id, snapshot_id)
        return answer(request, picture.png, "image/png")

    async def _run(self, request: web.Request) -> Run:
        return await self._in_thread(self._runs.get, _run_id(request))


def _run_id(request: web.Request) -> str:
    try:
        return require_id(request.match_info["run"], "run")
    except InvalidInput as error:
        raise NotFound(str(error)) from None


def _number(request: web.Request, name: str) -> int:
    text = request.query.get(name, "0")
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise InvalidInput(f"{name} is {text[:50]!r}; it must be a whole number from 0 on")
    return int(text)


@asynccontextmanager
async def _store_deadline() -> AsyncIterator[None]:
    """Give the store this much time to answer."""
    try:
        async with asyncio.timeout(_STORE_SECONDS):
            yield
    except TimeoutError:
        raise Unavailable(
            f"the synthesis store has not answered for {_STORE_SECONDS:.0f} s; the page tries again"
        ) from None


async def _body(shape: Awaitable[Shape]) -> bytes:
    return _encoded(await shape)


def _encoded(shape: Shape) -> bytes:
    return json.dumps(shape, separators=(",", ":"), allow_nan=False).encode()
