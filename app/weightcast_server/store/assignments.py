"""Assignments: which version a rank reads next, and from whom."""

from __future__ import annotations

import json
import sqlite3
import uuid
from collections.abc import Sequence
from dataclasses import dataclass

from weightcast.contract.names import PullFailure, PullState, Role
from weightcast.contract.problems import Code
from weightcast.contract.pulls import Assignment, RequestPull, ShardSources, Source

from weightcast_server.domain.keys import PullKey, ReplicaTopic
from weightcast_server.domain.pulls import READING, meeting_versions
from weightcast_server.domain.ranking import Candidate, Place, rank_sources
from weightcast_server.store.fencing import fenced
from weightcast_server.store.models import version_available
from weightcast_server.store.protocol import Caller, StoreRefusal, Timer
from weightcast_server.store.rows import pull_of
from weightcast_server.store.siblings import load_siblings
from weightcast_server.store.transaction import Tx
from weightcast_server.store.transitions import fail_pull, open_pull

_HOLDERS = """
SELECT h.shard, h.worker_id, h.epoch, h.memory_slot, h.slot_generation,
       w.host, w.rack, w.zone, w.readers, w.memory_seq
FROM holdings h JOIN workers w ON w.worker_id = h.worker_id
WHERE h.model = ? AND h.version = ? AND h.state = 'held' AND w.state = 'live' AND w.epoch = h.epoch
"""


@dataclass(frozen=True, slots=True)
class _Chosen:
    """A shard and the rows of its holders, best first."""

    shard: sqlite3.Row
    holders: list[sqlite3.Row]


def assign_pull(tx: Tx, caller: Caller, model: str, body: RequestPull) -> Assignment | None:
    """The next assignment of the calling rank, or None when nothing newer can be had."""
    worker = fenced(tx, caller)
    if worker["model"] != model or worker["role"] != Role.ROLLOUT:
        raise StoreRefusal(Code.VALIDATION_FAILED, f"{caller.worker_id} is not a rollout of model {model}")
    current = open_pull(tx, caller.worker_id)
    if current is not None and current["state"] == PullState.APPLYING:
        return None  # not before the rank has told how that ended: ending it here would taint the rank
    staged = current["version"] if current is not None and current["state"] == PullState.STAGED else 0
    version = _choose_version(tx, worker, max(body.have_version, staged))
    if current is not None and version == current["version"] and current["state"] == PullState.ASSIGNED:
        again = _still_readable(tx, current, body.exclude)
        if again is not None:
            return _assignment(tx, current, again)
    chosen = None if version is None else _choose_sources(tx, worker, version, body.exclude)
    # A rank that asks is not reading; what it has staged ends only when it is given something newer.
    if current is not None and (chosen is not None or PullState(current["state"]) in READING):
        fail_pull(tx, current, PullFailure.SUPERSEDED, "the rank asked for another assignment")
    if version is None or chosen is None:
        return None
    return _assignment(tx, _write_pull(tx, worker, version, chosen), chosen)


def _choose_version(tx: Tx, worker: sqlite3.Row, have_version: int) -> int | None:
    if worker["world_size"] > 1:
        siblings = load_siblings(tx.db, worker["model"], worker["replica"], worker["worker_id"])
        for version in meeting_versions(have_version, siblings):
            if version_available(tx.db, worker["model"], version):
                return version
    row = tx.one("SELECT target_version FROM models WHERE model = ?", worker["model"])
    target: int | None = row["target_version"] if row is not None else None
    return target if target is not None and target > have_version else None


def _choose_sources(tx: Tx, worker: sqlite3.Row, version: int, exclude: Sequence[str]) -> list[_Chosen] | None:
    by_shard: dict[int, dict[str, sqlite3.Row]] = {}
    for row in tx.db.execute(_HOLDERS, (worker["model"], version)):
        by_shard.setdefault(row["shard"], {})[row["worker_id"]] = row
    place = Place(worker["host"], worker["rack"], worker["zone"])
    excluded = frozenset(exclude)
    chosen = []
    for shard in _shards(tx, worker["model"], version):
        holders = by_shard.get(shard["shard"], {})
        candidates = [
            Candidate(row["worker_id"], Place(row["host"], row["rack"], row["zone"]), row["readers"])
            for row in holders.values()
        ]
        ranked = rank_sources(worker["worker_id"], place, excluded, candidates)[: tx.options.sources_per_shard]
        if not ranked:
            return None
        chosen.append(_Chosen(shard, [holders[source] for source in ranked]))
    return chosen


