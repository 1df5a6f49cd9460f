"""`weightcast versions` and `weightcast workers`."""

from __future__ import annotations

from typing import Annotated

import typer

from weightcast.cli import options, output
from weightcast.contract.names import Role, VersionState, WorkerState
from weightcast.contract.versions import Version
from weightcast.contract.workers import Worker


def versions(
    server: options.Server = None,
    token: options.Token = None,
    model: options.Model = None,
    state: Annotated[VersionState | None, typer.Option("--state", help="Only versions in this state.")] = None,
    limit: options.Limit = 20,
    as_json: options.AsJson = False,
) -> None:
    """List versions, newest first: state, size, who holds them, who serves them."""
    with options.connect(server, token) as control:
        found = [
            version
            for name in options.chosen(control, model)
            for version in control.versions(name, state=state, limit=limit).items
        ]
    if as_json:
        output.emit({"versions": [version.model_dump(mode="json") for version in found]})
        return
    columns = ("model", "version", "step", "state", "shards", "size", "age", "holdings", "applied", "why")
    output.stdout().print(output.table("", columns, [_version_row(version) for version in found]))


def _version_row(version: Version) -> tuple[object, ...]:
    why = " ".join(part for part in (version.failure, version.reason) if part)
    return (
        version.model,
        version.version,
        version.step,
        version.state.value,
        f"{len(version.published)}/{version.world_size}",
        output.nbytes(version.nbytes),
        output.ago(version.opened_at),
        len(version.holdings),
        f"{len(version.applied)}/{version.live_replicas}",
        why,
    )


def workers(
    server: options.Server = None,
    token: options.Token = None,
    model: options.Model = None,
    role: Annotated[Role | None, typer.Option("--role", help="Only this role.")] = None,
    state: Annotated[WorkerState | None, typer.Option("--state", help="Only workers in this state.")] = None,
    limit: options.Limit = 100,
    as_json: options.AsJson = False,
) -> None:
    """List workers: rank, epoch, state, where they run, what they serve."""
    with options.connect(server, token) as control:
        found = control.workers(model, role=role, state=state, limit=limit).items
    if as_json:
        output.emit({"workers": [worker.model_dump(mode="json") for worker in found]})
        return
    columns = ("worker", "state", "epoch", "rank", "run", "host", "serves", "heartbeat")
    output.stdout().print(output.table("", columns, [_worker_row(worker) for worker in found]))


def _worker_row(worker: Worker) -> tuple[object, ...]:
    return (
        worker.worker_id,
        worker.state.value,
        worker.epoch,
        f"{worker.rank}/{worker.world_size}",
        worker.run,
        "/".join(part for part in (worker.zone, worker.rack, worker.host) if part),
        "tainted" if worker.tainted else worker.serving_version,
        output.seconds(worker.heartbeat_age_seconds),
    )
