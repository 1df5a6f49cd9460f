"""Registration, and the end of an epoch with everything that belongs to it."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence

from weightcast.contract.names import PullFailure as Failure
from weightcast.contract.names import Role, VersionFailure, WorkerState
from weightcast.contract.workers import Agent, RegisterWorker, UpdateMemory, Worker, WorkerMemory, worker_id

from weightcast_server.domain.keys import ReplicasTopic, ReplicaTopic
from weightcast_server.domain.refusal import Refusal
from weightcast_server.domain.registration import (
    Epoch,
    StoredWorker,
    decide_epoch,
    decide_owner,
    decide_world_size,
)
from weightcast_server.store.fencing import fenced
from weightcast_server.store.holdings import drop_holdings_of_worker, drop_misfits
from weightcast_server.store.protocol import Caller, Registered, StoreRefusal
from weightcast_server.store.rows import worker_fact, worker_of
from weightcast_server.store.transaction import Tx, require
from weightcast_server.store.transitions import fail_pull, fail_version, open_pull


def register_worker(tx: Tx, body: RegisterWorker) -> Registered:
    """Take a rank: fence the process before, or replay a registration whose answer was lost."""
    key = worker_id(body.model, body.role, body.rank, body.replica)
    row = tx.one("SELECT * FROM workers WHERE worker_id = ?", key)
    epoch = _decide_epoch(row, body)
    if tx.run("INSERT OR IGNORE INTO models (model) VALUES (?)", body.model):
        tx.log.revised.add(body.model)
    if body.role is Role.TRAINER:
        _own_model(tx, body)
    else:
        _join_replica(tx, key, body, grows=not epoch.replayed)
    if row is not None and not epoch.replayed:
        end_epoch(tx, row, "the rank was taken by a new process")
    _write_worker(tx, key, body, epoch, row)
    seen = max(body.highest_version, body.serving_version or 0)
    tx.run("UPDATE models SET next_version = max(next_version, ?) WHERE model = ?", seen + 1, body.model)
    written = tx.one("SELECT * FROM workers WHERE worker_id = ?", key)
    model = tx.one("SELECT revision FROM models WHERE model = ?", body.model)
    if written is None or model is None:
        raise AssertionError
    _log_worker(tx, written)
    return Registered(key, epoch.number, model["revision"], written["registered_at"], epoch.replayed)


def update_memory(tx: Tx, caller: Caller, body: UpdateMemory) -> Worker:
    """New addresses within the epoch."""
    row = fenced(tx, caller)
    _write_memory(tx, caller.worker_id, body.agents, body.memory)
    serves = any(agent.purpose == "serve" for agent in body.agents)
    sizes = [slot.data_nbytes for slot in body.memory.slots] if serves else []
    drop_misfits(tx, row["model"], caller.worker_id, sizes)
    written = tx.one("SELECT * FROM workers WHERE worker_id = ?", caller.worker_id)
    if written is None:
        raise AssertionError
    return worker_of(written)


def leave(tx: Tx, caller: Caller) -> None:
    """Goodbye; a repeated one, or one after the lease ended, changes nothing."""
    row = tx.one("SELECT * FROM workers WHERE worker_id = ?", caller.worker_id)
    if row is not None and row["epoch"] == caller.epoch and row["state"] != WorkerState.LIVE:
        return
    row = fenced(tx, caller)
    end_worker(tx, row, WorkerState.LEFT, "the worker left")


def end_worker(tx: Tx, row: sqlite3.Row, state: WorkerState, reason: str) -> None:
    """A live worker is lost or has left."""
    written = tx.one("UPDATE workers SET state = ? WHERE worker_id = ? RETURNING *", state, row["worker_id"])
    end_epoch(tx, row, reason)
    if written is not None:
        _log_worker(tx, written)


def end_epoch(tx: Tx, row: sqlite3.Row, reason: str) -> None:
    """End everything that an epoch had: its holdings, its open pull, and the versions it was publishing."""
    pull = open_pull(tx, row["worker_id"])
    if pull is not None:
        fail_pull(tx, pull, Failure.WORKER_LOST, reason)
    drop_holdings_of_worker(tx, row["model"], row["worker_id"])
    if row["role"] != Role.TRAINER:
        return
    publishing = tx.all(
        """
        SELECT v.version FROM versions v
        JOIN published p ON p.model = v.model AND p.version = v.version AND p.slot = ?
        WHERE v.model = ? AND v.state = 'staging' AND p.worker_id = ?
        """,
        *(row["rank"], row["model"], row["worker_id"]),
    )
    for version in publishing:
        detail = f"{row['worker_id']} epoch {row['epoch']}: {reason}"
        fail_version(tx, row["model"], version["version"], VersionFailure.PUBLISHER_LOST, detail)


def _decide_epoch(row: sqlite3.Row | None, body: RegisterWorker) -> Epoch:
    stored = StoredWorker(row["epoch"], WorkerState(row["state"]), row["incarnation"]) if row is not None else None
    decision = decide_epoch(stored, body.incarnation, body.previous_epoch)
    if isinstance(decision, Refusal):
        raise StoreRefusal(decision.code, decision.detail)
    return decision


def _own_model(tx: Tx, body: RegisterWorker) -> None:
    run = body.run or ""
    model = tx.one("SELECT run FROM models WHERE model = ?", body.model)
    owner = model["run"] if model is not None else None
    if owner == run:
        return
    live = tx.all(
        "SELECT worker_id FROM workers WHERE model = ? AND run = ? AND role = 'trainer' AND state = 'live'",
        *(body.model, owner),
    )
    require(decide_owner(body.model, owner, run, [row["worker_id"] for row in live]))
    for row in tx.all("SELECT version FROM versions WHERE model = ? AND state = 'staging'", body.model):
        fail_version(tx, body.model, row["version"], VersionFailure.RUN_REPLACED, f"run {run} took over from {owner}")
    tx.run("UPDATE models SET run = ? WHERE model = ?", run, body.model)


def _join_replica(tx: Tx, key: str, body: RegisterWorker, *, grows: bool) -> None:
    replica = body.replica or ""
    agreed = tx.one("SELECT world_size FROM replicas WHERE model = ? AND replica = ?", body.model, replica)
    live = tx.one(
        """
        SELECT count(*) AS n FROM workers
        WHERE model = ? AND replica = ? AND role = 'rollout' AND state = 'live' AND worker_id <> ?
        """,
        *(body.model, replica, key),
    )
    require(
        decide_world_size(
            replica, agreed["world_size"] if agreed else None, body.world_size, live["n"] if live is not None else 0
        )
    )
    tx.run(
        """
        INSERT INTO replicas VALUES (?, ?, ?, 1) ON CONFLICT (model, replica)
        DO UPDATE SET world_size = excluded.world_size, generation = generation + ?
        """,
        *(body.model, replica, body.world_size, int(grows)),
    )


def _write_worker(tx: Tx, key: str, body: RegisterWorker, epoch: Epoch, row: sqlite3.Row | None) -> None:
    registered_at = row["registered_at"] if row is not None and epoch.replayed else tx.now
    rollout = body.role is Role.ROLLOUT
    fields = {
        "worker_id": key,
        "model": body.model,
        "role": body.role,
        "rank": body.rank,
        "world_size": body.world_size,
        "epoch": epoch.number,
        "state": WorkerState.LIVE,
        "incarnation": body.incarnation,
        "run": body.run,
        "replica": body.replica,
        "host": body.host,
        "rack": body.rack,
        "zone": body.zone,
        "agents": "[]",
        "serving_version": body.serving_version if rollout else None,
        "tainted": int(body.tainted and rollout),
        "pause_seconds": row["pause_seconds"] if row is not None and epoch.replayed else None,
        "registered_at": registered_at,
    }
    columns = ", ".join(fields)
    marks = ", ".join("?" * len(fields))
    updates = ", ".join(f"{column} = excluded.{column}" for column in fields)
    tx.run(
        f"INSERT INTO workers ({columns}) VALUES ({marks}) "  # noqa: S608 - names from this function
        f"ON CONFLICT (worker_id) DO UPDATE SET {updates}",
        *fields.values(),
    )
    _write_memory(tx, key, body.agents, body.memory)
    if epoch.replayed:
        serves = any(agent.purpose == "serve" for agent in body.agents)
        sizes = [slot.data_nbytes for slot in body.memory.slots] if serves and body.memory is not None else []
        drop_misfits(tx, body.model, key, sizes)


def _write_memory(tx: Tx, key: str, agents: Sequence[Agent], memory: WorkerMemory | None) -> None:
    tx.run(
        "INSERT INTO worker_memory VALUES (?, ?, ?) "
        "ON CONFLICT (worker_id) DO UPDATE SET agents = excluded.agents, memory = excluded.memory",
        key,
        json.dumps([agent.model_dump(mode="json") for agent in agents]),
        memory.model_dump_json() if memory is not None else None,
    )
    tx.run(
        "UPDATE workers SET memory_seq = memory_seq + 1, agents = ? WHERE worker_id = ?",
        *(json.dumps([agent.name for agent in agents]), key),
    )


def _log_worker(tx: Tx, row: sqlite3.Row) -> None:
    tx.log.workers.append(worker_fact(row))
    if row["role"] == Role.ROLLOUT:
        tx.log.topics.add(ReplicaTopic(row["model"], row["replica"]))
        tx.log.topics.add(ReplicasTopic(row["model"]))
