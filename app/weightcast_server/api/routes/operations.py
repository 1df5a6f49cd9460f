"""Health, readiness and metrics."""

from __future__ import annotations

from typing import Literal

from fastapi import Request
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import Response
from weightcast.contract.base import ResponseModel
from weightcast.contract.problems import Code

from weightcast_server.api import examples
from weightcast_server.api.auth import EVERYONE, READ
from weightcast_server.api.problems import ApiProblem
from weightcast_server.api.routing import Responses, Routes, answer, answers, runtime_of

routes = Routes("operations", "For those who run the server.")

_TEXT = {"schema": {"type": "string"}, "example": 'weightcast_versions{state="ready"} 7.0'}
_METRICS: Responses = {200: {"description": "Text exposition format.", "content": {"text/plain": _TEXT}}}


class Status(ResponseModel):
    """Answer of the probes."""

    status: Literal["ok"] = "ok"


@routes.add(
    "GET",
    "/healthz",
    "Is the process alive?",
    roles=EVERYONE,
    answers=answers(Status, examples.STATUS, s200="Alive."),
)
async def healthz() -> Response:
    """The event loop answers."""
    return answer(Status())


@routes.add(
    "GET",
    "/readyz",
    "May it get traffic?",
    roles=EVERYONE,
    answers=answers(Status, examples.STATUS, s200="Ready."),
    problems=[Code.STORE_UNAVAILABLE, Code.SERVER_DRAINING],
)
async def readyz(request: Request) -> Response:
    """The store can be written (looked at once a second at most), leases are kept, and the server stays."""
    runtime = runtime_of(request)
    if runtime.hub.closed:
        raise ApiProblem(Code.SERVER_DRAINING, "the server is shutting down")
    await runtime.check_ready()
    return answer(Status())


@routes.add("GET", "/metrics", "Prometheus metrics", roles=READ, answers=_METRICS)
async def metrics(request: Request) -> Response:
    """Gauges are brought up to date at each scrape."""
    runtime = runtime_of(request)
    await runtime.count()
    return Response(runtime.metrics.render(), headers={"Content-Type": CONTENT_TYPE_LATEST})
