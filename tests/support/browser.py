"""A real browser for tests: headless Chromium, controlled by the DevTools protocol.

It records the requests and the console errors of a page, so that a test can check them.
"""

from __future__ import annotations

import asyncio
import base64
import itertools
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp

from tests.support.waiting import eventually

SECONDS = 30.0
_LOOK_SECONDS = 0.02

_FLAGS = (
    "--headless=new",
    "--no-sandbox",  # tests may run as root
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-extensions",
    "--disable-sync",
    "--no-first-run",
    "--hide-scrollbars",
    "--remote-debugging-port=0",
)


class Refused(AssertionError):
    """The browser refused a command, for example while it loads a page."""


class Page:
    """One tab."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.requested: list[str] = []
        self.complaints: list[str] = []
        self._socket = socket
        self._numbers = itertools.count(1)
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._reading = asyncio.create_task(self._read())

    async def close(self) -> None:
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)

    async def prepare(self) -> None:
        """Start to record requests and complaints."""
        for domain in ("Page", "Network", "Runtime", "Log"):
            await self.call(f"{domain}.enable")

    async def call(self, method: str, **parameters: Any) -> Any:
        """Send a command of the protocol, and return its result."""
        number = next(self._numbers)
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        await self._socket.send_json({"id": number, "method": method, "params": parameters})
        async with asyncio.timeout(SECONDS):
            return await answer

    async def look_as(self, width: int, height: int, *, dark: bool = False) -> None:
        """Simulate a screen of this size, and a light or dark colour scheme."""
        phone = width < 600
        await self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=2 if phone else 1,
            mobile=phone,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.call("Emulation.setEmulatedMedia", features=[scheme])

    async def open(self, url: str) -> None:
        answer = await self.call("Page.navigate", url=url)
        assert "errorText" not in answer, answer

    async def evaluate(self, script: str) -> Any:
        """Return the value of an expression in the page."""
        answer = await self.call(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    async def until(self, script: str) -> Any:
        """Wait until an expression is true, and return its value."""

        async def value() -> Any:
            with suppress(Refused):
                return await self.evaluate(script)

        try:
            return await eventually(value, SECONDS)
        except TimeoutError as error:
            text = await self.evaluate("document.body.innerText")
            error.add_note(f"{script} is not true; complaints {self.complaints}; page:\n{text}")
            raise

    async def press(self, key: str) -> None:
        for kind in ("keyDown", "keyUp"):
            await self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key)

    async def screenshot(self, path: Path, *, full_page: bool = True) -> None:
        answer = await self.call("Page.captureScreenshot", captureBeyondViewport=full_page)
        await asyncio.to_thread(path.write_bytes, base64.b64decode(answer["data"]))

    async def _read(self) -> None:
        async for message in self._socket:
            message_json = message.json()
            if "id" in message_json:
                answer = self._answers.pop(message_json["id"])
                if answer.done():  # the caller has given up
                    continue
                if "error" in message_json:
                    answer.set_exception(Refused(message_json["error"]))
                else:
                    answer.set_result(message_json["result"])
            else:
                self._note(message_json["method"], message_json["params"])

    def _note(self, event: str, message_json: dict[str, Any]) -> None:
        match event:
            case "Network.requestWillBeSent":
                self.requested.append(message_json["request"]["url"])
            case "Runtime.exceptionThrown":
                self.complaints.append(str(message_json["exceptionDetails"]))
            case "Runtime.consoleAPICalled" if message_json["type"] in (
                "error",
                "warning",
                "assert",
            ):
                self.complaints.append(
                    str([argument.get("value") for argument in message_json["args"]])
                )
            case "Log.entryAdded" if message_json["entry"]["level"] in ("error", "warning"):
                entry = message_json["entry"]
                self.complaints.append(f"{entry['text']} {entry.get('url', '')}")


@asynccontextmanager
async def browser(folder: Path, *flags: str) -> AsyncIterator[Page]:
    """Run a fresh browser with one tab until the block ends."""
    program = shutil.which("chromium")
    assert program, "these tests need Debian's chromium; `make packages` installs it"
    profile = folder / "profile"
    process = await asyncio.create_subprocess_exec(
        program,
        *_FLAGS,
        *flags,
        f"--user-data-dir={profile}",
        "about:blank",
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        port = await eventually(lambda: _port(profile), SECONDS)
        async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session:
            async with session.get("/json/list") as answer:
                tab = next(target for target in await answer.json() if target["type"] == "page")
            connecting = session.ws_connect(tab["webSocketDebuggerUrl"], max_msg_size=0)
            async with connecting as socket:
                page = Page(socket)
                await page.prepare()
                try:
                    yield page
                finally:
                    await page.close()
    finally:
        process.kill()
        await process.wait()


def _port(profile: Path) -> str:
    try:
        return (profile / "DevToolsActivePort").read_text().partition("\n")[0]
    except FileNotFoundError:
        return ""
