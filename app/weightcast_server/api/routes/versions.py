"""Versions: open, publish, abort, drain, look and wait."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import Body, Query, Request
from starlette.responses import Response
from weightcast.contract.names import MAX_WORLD_SIZE, VersionState
from weightcast.contract.problems import Code
from weightcast.contract.versions import AbortVersion, Drained, OpenVersion, PublishShard, Version, VersionList

from weightcast_server.api import examples
from weightcast_server.api.auth import READ, SCOPE_KEY, TRAINERS, Access, require_role_of
from weightcast_server.api.params import (
    CallerHeader,
    CursorQuery,
    Decimal,
    EpochHeader,
    LimitQuery,
    ModelPath,
    OptionalCallerHeader,
    OptionalEpochHeader,
    SlotPath,
    VersionPath,
    WaitQuery,
    WorkerPath,
)
from weightcast_server.api.parking import until
from weightcast_server.api.problems import ApiProblem
from weightcast_server.api.routing import FENCED, WAITING, Routes, answer, answers, runtime_of
from weightcast_server.domain.keys import ReadersTopic, ReplicasTopic, Topic, VersionTopic, WorkerKey

routes = Routes("versions", "Complete sets of weights: opened, published shard by shard, READY or FAILED for good.")


@routes.add(
    "POST",
    "/v1/models/{model}/versions",
    "Open a version",
    roles=TRAINERS,
    answers=answers(Version, examples.VERSION, s201="A new version.", s200="Another rank has opened it."),
    problems=[*FENCED, Code.MODEL_OWNED, Code.VERSION_CONFLICT],
)
async def open_version(
    request: Request,
    model: ModelPath,
    caller: CallerHeader,
    epoch: EpochHeader,
    body: Annotated[OpenVersion, Body(openapi_examples={"step": {"value": examples.OPEN_VERSION}})],
) -> Response:
    """Every rank asks with the same (run, step, attempt) and gets the same version, whose number only ever grows."""
    runtime = runtime_of(request)
    done = await runtime.timed(runtime.store.open_version(WorkerKey(caller, epoch), model, body))
    version = await runtime.timed(runtime.store.get_version(model, done.version))
    return answer(version, 201 if done.created else 200)


@routes.add(
    "PUT",
    "/v1/models/{model}/versions/{version}/shards/{slot}",
    "Publish a shard",
    roles=TRAINERS,
    answers=answers(Version, examples.VERSION, s200="Published; look at `state`."),
    problems=[
        *FENCED,
        Code.UNKNOWN_VERSION,
        Code.UNKNOWN_LAYOUT,
        Code.VERSION_STATE,
        Code.VERSION_CONFLICT,
        Code.SHARD_CONFLICT,
        Code.MODEL_OWNED,
    ],
)
async def publish_shard(
    request: Request,
    model: ModelPath,
    version: VersionPath,
    slot: SlotPath,
    caller: CallerHeader,
    epoch: EpochHeader,
    body: Annotated[PublishShard, Body(openapi_examples={"shard": {"value": examples.PUBLISH_SHARD}})],
) -> Response:
    """The last slot makes the version READY in the same transaction. Repeating the same shard is answered alike."""
    runtime = runtime_of(request)
    await runtime.timed(runtime.store.publish_shard(WorkerKey(caller, epoch), model, version, slot, body))
    return answer(await runtime.timed(runtime.store.get_version(model, version)))


@routes.add(
    "POST",
    "/v1/models/{model}/versions/{version}/abort",
    "Give a version up",
    roles=TRAINERS,
    answers=answers(Version, examples.VERSION, s200="The version is FAILED."),
    problems=[*FENCED, Code.UNKNOWN_VERSION, Code.VERSION_STATE, Code.MODEL_OWNED],
)
async def abort_version(
    request: Request,
    model: ModelPath,
    version: VersionPath,
    caller: CallerHeader,
    epoch: EpochHeader,
    body: Annotated[AbortVersion, Body(openapi_examples={"reason": {"value": examples.ABORT_VERSION}})],
) -> Response:
    """STAGING becomes FAILED (`aborted`); a FAILED version stays as it is; a READY one cannot be aborted."""
    runtime = runtime_of(request)
    await runtime.timed(runtime.store.abort_version(WorkerKey(caller, epoch), model, version, body.reason))
    return answer(await runtime.timed(runtime.store.get_version(model, version)))


@routes.add(
    "GET",
    "/v1/models/{model}/versions",
    "List versions",
    roles=READ,
    answers=answers(VersionList, examples.VERSION_LIST, s200="One page, newest first."),
    problems=[Code.UNKNOWN_MODEL],
)
async def list_versions(
    request: Request,
    model: ModelPath,
    state: Annotated[VersionState | None, Query(description="Only this state.", examples=["ready"])] = None,
    cursor: CursorQuery = None,
    limit: LimitQuery = 100,
) -> Response:
    """Versions of one model, of all its runs."""
    runtime = runtime_of(request)
    page = await runtime.timed(runtime.store.list_versions(model, state=state, cursor=cursor, limit=limit))
    return answer(page)


@routes.add(
    "GET",
    "/v1/models/{model}/versions/{version}",
    "Show a version, or wait for it",
    roles=READ,
    answers=answers(Version, examples.VERSION, s200="The version as it is now, also when the wait ended."),
    problems=[Code.UNKNOWN_MODEL, Code.UNKNOWN_VERSION, *WAITING],
)
async def get_version(
    request: Request,
    model: ModelPath,
    version: VersionPath,
    wait_for: Annotated[
        Literal["ready", "applied"] | None,
        Query(description="What to park for; FAILED ends any wait.", examples=["applied"]),
    ] = None,
    wait: WaitQuery = 0.0,
    replicas: Annotated[
        Decimal | None,
        Query(
            ge=1,
            le=MAX_WORLD_SIZE,
            description="With `applied`: enough replicas; all live ones (at least one) when absent.",
            examples=[2],
        ),
    ] = None,
) -> Response:
    """With `wait_for`, parks until the version is READY, or until enough replicas serve it or a newer one."""
    runtime = runtime_of(request)

    async def attempt() -> Version | None:
        found = await runtime.timed(runtime.store.get_version(model, version))
        return found if _reached(found, wait_for, replicas) else None

    topics: list[Topic] = [VersionTopic(model, version)]
    if wait_for == "applied":
        topics.append(ReplicasTopic(model))
    reached = await until(runtime, request, topics, wait if wait_for else 0.0, attempt)
    if reached is None:
        reached = await runtime.timed(runtime.store.get_version(model, version))
    return answer(reached)


@routes.add(
    "DELETE",
    "/v1/models/{model}/versions/{version}/holdings/{worker_id}",
    "Drain a holding",
    roles=TRAINERS,
    answers=answers(Drained, examples.DRAINED, s200="The holding is gone."),
    problems=[*FENCED, Code.UNKNOWN_VERSION, *WAITING],
)
async def drain_holding(
    request: Request,
    model: ModelPath,
    version: VersionPath,
    worker_id: WorkerPath,
    wait: WaitQuery = 0.0,
    caller: OptionalCallerHeader = None,
    epoch: OptionalEpochHeader = None,
) -> Response:
    """Nobody is assigned to it any more; parks until nobody reads it, or the wait ends.

    The holder calls it, or an operator (without the worker headers).
    """
    if (caller is None) != (epoch is None):
        raise ApiProblem(Code.VALIDATION_FAILED, "Weightcast-Worker and Weightcast-Epoch go together")
    if caller is None and Access.OPERATOR not in request.scope[SCOPE_KEY]:
        raise ApiProblem(Code.FORBIDDEN, "without the worker headers this needs an operator token")
    if caller is not None:
        require_role_of(request.scope, caller)
    key = WorkerKey(caller, epoch) if caller is not None and epoch is not None else None
    runtime = runtime_of(request)

    async def attempt() -> Drained | None:
        return await runtime.timed(runtime.store.drain_holding(key, model, version, worker_id, final=False))

    drained = await until(runtime, request, [ReadersTopic(worker_id)], wait, attempt)
    if drained is None:
        drained = await runtime.timed(runtime.store.drain_holding(key, model, version, worker_id, final=True))
    return answer(drained or Drained(drained=True, readers=0))


def _reached(version: Version, wait_for: Literal["ready", "applied"] | None, replicas: int | None) -> bool:
    if wait_for is None or version.state is VersionState.FAILED:
        return True
    if wait_for == "ready":
        return version.state is VersionState.READY
    return len(version.applied) >= (replicas or max(1, version.live_replicas))
