"""The HTML page, its static files, and the login form.

This module reads the few small files once. They refer to nothing outside of this server.
"""

from __future__ import annotations

import asyncio
import html
import logging
from importlib import resources

from aiohttp import web

from coordinator.web.answers import answer
from coordinator.web.page_access import COOKIE, MOST_TOKEN_CHARACTERS, PageAccess
from coordinator.web.refusals import NotKnown, status_of
from coordinator.web.sessions import LIFE_SECONDS
from hfmds.errors import InvalidInput, LimitExceeded, NotAllowed

log = logging.getLogger(__name__)

_TYPES = {
    ".css": "text/css",
    ".html": "text/html",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}
_PLACE_OF_NOTE = "<!-- note -->"
_LOGIN_SECONDS = 5.0  # for the form to arrive


class HtmlPages:
    """Serves the page to admitted visitors, and the login form to everybody."""

    def __init__(self, access: PageAccess) -> None:
        self._access = access
        self._files = {
            file.name: file.read_bytes()
            for file in resources.files("coordinator.web").joinpath("static").iterdir()
            if file.name.endswith(tuple(_TYPES))
        }

    def add_to(self, application: web.Application) -> None:
        """Add the routes."""
        router = application.router
        router.add_get("/", self._index)
        router.add_get("/static/{name}", self._static)
        router.add_get("/favicon.ico", self._icon)
        if self._access.takes_tokens:
            router.add_get("/login", self._login_form)
            router.add_post("/login", self._log_in)
            router.add_post("/logout", self._log_out)

    async def _index(self, request: web.Request) -> web.Response:
        try:
            await self._access.require(request, "ListRuns")
        except NotKnown:
            if not self._access.takes_tokens:
                raise
            raise web.HTTPSeeOther("/login") from None
        return self._file(request, "index.html")

    async def _static(self, request: web.Request) -> web.Response:
        self._access.require_host(request)
        name = request.match_info["name"]
        if name not in self._files or name.endswith(".html"):
            raise web.HTTPNotFound
        return self._file(request, name)

    async def _icon(self, request: web.Request) -> web.Response:
        return self._file(request, "icon.svg")

    async def _login_form(self, request: web.Request) -> web.Response:
        return self._form(request, "")

    async def _log_in(self, request: web.Request) -> web.Response:
        try:
            name = await self._access.log_in(request, await _token_in(request))
        except (InvalidInput, LimitExceeded, NotAllowed, NotKnown) as error:
            # Strangers must not fill the log: an address has few tries before LimitExceeded.
            level = logging.DEBUG if isinstance(error, LimitExceeded) else logging.INFO
            fields = {"address": request.remote, "reason": str(error)}
            log.log(level, "login refused", extra=fields)
            return self._form(request, str(error), status_of(error))
        log.info("logged in", extra={"address": request.remote})
        response = web.HTTPSeeOther("/")
        response.set_cookie(
            COOKIE,
            name,
            max_age=int(LIFE_SECONDS),
            path="/",
            secure=True,
            httponly=True,
            samesite="Strict",
        )
        raise response

    async def _log_out(self, request: web.Request) -> web.Response:
        self._access.log_out(request)
        response = web.HTTPSeeOther("/login")
        response.del_cookie(COOKIE, path="/", secure=True, httponly=True, samesite="Strict")
        raise response

    def _form(self, request: web.Request, note: str, status: int = 200) -> web.Response:
        text = self._files["login.html"].decode()
        body = text.replace(_PLACE_OF_NOTE, html.escape(note)).encode()
        return answer(request, body, "text/html", charset="utf-8", status=status)

    def _file(self, request: web.Request, name: str) -> web.Response:
        kind = next(kind for ending, kind in _TYPES.items() if name.endswith(ending))
        charset = "utf-8" if kind.startswith("text/") else None
        return answer(request, self._files[name], kind, charset=charset)


async def _token_in(request: web.Request) -> str:
    try:
        async with asyncio.timeout(_LOGIN_SECONDS):
            form = await request.post()
    except (TimeoutError, ValueError, LookupError, web.HTTPRequestEntityTooLarge):
        raise InvalidInput("the login form did not arrive whole; send it again") from None
    token = form.get("token", "")
    if not isinstance(token, str) or len(token) > MOST_TOKEN_CHARACTERS:
        raise InvalidInput("this is no token; paste the text that hfmds pki admin-token printed")
    return token.strip()
