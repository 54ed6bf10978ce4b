"""Answers that a browser may keep if it checks them at each use."""

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
    """Answer with the body, or with "not modified" if the browser has this body."""
    tag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
    headers = {"ETag": tag, "Cache-Control": "private, no-cache"}
    if request.headers.get("If-None-Match") == tag:
        return web.Response(status=304, headers=headers)
    return web.Response(
        body=body, content_type=content_type, charset=charset, status=status, headers=headers
    )
