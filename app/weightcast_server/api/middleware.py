"""Pure ASGI middleware: request ids and timing around everything, and a bound on bodies."""

from __future__ import annotations

import re
import secrets
import time
from typing import Final

import structlog
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from weightcast.contract.layout import LAYOUT_MEDIA_TYPE
from weightcast.contract.problems import Code

from weightcast_server.api.parking import PARKED_KEY
from weightcast_server.api.problems import problem_response
from weightcast_server.logs import get_logger
from weightcast_server.metrics import Metrics

REQUEST_ID_KEY: Final = "weightcast.request_id"
_REQUEST_ID: Final = re.compile(rb"[A-Za-z0-9._-]{1,64}")
_LAYOUT: Final = LAYOUT_MEDIA_TYPE.encode()
_log = get_logger(__name__)


class RequestMiddleware:
    """Names each request, measures it, and turns what nobody handled into a problem instead of a broken connection."""

    def __init__(self, app: ASGIApp, metrics: Metrics, *, access_log: bool) -> None:
        self._app = app
        self._metrics = metrics
        self._access_log = access_log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = _request_id(scope)
        scope[REQUEST_ID_KEY] = request_id
        structlog.contextvars.bind_contextvars(request_id=request_id)
        header = (b"x-request-id", request_id.encode())
        status = 0
        started = time.perf_counter()

        async def send_named(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], header]
            await send(message)

        try:
            await self._app(scope, receive, send_named)
        except Exception:
            _log.exception("unhandled error", method=scope["method"], path=scope["path"])
            if status:
                raise
            problem = problem_response(
                Code.INTERNAL, "see the server's log", request_id=request_id, instance=scope["path"]
            )
            await problem(scope, receive, send_named)
        seconds = time.perf_counter() - started
        if PARKED_KEY not in scope:
            route = getattr(scope.get("route"), "path_format", "unmatched")
            self._metrics.observe_request(scope["method"], route, status, seconds)
        if self._access_log:
            _log.info("request", method=scope["method"], path=scope["path"], status=status, seconds=round(seconds, 6))


SMALL_JSON_NBYTES = 256 * 1024
"""Largest JSON body without NIXL metadata: naming every wrong field of a larger one would hold up everybody."""


class BodyLimitMiddleware:
    """Refuses a body that is too large before it is read, or as soon as it turns out to be."""

    def __init__(self, app: ASGIApp, json_nbytes: int, layout_nbytes: int) -> None:
        self._app = app
        self._json_nbytes = json_nbytes
        self._layout_nbytes = layout_nbytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        length = 0
        limit = self._json_nbytes if _carries_metadata(scope) else min(self._json_nbytes, SMALL_JSON_NBYTES)
        for name, value in scope["headers"]:
            if name == b"content-length":
                length = int(value) if value.isdigit() else 0
            elif name == b"content-type" and value.partition(b";")[0].strip().lower() == _LAYOUT:
                limit = self._layout_nbytes
        detail = f"the body is over {limit} bytes"
        if length > limit:
            problem = problem_response(
                Code.PAYLOAD_TOO_LARGE,
                detail,
                request_id=scope[REQUEST_ID_KEY],
                instance=scope["path"],
                # The rest of the body would otherwise be read only to keep the connection.
                headers={"Connection": "close"},
            )
            await problem(scope, receive, send)
            return
        received = 0

        async def receive_bounded() -> Message:
            nonlocal received
            message = await receive()
            if message["type"] == "http.request":
                received += len(message.get("body", b""))
                if received > limit:
                    raise HTTPException(413, detail, {"Connection": "close"})
            return message

        await self._app(scope, receive_bounded, send)


def _carries_metadata(scope: Scope) -> bool:
    """Registrations and new memory carry NIXL metadata; every other JSON body is small."""
    path: str = scope["path"]
    return path == "/v1/workers" or path.endswith("/memory")


def _request_id(scope: Scope) -> str:
    for name, value in scope["headers"]:
        if name == b"x-request-id":
            if _REQUEST_ID.fullmatch(value):
                return str(value.decode())
            break
    return secrets.token_hex(8)