def _still_readable(tx: Tx, pull: sqlite3.Row, exclude: Sequence[str]) -> list[_Chosen] | None:
    held = {row["worker_id"]: row for row in tx.db.execute(_HOLDERS, (pull["model"], pull["version"]))}
    shards = {shard["shard"]: shard for shard in _shards(tx, pull["model"], pull["version"])}
    chosen = []
    for shard, sources in json.loads(pull["candidates"]):
        holders = [held.get(source) for source, _ in sources]
        readable = [
            row
            for row, (source, epoch) in zip(holders, sources, strict=True)
            if row is not None and row["epoch"] == epoch and source not in exclude
        ]
        if len(readable) < len(sources):
            return None
        chosen.append(_Chosen(shards[shard], readable))
    return chosen


def _write_pull(tx: Tx, worker: sqlite3.Row, version: int, chosen: list[_Chosen]) -> sqlite3.Row:
    previous = tx.one(
        "SELECT version, attempt FROM pulls WHERE worker_id = ? ORDER BY seq DESC LIMIT 1", worker["worker_id"]
    )
    step = tx.one("SELECT step FROM versions WHERE model = ? AND version = ?", worker["model"], version)
    fields = {
        "pull_id": uuid.uuid4().hex,
        "model": worker["model"],
        "version": version,
        "step": step["step"] if step is not None else 0,
        "worker_id": worker["worker_id"],
        "epoch": worker["epoch"],
        "replica": worker["replica"],
        "rank": worker["rank"],
        "attempt": previous["attempt"] + 1 if previous is not None and previous["version"] == version else 1,
        "state": PullState.ASSIGNED,
        "nbytes": sum(choice.shard["nbytes"] for choice in chosen),
        "assigned_at": tx.now,
        "updated_at": tx.now,
        "sources": json.dumps([choice.holders[0]["worker_id"] for choice in chosen]),
        "candidates": json.dumps(
            [[choice.shard["shard"], [[row["worker_id"], row["epoch"]] for row in choice.holders]] for choice in chosen]
        ),
    }
    row = tx.one(
        f"INSERT INTO pulls ({', '.join(fields)}) "  # noqa: S608 - names from this function
        f"VALUES ({', '.join('?' * len(fields))}) RETURNING *",
        *fields.values(),
    )
    if row is None:
        raise AssertionError
    tx.db.executemany(
        "INSERT INTO pull_sources VALUES (?, ?, ?, ?)",
        [
            (holder["worker_id"], version, row["pull_id"], int(position == 0))
            for choice in chosen
            for position, holder in enumerate(choice.holders)
        ],
    )
    tx.log.pulls.append(pull_of(row))
    tx.log.timers.append(Timer(PullKey(row["pull_id"]), tx.options.pull_timeout_seconds))
    tx.log.topics.add(ReplicaTopic(worker["model"], worker["replica"]))
    return row


def _assignment(tx: Tx, pull: sqlite3.Row, chosen: list[_Chosen]) -> Assignment:
    revision = tx.one("SELECT revision FROM models WHERE model = ?", pull["model"])
    return Assignment(
        pull=pull_of(pull),
        shards=[
            ShardSources(
                shard=choice.shard["shard"],
                layout_digest=choice.shard["layout_digest"],
                digest_root=choice.shard["digest_root"],
                nbytes=choice.shard["nbytes"],
                sources=[source for source in (_source(tx, row) for row in choice.holders) if source is not None],
            )
            for choice in chosen
        ],
        revision=revision["revision"] if revision is not None else 0,
    )


def _source(tx: Tx, row: sqlite3.Row) -> Source | None:
    served = tx.served.get(tx.db, row["worker_id"], row["epoch"], row["memory_seq"])
    if served.agent is None or row["memory_slot"] >= len(served.slots):
        return None
    return Source(
        worker_id=row["worker_id"],
        epoch=row["epoch"],
        host=row["host"],
        agent=served.agent,
        memory=served.slots[row["memory_slot"]],
        bucket_nbytes=served.bucket_nbytes,
        slot_generation=row["slot_generation"],
    )


def _shards(tx: Tx, model: str, version: int) -> list[sqlite3.Row]:
    return tx.all("SELECT * FROM shards WHERE model = ? AND version = ? ORDER BY shard", model, version)
