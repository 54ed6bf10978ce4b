"""An answer that a browser may keep, but must ask about each time it uses it."""

from __future__ import annotations

import hashlib

from aiohttp import web


def answer(
    request: web.Request,
    body: bytes,
    content_type: str,
    *,
    charset: str | None = None,
    status: int = 200,
) -> web.Response:
    """The answer, or that it is the one that the caller has."""
    tag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
    headers = {"ETag": tag, "Cache-Control": "private, no-cache"}
    if request.headers.get("If-None-Match") == tag:
        return web.Response(status=304, headers=headers)
    return web.Response(
        body=body, content_type=content_type, charset=charset, status=status, headers=headers
    )
