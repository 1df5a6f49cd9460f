"""Versions: opened by natural key, filled slot by slot, aborted."""

from __future__ import annotations

import sqlite3
from dataclasses import astuple

from weightcast.contract.names import MAX_INT, Role, VersionFailure, VersionState
from weightcast.contract.problems import Code
from weightcast.contract.versions import OpenVersion, PublishShard

from weightcast_server.domain.keys import VersionKey, VersionTopic
from weightcast_server.domain.publishing import (
    Fail,
    OfferAgain,
    Publication,
    Replay,
    check_memory,
    check_slot,
    decide_completion,
    decide_publication,
)
from weightcast_server.domain.refusal import Refusal
from weightcast_server.store.fencing import fenced
from weightcast_server.store.holdings import add_holding, drop_overwritten
from weightcast_server.store.protocol import Caller, Opened, Published, StoreRefusal, Timer, VersionFact
from weightcast_server.store.transaction import CommittedRefusal, Tx, require
from weightcast_server.store.transitions import fail_version, version_ready


def open_version(tx: Tx, caller: Caller, model: str, body: OpenVersion) -> Opened:
    """The version of a natural key: a new number, or the one it has."""
    _publisher(tx, caller, model, body.run)
    existing = tx.one(
        "SELECT * FROM versions WHERE model = ? AND run = ? AND step = ? AND attempt = ?",
        *(model, body.run, body.step, body.attempt),
    )
    if existing is not None:
        if (existing["world_size"], existing["shards"]) != (body.world_size, body.shards):
            raise StoreRefusal(
                Code.VERSION_CONFLICT,
                f"version {existing['version']} was opened with world size {existing['world_size']} and "
                f"{existing['shards']} shards, not {body.world_size} and {body.shards}",
            )
        return Opened(existing["version"], VersionState(existing["state"]), created=False)
    if body.shards > body.world_size:
        raise StoreRefusal(Code.VALIDATION_FAILED, f"{body.world_size} ranks cannot fill {body.shards} shards")
    row = tx.one(
        "UPDATE models SET next_version = next_version + 1 WHERE model = ? RETURNING next_version - 1 AS version",
        model,
    )
    if row is None or row["version"] > MAX_INT:
        raise StoreRefusal(Code.VERSION_CONFLICT, f"the version numbers of model {model} are used up")
    version = row["version"]
    tx.run(
        """
        INSERT INTO versions
            (model, version, run, step, attempt, state, world_size, shards, deadline_seconds, opened_at)
        VALUES (?, ?, ?, ?, ?, 'staging', ?, ?, ?, ?)
        """,
        *(model, version, body.run, body.step, body.attempt),
        *(body.world_size, body.shards, body.deadline_seconds, tx.now),
    )
    tx.log.versions.append(VersionFact(model, version, VersionState.STAGING, None, opened_at=tx.now, at=tx.now))
    tx.log.timers.append(Timer(VersionKey(model, version), body.deadline_seconds))
    tx.log.topics.add(VersionTopic(model, version))
    return Opened(version, VersionState.STAGING, created=True)


def publish_shard(
    tx: Tx, caller: Caller, model: str, version: int, slot: int, body: PublishShard
) -> Published | CommittedRefusal:
    """Fill a slot; READY with the last one."""
    row = require_version(tx, model, version)
    worker = _publisher(tx, caller, model, row["run"])
    require(check_slot(slot, body.shard, worker["rank"], row["world_size"], row["shards"]))
    new = Publication.of(caller.epoch, slot, body)
    existing = tx.one("SELECT * FROM published WHERE model = ? AND version = ? AND slot = ?", model, version, slot)
    peer = tx.one("SELECT * FROM shards WHERE model = ? AND version = ? AND shard = ?", model, version, body.shard)
    decision = decide_publication(
        VersionState(row["state"]),
        new,
        _publication(existing) if existing is not None else None,
        _first_publication(peer) if peer is not None else None,
    )
    if isinstance(decision, Refusal):
        raise StoreRefusal(decision.code, f"version {version} of {model}: {decision.detail}")
    if isinstance(decision, Replay):
        return Published(VersionState(row["state"]), replayed=True)
    _check_memory(tx, worker, model, body)
    # The slot was filled before this call: whatever it held until then is gone, also when the version fails now.
    drop_overwritten(tx, model, caller.worker_id, body.memory_slot)
    if isinstance(decision, Fail):
        return _fail(tx, model, version, decision)
    if isinstance(decision, OfferAgain):
        return _offer_again(tx, caller, model, version, new)
    return _write(tx, caller, row, new, is_new_shard=peer is None)


def abort_version(tx: Tx, caller: Caller, model: str, version: int, reason: str) -> None:
    """Give up a version that is not READY."""
    row = require_version(tx, model, version)
    _publisher(tx, caller, model, row["run"])
    if row["state"] == VersionState.READY:
        raise StoreRefusal(Code.VERSION_STATE, f"version {version} of {model} is ready and cannot be aborted")
    if row["state"] == VersionState.STAGING:
        fail_version(tx, model, version, VersionFailure.ABORTED, reason)


