"""Registration, heartbeats, goodbye, memory, and the list of workers."""

from __future__ import annotations

from typing import Annotated

from fastapi import Body, Query, Request
from starlette.responses import Response
from weightcast.contract.names import CONTRACT_VERSION, Name, Role, WorkerState
from weightcast.contract.problems import Code
from weightcast.contract.workers import (
    Heartbeat,
    RegisterWorker,
    Registration,
    UpdateMemory,
    Worker,
    WorkerList,
)

from weightcast_server.api import examples
from weightcast_server.api.auth import READ, WORKERS, require_role, require_role_of
from weightcast_server.api.params import CallerHeader, CursorQuery, EpochHeader, LimitQuery, WorkerPath
from weightcast_server.api.problems import ApiProblem
from weightcast_server.api.routing import FENCED, Routes, answer, answers, empty, runtime_of
from weightcast_server.domain.keys import WorkerKey
from weightcast_server.runtime import Runtime

routes = Routes("workers", "Processes of trainers and rollouts: who is there, under which epoch, with which memory.")


@routes.add(
    "POST",
    "/v1/workers/{worker_id}/heartbeat",
    "Renew a lease",
    roles=WORKERS,
    answers=answers(Heartbeat, examples.HEARTBEAT, s200="The lease runs anew."),
    problems=FENCED,
)
async def heartbeat(request: Request, worker_id: WorkerPath, caller: CallerHeader, epoch: EpochHeader) -> Response:
    """Keep to the interval of the answer: it grows with the fleet. `revision` tells whether anything changed."""
    key = own_key(request, worker_id, caller, epoch)
    runtime = runtime_of(request)
    fact = runtime.leases.heartbeat(key)
    target = runtime.targets.get(fact.model)
    beat = Heartbeat(
        lease_seconds=runtime.leases.lease_seconds,
        heartbeat_seconds=runtime.leases.heartbeat_seconds,
        revision=target.revision if target is not None else 0,
    )
    return answer(beat)


@routes.add(
    "POST",
    "/v1/workers",
    "Register a process for its rank",
    roles=WORKERS,
    answers=answers(Registration, examples.REGISTRATION, s201="A new epoch.", s200="This process held it already."),
    problems=[Code.STALE_EPOCH, Code.MODEL_OWNED, Code.REPLICA_CONFLICT, Code.CONTRACT_UNSUPPORTED],
)
async def register_worker(
    request: Request,
    body: Annotated[
        RegisterWorker,
        Body(
            openapi_examples={
                "trainer": {"summary": "A trainer rank", "value": examples.REGISTER_TRAINER},
                "rollout": {"summary": "A rollout rank", "value": examples.REGISTER_ROLLOUT},
            }
        ),
    ],
) -> Response:
    """Takes over the rank: whatever the previous process of this rank held or had open ends with its epoch.

    The same process may repeat the call and gets the same epoch while its lease runs. A process that was replaced gets
    `stale_epoch` and must stop.
    """
    require_role(request.scope, body.role)
    if body.contract_version > CONTRACT_VERSION:
        raise ApiProblem(
            Code.CONTRACT_UNSUPPORTED,
            f"this server speaks contract {CONTRACT_VERSION}, the worker {body.contract_version}",
        )
    runtime = runtime_of(request)
    done = await runtime.timed(runtime.store.register_worker(body))
    registration = Registration(
        worker_id=done.worker_id,
        epoch=done.epoch,
        contract_version=min(CONTRACT_VERSION, body.contract_version),
        lease_seconds=runtime.leases.lease_seconds,
        heartbeat_seconds=runtime.leases.heartbeat_seconds,
        revision=done.revision,
        registered_at=done.registered_at,
    )
    return answer(registration, 200 if done.replayed else 201)


@routes.add(
    "DELETE",
    "/v1/workers/{worker_id}",
    "Leave",
    roles=WORKERS,
    answers=empty(204, "The worker is `left`; nothing of it is assigned any more."),
    problems=FENCED,
)
async def leave_worker(request: Request, worker_id: WorkerPath, caller: CallerHeader, epoch: EpochHeader) -> Response:
    """Everything of this epoch ends now instead of at the end of the lease. A repeated goodbye is accepted."""
    key = own_key(request, worker_id, caller, epoch)
    runtime = runtime_of(request)
    await runtime.timed(runtime.store.leave(key))
    return Response(status_code=204)


@routes.add(
    "PUT",
    "/v1/workers/{worker_id}/memory",
    "Replace addresses and agents",
    roles=WORKERS,
    answers=answers(Worker, examples.WORKER, s200="The worker."),
    problems=FENCED,
)
async def update_memory(
    request: Request,
    worker_id: WorkerPath,
    caller: CallerHeader,
    epoch: EpochHeader,
    body: Annotated[UpdateMemory, Body(openapi_examples={"memory": {"value": examples.UPDATE_MEMORY}})],
) -> Response:
    """New agents and memory within the same epoch; holdings that no longer fit their slot are dropped."""
    key = own_key(request, worker_id, caller, epoch)
    runtime = runtime_of(request)
    worker = await runtime.timed(runtime.store.update_memory(key, body))
    return answer(_with_age(runtime, worker))


@routes.add(
    "GET",
    "/v1/workers",
    "List workers",
    roles=READ,
    answers=answers(WorkerList, examples.WORKER_LIST, s200="One page, by worker id."),
)
async def list_workers(
    request: Request,
    model: Annotated[Name | None, Query(description="Only workers of this model.", examples=["policy"])] = None,
    role: Annotated[Role | None, Query(description="Only this role.", examples=["rollout"])] = None,
    state: Annotated[WorkerState | None, Query(description="Only this state.", examples=["live"])] = None,
    cursor: CursorQuery = None,
    limit: LimitQuery = 100,
) -> Response:
    """Workers of all models or of one, without their NIXL metadata."""
    runtime = runtime_of(request)
    page = await runtime.timed(
        runtime.store.list_workers(model=model, role=role, state=state, cursor=cursor, limit=limit)
    )
    items = [_with_age(runtime, worker) for worker in page.items]
    return answer(WorkerList(items=items, next_cursor=page.next_cursor))


@routes.add(
    "GET",
    "/v1/workers/{worker_id}",
    "Show a worker",
    roles=READ,
    answers=answers(Worker, examples.WORKER, s200="The worker."),
    problems=[Code.UNKNOWN_WORKER],
)
async def get_worker(request: Request, worker_id: WorkerPath) -> Response:
    """One worker, also after it left or was lost."""
    runtime = runtime_of(request)
    worker = await runtime.timed(runtime.store.get_worker(worker_id))
    return answer(_with_age(runtime, worker))


def own_key(request: Request, worker_id: str, caller: str, epoch: int) -> WorkerKey:
    """The caller, who acts on itself and holds a token of its role.

    Raises:
        ApiProblem: forbidden.
    """
    if caller != worker_id:
        raise ApiProblem(Code.FORBIDDEN, f"{caller} may not act for {worker_id}")
    require_role_of(request.scope, worker_id)
    return WorkerKey(caller, epoch)


def _with_age(runtime: Runtime, worker: Worker) -> Worker:
    return worker.model_copy(update={"heartbeat_age_seconds": runtime.leases.age(worker.worker_id, worker.epoch)})
