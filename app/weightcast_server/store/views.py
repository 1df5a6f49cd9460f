"""Reads: listings and single things, each within one snapshot."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence

from weightcast.contract.names import PullState, Role, WorkerState
from weightcast.contract.problems import Code
from weightcast.contract.pulls import Pull, PullList
from weightcast.contract.workers import Replica, ReplicaList, Worker, WorkerList

from weightcast_server.domain.replicas import view_replica
from weightcast_server.store.models import load_target, require_model
from weightcast_server.store.pages import cut, number_cursor
from weightcast_server.store.protocol import StoreRefusal
from weightcast_server.store.rows import pull_of, worker_of
from weightcast_server.store.siblings import load_members


def get_worker(db: sqlite3.Connection, worker_id: str) -> Worker:
    """One worker."""
    row = db.execute("SELECT * FROM workers WHERE worker_id = ?", (worker_id,)).fetchone()
    if row is None:
        raise StoreRefusal(Code.UNKNOWN_WORKER, f"no worker {worker_id} is registered")
    return worker_of(row)


def list_workers(
    db: sqlite3.Connection,
    model: str | None,
    role: Role | None,
    state: WorkerState | None,
    cursor: str | None,
    limit: int,
) -> WorkerList:
    """Workers by id."""
    where, values = _where({"model": model, "role": role, "state": state})
    rows = db.execute(
        f"SELECT * FROM workers WHERE {where} worker_id > ? ORDER BY worker_id LIMIT ?",  # noqa: S608
        (*values, cursor or "", limit + 1),
    ).fetchall()
    page, more = cut(rows, limit)
    return WorkerList(items=[worker_of(row) for row in page], next_cursor=page[-1]["worker_id"] if more else None)


def get_pull(db: sqlite3.Connection, pull_id: str) -> Pull:
    """One pull."""
    row = db.execute("SELECT * FROM pulls WHERE pull_id = ?", (pull_id,)).fetchone()
    if row is None:
        raise StoreRefusal(Code.UNKNOWN_PULL, f"there is no pull {pull_id}")
    return pull_of(row)


def list_pulls(
    db: sqlite3.Connection,
    model: str,
    state: PullState | None,
    version: int | None,
    worker_id: str | None,
    cursor: str | None,
    limit: int,
) -> PullList:
    """Pulls of a model, newest first."""
    require_model(db, model)
    where, values = _where({"model": model, "state": state, "version": version, "worker_id": worker_id})
    rows = db.execute(
        f"SELECT * FROM pulls WHERE {where} seq < ? ORDER BY seq DESC LIMIT ?",  # noqa: S608
        (*values, number_cursor(cursor), limit + 1),
    ).fetchall()
    page, more = cut(rows, limit)
    return PullList(items=[pull_of(row) for row in page], next_cursor=str(page[-1]["seq"]) if more else None)


def list_replicas(db: sqlite3.Connection, model: str, cursor: str | None, limit: int) -> ReplicaList:
    """Replicas of a model by name."""
    target = load_target(db, model).version
    rows = db.execute(
        "SELECT * FROM replicas WHERE model = ? AND replica > ? ORDER BY replica LIMIT ?",
        (model, cursor or "", limit + 1),
    ).fetchall()
    page, more = cut(rows, limit)
    lags: dict[int, int] = {}
    items = [_replica(db, row, target, lags) for row in page]
    return ReplicaList(items=items, next_cursor=page[-1]["replica"] if more else None)


def _replica(db: sqlite3.Connection, row: sqlite3.Row, target: int | None, lags: dict[int, int]) -> Replica:
    members = load_members(db, row["model"], row["replica"])
    view = view_replica(row["world_size"], [member.rank for member in members])
    pauses = [
        member.pause_seconds
        for member in members
        if member.rank.rank < row["world_size"] and member.pause_seconds is not None
    ]
    serving = view.serving_version
    if serving is not None and serving not in lags:
        lags[serving] = _count_ready(db, row["model"], serving, target)
    return Replica(
        model=row["model"],
        replica=row["replica"],
        generation=row["generation"],
        world_size=row["world_size"],
        live_ranks=view.live_ranks,
        serving_version=serving,
        staged_version=view.staged_version,
        tainted=view.tainted,
        servable=view.servable,
        lag=lags[serving] if serving is not None else None,
        pause_seconds=max(pauses, default=None),
    )


def _count_ready(db: sqlite3.Connection, model: str, above: int, up_to: int | None) -> int:
    count: int = db.execute(
        "SELECT count(*) FROM versions WHERE model = ? AND state = 'ready' AND version > ? AND version <= ?",
        (model, above, up_to or 0),
    ).fetchone()[0]
    return count


def _where(filters: Mapping[str, object]) -> tuple[str, Sequence[object]]:
    given = {column: value for column, value in filters.items() if value is not None}
    return "".join(f"{column} = ? AND " for column in given), list(given.values())
