"""From exceptions to problem+json."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Match
from weightcast.contract.layout import LayoutError
from weightcast.contract.problems import Code

from weightcast_server.api.middleware import REQUEST_ID_KEY
from weightcast_server.api.parking import ClientGoneError
from weightcast_server.api.problems import MAX_ERRORS, ApiProblem, problem_response
from weightcast_server.logs import get_logger
from weightcast_server.runtime import Runtime
from weightcast_server.store.protocol import StoreRefusal, StoreUnavailable

CLIENT_CLOSED = 499
_BY_STATUS = {
    404: Code.NOT_FOUND,
    405: Code.METHOD_NOT_ALLOWED,
    413: Code.PAYLOAD_TOO_LARGE,
    415: Code.UNSUPPORTED_MEDIA_TYPE,
}
_log = get_logger(__name__)


def install_handlers(app: FastAPI, runtime: Runtime) -> None:
    """Register a handler for every exception that a route may end with."""

    async def problem(request: Request, error: ApiProblem) -> Response:
        return _answer(request, error.code, error.detail, error.errors, error.headers)

    async def refusal(request: Request, error: StoreRefusal) -> Response:
        if error.code is Code.STALE_EPOCH:
            runtime.metrics.stale_epochs.inc()
        return _answer(request, error.code, error.detail)

    async def unavailable(request: Request, error: StoreUnavailable) -> Response:
        runtime.metrics.store_errors.inc()
        _log.error("store unavailable", path=request.scope["path"], reason=str(error))
        return _answer(request, Code.STORE_UNAVAILABLE, str(error))

    async def invalid(request: Request, error: RequestValidationError) -> Response:
        errors = error.errors()
        found = [(".".join(str(part) for part in item["loc"]), str(item["msg"])) for item in errors[:MAX_ERRORS]]
        if any(item["type"] == "json_invalid" for item in errors[:1]):
            return _answer(request, Code.BAD_REQUEST, "the body is not JSON", found)
        return _answer(request, Code.VALIDATION_FAILED, f"{len(errors)} thing(s) wrong, see errors", found)

    async def layout(request: Request, error: LayoutError) -> Response:
        return _answer(request, Code.LAYOUT_INVALID, str(error), [("body", text) for text in error.errors])

    async def http(request: Request, error: HTTPException) -> Response:
        code = _BY_STATUS.get(error.status_code, Code.BAD_REQUEST)
        headers = dict(error.headers or {})
        if code is Code.METHOD_NOT_ALLOWED:
            headers["Allow"] = ", ".join(_allowed(app, request))
        return _answer(request, code, "" if code is Code.NOT_FOUND else error.detail, (), headers)

    async def gone(_: Request, __: ClientGoneError) -> Response:
        return Response(status_code=CLIENT_CLOSED)

    handlers: dict[type[Exception], Callable[[Request, Any], Awaitable[Response]]] = {
        ApiProblem: problem,
        StoreRefusal: refusal,
        StoreUnavailable: unavailable,
        RequestValidationError: invalid,
        LayoutError: layout,
        HTTPException: http,
        ClientGoneError: gone,
    }
    for kind, handler in handlers.items():
        app.add_exception_handler(kind, handler)


def _answer(request: Request, code: Code, detail: str, errors: Any = (), headers: Any = None) -> Response:
    return problem_response(
        code,
        detail,
        request_id=request.scope.get(REQUEST_ID_KEY, ""),
        instance=request.scope["path"],
        errors=errors,
        headers=headers,
    )


def _allowed(app: FastAPI, request: Request) -> list[str]:
    """Methods of every route with this path: the router itself names those of the first one only."""
    scope = {"type": "http", "method": request.method, "path": request.scope["path"], "root_path": ""}
    methods: set[str] = set()
    for route in app.router.routes:
        if route.matches(scope)[0] is not Match.NONE:
            methods |= getattr(route, "methods", None) or {"GET", "HEAD"}
    return sorted(methods)
