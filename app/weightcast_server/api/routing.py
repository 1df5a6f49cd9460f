"""How routes are declared, guarded and documented: roles, content type, known query names, problem codes."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from fastapi import FastAPI, Request
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.responses import Response
from weightcast.contract.problems import CATALOGUE, PROBLEM_MEDIA_TYPE, Code

from weightcast_server.api.auth import SCOPE_KEY, Access
from weightcast_server.api.problems import ApiProblem
from weightcast_server.runtime import Runtime

JSON: Final = "application/json"
ROLES_KEY: Final = "x-weightcast-roles"
BODY_KEY: Final = "x-weightcast-media-type"

MAX_KEYS: Final = 100
MAX_ITEMS: Final = 1000
"""More than any body of the contract has in one object and in one list."""

FENCED: Final = (Code.UNKNOWN_WORKER, Code.STALE_EPOCH, Code.LEASE_EXPIRED)
"""Problems of every fenced write."""

WAITING: Final = (Code.SERVER_DRAINING, Code.TOO_MANY_WAITERS)
"""Problems of every call that may park."""

Handler: TypeAlias = Callable[..., Coroutine[Any, Any, Response]]
Responses: TypeAlias = dict[int | str, dict[str, Any]]


class GuardedRoute(APIRoute):
    """Checks token, query names and content type before the body is read."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The request handler with the checks in front."""
        inner = super().get_route_handler()
        extra = self.openapi_extra or {}
        roles = frozenset(Access(name) for name in extra.get(ROLES_KEY, ()))
        media_type: str | None = extra.get(BODY_KEY) or (JSON if self.body_field is not None else None)
        known = frozenset(parameter.alias for parameter in self.dependant.query_params)

        async def handle(request: Request) -> Response:
            if roles:
                _authorize(request, roles)
            if request.scope["query_string"]:
                _check_query(request, known)
            if media_type is not None:
                _check_media_type(request, media_type)
            if media_type == JSON:
                await _check_shape(request)
            return await inner(request)

        return handle


@dataclass(frozen=True, slots=True)
class Declared:
    """One declared route."""

    method: str
    path: str
    handler: Handler
    options: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Routes:
    """The routes of one tag. Installed flat: FastAPI's included routers match every request twice."""

    tag: str
    description: str
    declared: list[Declared] = field(default_factory=list)

    def add(
        self,
        method: str,
        path: str,
        summary: str,
        *,
        roles: frozenset[Access],
        answers: Responses,
        problems: Iterable[Code] = (),
        media_type: str | None = None,
        body: Mapping[str, Any] | None = None,
    ) -> Callable[[Handler], Handler]:
        """Declare a route; the handler's name is its operation id, its docstring the description.

        ``answers`` comes from :func:`answers` and the like; ``media_type`` and ``body`` describe one that is no JSON.
        """

        def declare(handler: Handler) -> Handler:
            extra: dict[str, Any] = {ROLES_KEY: sorted(roles)}
            extra["security"] = [{"bearer": []}] if roles else []
            codes = [Code.INTERNAL, *problems]
            if roles:
                codes += [Code.UNAUTHORIZED, Code.FORBIDDEN, Code.STORE_UNAVAILABLE, Code.VALIDATION_FAILED]
            if method in {"POST", "PUT", "PATCH"}:
                codes += [Code.BAD_REQUEST, Code.PAYLOAD_TOO_LARGE, Code.UNSUPPORTED_MEDIA_TYPE]
            if media_type is not None:
                extra[BODY_KEY] = media_type
                extra["requestBody"] = {"required": True, "content": {media_type: dict(body or {})}}
            options = {
                "summary": summary,
                "operation_id": handler.__name__,
                "status_code": int(next(iter(answers))),
                "responses": {**answers, **document_problems(codes)},
                "openapi_extra": extra,
                "response_model": None,
                "response_class": Response,
            }
            self.declared.append(Declared(method, path, handler, options))
            return handler

        return declare

    def install(self, app: FastAPI) -> None:
        """Add every declared route to ``app``."""
        for route in self.declared:
            app.router.add_api_route(
                route.path,
                route.handler,
                methods=[route.method],
                tags=[self.tag],
                route_class_override=GuardedRoute,
                **route.options,
            )


def answers(model: type[BaseModel], example: Mapping[str, Any], **statuses: str) -> Responses:
    """Successful answers with a body: ``s200="text"`` and so on, all of ``model``."""
    return {
        int(name[1:]): {"model": model, "description": text, "content": {JSON: {"example": example}}}
        for name, text in statuses.items()
    }


def empty(status: int, description: str) -> Responses:
    """A successful answer without a body."""
    return {status: {"description": description}}


def document_problems(codes: Iterable[Code]) -> Responses:
    """One documented response per status, with one example per code."""
    by_status: Responses = {}
    for code in dict.fromkeys(codes):
        status = CATALOGUE[code].status
        entry = by_status.setdefault(
            status,
            {
                "description": "",
                "content": {
                    PROBLEM_MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}, "examples": {}},
                },
            },
        )
        content = entry["content"][PROBLEM_MEDIA_TYPE]
        content["examples"][code.value] = {"$ref": f"#/components/examples/{code.value}"}
        entry["description"] += f"{', ' if entry['description'] else ''}`{code.value}`"
    return dict(sorted(by_status.items(), key=lambda item: int(item[0])))


def answer(model: BaseModel, status: int = 200) -> Response:
    """``model`` as JSON, without FastAPI's second validation of it."""
    return Response(model.model_dump_json().encode(), status, media_type=JSON)


def runtime_of(request: Request) -> Runtime:
    """The running server's parts."""
    runtime: Runtime = request.scope["app"].state.runtime
    return runtime


def _authorize(request: Request, roles: frozenset[Access]) -> None:
    access = request.scope["app"].state.authenticator.access(request.headers.get("authorization"))
    if not access & roles:
        raise ApiProblem(Code.FORBIDDEN, f"this needs a token of one of: {', '.join(sorted(roles))}")
    request.scope[SCOPE_KEY] = access


async def _check_shape(request: Request) -> None:
    """Refuse what would cost far more to find fault with than to parse: each unknown key is an error of its own."""
    try:
        body = await request.json()
    except (ValueError, RecursionError):
        return  # the same is found, and answered, where the body is validated
    pending = [body] if isinstance(body, dict | list) else []
    while pending:
        item = pending.pop()
        if len(item) > (MAX_KEYS if isinstance(item, dict) else MAX_ITEMS):
            raise ApiProblem(
                Code.VALIDATION_FAILED, f"over {MAX_KEYS} keys of one object or {MAX_ITEMS} items of one list"
            )
        pending += [
            inner for inner in (item.values() if isinstance(item, dict) else item) if isinstance(inner, dict | list)
        ]


def _check_query(request: Request, known: frozenset[str]) -> None:
    unknown = [name for name in request.query_params if name not in known]
    if unknown:
        errors = [(f"query.{name}", "unknown parameter") for name in unknown]
        raise ApiProblem(Code.VALIDATION_FAILED, "unknown query parameters, see errors", errors)


def _check_media_type(request: Request, media_type: str) -> None:
    given = request.headers.get("content-type")
    if given is None:
        if request.headers.get("content-length", "0") == "0" and "transfer-encoding" not in request.headers:
            return
        raise ApiProblem(Code.UNSUPPORTED_MEDIA_TYPE, f"no Content-Type; send {media_type}")
    if given.partition(";")[0].strip().lower() != media_type:
        raise ApiProblem(Code.UNSUPPORTED_MEDIA_TYPE, f"send {media_type}")
