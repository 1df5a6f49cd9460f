"""Pulls: one blocking call for the next assignment, then progress until it is applied."""

from __future__ import annotations

from typing import Annotated

from fastapi import Body, Query, Request
from starlette.responses import Response
from weightcast.contract.names import PullState, WorkerId
from weightcast.contract.problems import Code
from weightcast.contract.pulls import Assignment, Pull, PullList, RequestPull, UpdatePull

from weightcast_server.api import examples
from weightcast_server.api.auth import READ, ROLLOUTS
from weightcast_server.api.params import (
    CallerHeader,
    CursorQuery,
    EpochHeader,
    LimitQuery,
    ModelPath,
    PullPath,
    VersionQuery,
    WaitQuery,
)
from weightcast_server.api.parking import until
from weightcast_server.api.problems import ApiProblem
from weightcast_server.api.routing import FENCED, WAITING, Routes, answer, answers, empty, runtime_of
from weightcast_server.domain.keys import ReplicaTopic, TargetTopic, Topic, WorkerKey
from weightcast_server.runtime import Runtime

routes = Routes("pulls", "One rank's way to one version: assigned, fetching, staged, applying, applied.")


@routes.add(
    "POST",
    "/v1/models/{model}/pulls",
    "Get the next assignment",
    roles=ROLLOUTS,
    answers=answers(Assignment, examples.ASSIGNMENT, s200="Read these shards from these sources.")
    | empty(204, "Nothing newer came within the wait; ask again."),
    problems=[*FENCED, Code.UNKNOWN_MODEL, Code.PULL_STATE, *WAITING],
)
async def request_pull(
    request: Request,
    model: ModelPath,
    caller: CallerHeader,
    epoch: EpochHeader,
    body: Annotated[RequestPull, Body(openapi_examples={"next": {"value": examples.REQUEST_PULL}})],
    wait: WaitQuery = 0.0,
) -> Response:
    """Parks until there is a version newer than `have_version`.

    A lost answer is given again. A pull that the rank was reading is superseded by asking, one that it has staged by
    being given something newer; while one is `applying`, nothing is assigned, and `pull_state` at the end of the wait
    names a pull that is newer than `have_version` and whose end was never reported.
    """
    runtime = runtime_of(request)
    key = WorkerKey(caller, epoch)

    async def attempt() -> Assignment | None:
        return await runtime.timed(runtime.store.assign_pull(key, model, body))

    topics = [TargetTopic(model), *_replica_topics(runtime, caller)]
    assignment = await until(runtime, request, topics, wait, attempt)
    if assignment is not None:
        return answer(assignment)
    await _refuse_forgotten(runtime, key, model, body.have_version)
    return Response(status_code=204)


@routes.add(
    "PATCH",
    "/v1/pulls/{pull_id}",
    "Report progress, or ask to apply",
    roles=ROLLOUTS,
    answers=answers(Pull, examples.PULL, s200="The pull; `staged` after asking for `applying` means: ask again."),
    problems=[*FENCED, Code.UNKNOWN_PULL, Code.PULL_STATE, Code.PULL_SUPERSEDED, *WAITING],
)
async def update_pull(
    request: Request,
    pull_id: PullPath,
    caller: CallerHeader,
    epoch: EpochHeader,
    body: Annotated[
        UpdatePull,
        Body(
            openapi_examples={
                "fetching": {"summary": "Progress", "value": examples.PULL_FETCHING},
                "staged": {"summary": "Local and verified", "value": examples.PULL_STAGED},
                "applying": {"summary": "May live weights change now?", "value": examples.PULL_APPLYING},
                "applied": {"summary": "The engine computes with it", "value": examples.PULL_APPLIED},
                "failed": {"summary": "Given up", "value": examples.PULL_FAILED},
            }
        ),
    ],
    wait: WaitQuery = 0.0,
) -> Response:
    """`applying` parks until every rank of the replica has staged the version; only then may live weights change."""
    runtime = runtime_of(request)
    key = WorkerKey(caller, epoch)
    latest: Pull | None = None

    async def attempt() -> Pull | None:
        nonlocal latest
        done = await runtime.timed(runtime.store.update_pull(key, pull_id, body))
        latest = done.pull
        return done.pull if done.granted else None

    topics = _replica_topics(runtime, caller) if body.state == "applying" else []
    pull = await until(runtime, request, topics, wait if topics else 0.0, attempt)
    pull = pull or latest
    assert pull is not None, "attempt ran at least once"  # noqa: S101
    return answer(pull)


@routes.add(
    "GET",
    "/v1/models/{model}/pulls",
    "List pulls",
    roles=READ,
    answers=answers(PullList, examples.PULL_LIST, s200="One page, newest first."),
    problems=[Code.UNKNOWN_MODEL],
)
async def list_pulls(
    request: Request,
    model: ModelPath,
    state: Annotated[PullState | None, Query(description="Only this state.", examples=["applied"])] = None,
    version: VersionQuery = None,
    worker_id: Annotated[
        WorkerId | None, Query(description="Only of this worker.", examples=["policy:rollout:r0:0"])
    ] = None,
    cursor: CursorQuery = None,
    limit: LimitQuery = 100,
) -> Response:
    """Pulls of one model: who read which version from whom, and how it went."""
    runtime = runtime_of(request)
    page = await runtime.timed(
        runtime.store.list_pulls(model, state=state, version=version, worker_id=worker_id, cursor=cursor, limit=limit)
    )
    return answer(page)


@routes.add(
    "GET",
    "/v1/pulls/{pull_id}",
    "Show a pull",
    roles=READ,
    answers=answers(Pull, examples.PULL, s200="The pull."),
    problems=[Code.UNKNOWN_PULL],
)
async def get_pull(request: Request, pull_id: PullPath) -> Response:
    """One pull, open or over."""
    runtime = runtime_of(request)
    return answer(await runtime.timed(runtime.store.get_pull(pull_id)))


async def _refuse_forgotten(runtime: Runtime, caller: WorkerKey, model: str, have_version: int) -> None:
    """A rank that has forgotten its `applying` pull would wait for an assignment for ever.

    One that only asks ahead while it applies says so: its `have_version` counts that version already.
    """
    page = await runtime.timed(
        runtime.store.list_pulls(
            model, state=PullState.APPLYING, version=None, worker_id=caller.worker_id, cursor=None, limit=1
        )
    )
    for pull in page.items:
        if pull.epoch == caller.epoch and pull.version > have_version:
            raise ApiProblem(Code.PULL_STATE, f"pull {pull.pull_id} is applying: report how that ended")


def _replica_topics(runtime: Runtime, worker_id: str) -> list[Topic]:
    """What the ranks of the caller's replica do, its own pull and registration included."""
    fact = runtime.leases.fact(worker_id)
    if fact is None or fact.replica is None:
        return []
    return [ReplicaTopic(fact.model, fact.replica)]