def require_version(tx: Tx, model: str, version: int) -> sqlite3.Row:
    """The version's row."""
    row = tx.one("SELECT * FROM versions WHERE model = ? AND version = ?", model, version)
    if row is None:
        raise StoreRefusal(Code.UNKNOWN_VERSION, f"{model} has no version {version}")
    return row


def _publisher(tx: Tx, caller: Caller, model: str, run: str) -> sqlite3.Row:
    worker = fenced(tx, caller)
    if worker["model"] != model or worker["role"] != Role.TRAINER:
        raise StoreRefusal(Code.VALIDATION_FAILED, f"{caller.worker_id} is not a trainer of model {model}")
    owner = tx.one("SELECT run FROM models WHERE model = ?", model)
    if owner is None or owner["run"] != run or worker["run"] != run:
        raise StoreRefusal(
            Code.MODEL_OWNED,
            f"{model} is published by run {owner['run'] if owner else None}; "
            f"{caller.worker_id} of run {worker['run']} asked for run {run}",
        )
    return worker


def _check_memory(tx: Tx, worker: sqlite3.Row, model: str, body: PublishShard) -> None:
    layout = tx.one("SELECT nbytes FROM layouts WHERE model = ? AND digest = ?", model, body.layout_digest)
    if layout is None:
        raise StoreRefusal(Code.UNKNOWN_LAYOUT, f"model {model} has no layout {body.layout_digest}")
    served = tx.served.get(tx.db, worker["worker_id"], worker["epoch"], worker["memory_seq"])
    if served.agent is None:
        raise StoreRefusal(Code.VALIDATION_FAILED, f"{worker['worker_id']} registered no agent that serves")
    sizes = [memory.data_nbytes for memory in served.slots]
    require(check_memory(body.nbytes, layout["nbytes"], body.memory_slot, sizes))


def _write(
    tx: Tx, caller: Caller, row: sqlite3.Row, new: Publication, *, is_new_shard: bool
) -> Published | CommittedRefusal:
    model, version = row["model"], row["version"]
    tx.run(
        "INSERT INTO published VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        *(model, version, *astuple(new)[1:], caller.worker_id, caller.epoch, tx.now),
    )
    if is_new_shard:
        tx.run(
            "INSERT INTO shards VALUES (?, ?, ?, ?, ?, ?, ?)",
            *(model, version, new.shard, new.layout_digest, new.digest_root, new.nbytes, new.slot),
        )
    add_holding(tx, model, version, caller, new.shard, new.memory_slot, new.slot_generation)
    counted = tx.one(
        """
        UPDATE versions SET published = published + 1, nbytes = nbytes + ? WHERE model = ? AND version = ?
        RETURNING published
        """,
        *(new.nbytes if is_new_shard else 0, model, version),
    )
    published = counted["published"] if counted is not None else 0
    covered: list[int] = []
    if published == row["world_size"]:
        covered = [
            s["shard"] for s in tx.all("SELECT shard FROM shards WHERE model = ? AND version = ?", model, version)
        ]
    decision = decide_completion(row["world_size"], row["shards"], published, covered)
    if isinstance(decision, Fail):
        return _fail(tx, model, version, decision)
    if decision is VersionState.READY:
        version_ready(tx, model, version)
    return Published(decision, replayed=False)


def _offer_again(tx: Tx, caller: Caller, model: str, version: int, new: Publication) -> Published:
    tx.run(
        "UPDATE published SET epoch = ?, memory_slot = ?, slot_generation = ? "
        "WHERE model = ? AND version = ? AND slot = ?",
        *(new.epoch, new.memory_slot, new.slot_generation, model, version, new.slot),
    )
    add_holding(tx, model, version, caller, new.shard, new.memory_slot, new.slot_generation)
    return Published(VersionState.READY, replayed=False)


def _fail(tx: Tx, model: str, version: int, decision: Fail) -> CommittedRefusal:
    fail_version(tx, model, version, decision.failure, decision.detail)
    return CommittedRefusal(
        StoreRefusal(Code.VERSION_STATE, f"version {version} of {model} failed ({decision.failure}): {decision.detail}")
    )


def _publication(row: sqlite3.Row) -> Publication:
    return Publication(
        row["epoch"],
        row["slot"],
        row["shard"],
        row["layout_digest"],
        row["digest_root"],
        row["nbytes"],
        row["memory_slot"],
        row["slot_generation"],
    )


def _first_publication(row: sqlite3.Row) -> Publication:
    # Where the first slot keeps it is of no interest to the slots that are compared with it.
    content = (row["shard"], row["layout_digest"], row["digest_root"], row["nbytes"])
    return Publication(0, row["first_slot"], *content, memory_slot=0, slot_generation=0)
