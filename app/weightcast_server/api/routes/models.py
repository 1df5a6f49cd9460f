"""Models: what should be served now, and which replicas serve what."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query, Request
from starlette.responses import Response
from weightcast.contract.names import MAX_INT
from weightcast.contract.problems import Code
from weightcast.contract.versions import ModelList, Target
from weightcast.contract.workers import Replica, ReplicaList

from weightcast_server.api import examples
from weightcast_server.api.auth import READ
from weightcast_server.api.params import CursorQuery, Decimal, LimitQuery, ModelPath, RevisionQuery, WaitQuery
from weightcast_server.api.parking import until
from weightcast_server.api.problems import ApiProblem
from weightcast_server.api.routing import WAITING, Routes, answer, answers, runtime_of
from weightcast_server.domain.keys import RevisionTopic

routes = Routes("models", "Names under which versions are published, their targets and their replicas.")


@routes.add(
    "GET",
    "/v1/models",
    "List models",
    roles=READ,
    answers=answers(ModelList, examples.MODEL_LIST, s200="One page, by name."),
)
async def list_models(request: Request, cursor: CursorQuery = None, limit: LimitQuery = 100) -> Response:
    """Models appear with their first worker."""
    runtime = runtime_of(request)
    return answer(await runtime.timed(runtime.store.list_models(cursor=cursor, limit=limit)))


@routes.add(
    "GET",
    "/v1/models/{model}/target",
    "Watch the target",
    roles=READ,
    answers=answers(Target, examples.TARGET, s200="The target now, also when the wait ended."),
    problems=[Code.UNKNOWN_MODEL, *WAITING],
)
async def get_target(request: Request, model: ModelPath, rev: RevisionQuery = None, wait: WaitQuery = 0.0) -> Response:
    """What should be served now. With `rev` and `wait`, parks while the revision is still `rev`.

    A revision above the server's is answered at once: the store was wiped, start from what is answered.
    """
    runtime = runtime_of(request)

    async def attempt() -> Target | None:
        # Commits keep the targets in memory: neither the look nor the wait asks the store.
        target = runtime.targets.get(model)
        if target is None:
            raise ApiProblem(Code.UNKNOWN_MODEL, f"no worker has ever registered for {model}")
        return None if target.revision == rev else target

    target = await until(runtime, request, [RevisionTopic(model)], wait if rev is not None else 0.0, attempt)
    return answer(target or runtime.targets[model])


@routes.add(
    "GET",
    "/v1/models/{model}/replicas",
    "List replicas",
    roles=READ,
    answers=answers(ReplicaList, examples.REPLICA_LIST, s200="One page, by name; filtered pages may be short."),
    problems=[Code.UNKNOWN_MODEL],
)
async def list_replicas(
    request: Request,
    model: ModelPath,
    servable: Annotated[
        bool | None, Query(description="Only replicas that may (true) or may not be sent requests.", examples=[True])
    ] = None,
    min_version: Annotated[
        Decimal | None, Query(ge=1, le=MAX_INT, description="Only replicas that serve it or a newer one.", examples=[7])
    ] = None,
    cursor: CursorQuery = None,
    limit: LimitQuery = 100,
) -> Response:
    """Who serves what and how far behind. Routers ask with `servable=true&min_version=`."""
    runtime = runtime_of(request)
    page = await runtime.timed(runtime.store.list_replicas(model, cursor=cursor, limit=limit))
    items = [item for item in page.items if _wanted(item, servable, min_version)]
    return answer(ReplicaList(items=items, next_cursor=page.next_cursor))


def _wanted(replica: Replica, servable: bool | None, min_version: int | None) -> bool:
    if servable is not None and replica.servable is not servable:
        return False
    return min_version is None or (replica.serving_version or 0) >= min_version
