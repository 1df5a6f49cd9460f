"""What a rank reports about its pull, and the permit to change live weights."""

from __future__ import annotations

import json
import sqlite3

from weightcast.contract.names import PullFailure, PullState
from weightcast.contract.problems import Code
from weightcast.contract.pulls import Pull, UpdatePull

from weightcast_server.domain.keys import PullKey, ReplicasTopic
from weightcast_server.domain.pulls import SERVER_FAILURES, SOURCE_FAILURES, Permit, Step, decide_permit, decide_step
from weightcast_server.store.fencing import fenced
from weightcast_server.store.holdings import report_broken
from weightcast_server.store.protocol import Caller, PullUpdated, StoreRefusal, Timer
from weightcast_server.store.rows import pull_of
from weightcast_server.store.siblings import load_siblings
from weightcast_server.store.transaction import CommittedRefusal, Tx
from weightcast_server.store.transitions import fail_pull, move_pull


def update_pull(tx: Tx, caller: Caller, pull_id: str, body: UpdatePull) -> PullUpdated | CommittedRefusal:
    """Move the caller's pull along."""
    worker = fenced(tx, caller)
    row = tx.one("SELECT * FROM pulls WHERE pull_id = ?", pull_id)
    if row is None:
        raise StoreRefusal(Code.UNKNOWN_PULL, f"there is no pull {pull_id}")
    if row["worker_id"] != caller.worker_id:
        raise StoreRefusal(Code.FORBIDDEN, f"pull {pull_id} belongs to {row['worker_id']}, not {caller.worker_id}")
    _check_failure(row, body)
    current, wanted = PullState(row["state"]), PullState(body.state)
    step = decide_step(current, wanted)
    if step is Step.REFUSED:
        raise _refused(row, wanted)
    if step is Step.SAME and wanted is not PullState.FETCHING:
        return PullUpdated(pull_of(row), granted=True, changed=False)
    match wanted:
        case PullState.FETCHING:
            return _fetching(tx, row, body, moved=step is Step.MOVE)
        case PullState.STAGED:
            return _changed(move_pull(tx, row, wanted, **_measured(body)))
        case PullState.APPLYING:
            return _applying(tx, worker, row)
        case PullState.APPLIED:
            return _changed(_applied(tx, row, body))
        case _:
            return _changed(_failed(tx, row, body))


def _check_failure(row: sqlite3.Row, body: UpdatePull) -> None:
    if body.failure in SERVER_FAILURES:
        raise StoreRefusal(Code.VALIDATION_FAILED, f"failure {body.failure} is decided by the server")
    if body.failed_source is not None and body.failed_source not in _sources(row):
        raise StoreRefusal(Code.VALIDATION_FAILED, f"{body.failed_source} is no source of pull {row['pull_id']}")


def _sources(row: sqlite3.Row) -> dict[str, int]:
    return {source: epoch for _, sources in json.loads(row["candidates"]) for source, epoch in sources}


def _refused(row: sqlite3.Row, wanted: PullState) -> StoreRefusal:
    if row["state"] == PullState.FAILED and row["failure"] == PullFailure.SUPERSEDED:
        # Also the answer to a repeated request for the permit whose first refusal was lost.
        return StoreRefusal(Code.PULL_SUPERSEDED, f"pull {row['pull_id']} of version {row['version']} was superseded")
    failure = f" ({row['failure']})" if row["failure"] is not None else ""
    return StoreRefusal(Code.PULL_STATE, f"pull {row['pull_id']} is {row['state']}{failure}, it cannot be {wanted}")


def _fetching(tx: Tx, row: sqlite3.Row, body: UpdatePull, *, moved: bool) -> PullUpdated:
    tx.log.timers.append(Timer(PullKey(row["pull_id"]), tx.options.pull_timeout_seconds))
    if moved:
        return _changed(move_pull(tx, row, PullState.FETCHING, **_measured(body)))
    written = tx.one(
        "UPDATE pulls SET bytes_done = coalesce(?, bytes_done), transport = coalesce(?, transport), updated_at = ? "
        "WHERE pull_id = ? RETURNING *",
        *(body.bytes_done, body.transport, tx.now, row["pull_id"]),
    )
    return PullUpdated(pull_of(written or row), granted=True, changed=False)


def _applying(tx: Tx, worker: sqlite3.Row, row: sqlite3.Row) -> PullUpdated | CommittedRefusal:
    siblings = load_siblings(tx.db, row["model"], row["replica"], row["worker_id"])
    match decide_permit(row["version"], worker["world_size"], worker["rank"], siblings):
        case Permit.GRANTED:
            return _changed(move_pull(tx, row, PullState.APPLYING))
        case Permit.WAIT:
            return PullUpdated(pull_of(row), granted=False, changed=False)
        case Permit.SUPERSEDED:
            detail = f"another rank of replica {row['replica']} is on its way to a newer version than {row['version']}"
            fail_pull(tx, row, PullFailure.SUPERSEDED, detail)
            return CommittedRefusal(StoreRefusal(Code.PULL_SUPERSEDED, detail))


def _applied(tx: Tx, row: sqlite3.Row, body: UpdatePull) -> Pull:
    tx.run(
        "UPDATE workers SET serving_version = ?, tainted = 0, pause_seconds = ? WHERE worker_id = ?",
        *(row["version"], body.pause_seconds, row["worker_id"]),
    )
    tx.log.topics.add(ReplicasTopic(row["model"]))
    return move_pull(tx, row, PullState.APPLIED, **_measured(body))


def _failed(tx: Tx, row: sqlite3.Row, body: UpdatePull) -> Pull:
    failure = body.failure or PullFailure.INTERNAL
    if body.failed_source is not None and failure in SOURCE_FAILURES:
        epoch = _sources(row)[body.failed_source]
        report_broken(tx, row["model"], row["version"], body.failed_source, epoch, row["worker_id"])
    return fail_pull(
        tx,
        row,
        failure,
        body.reason,
        tainted=body.tainted,
        failed_source=body.failed_source,
        **_measured(body),
    )


def _measured(body: UpdatePull) -> dict[str, object]:
    fields = {
        "bytes_done": body.bytes_done,
        "fetch_seconds": body.fetch_seconds,
        "pause_seconds": body.pause_seconds,
        "transport": body.transport,
        "digest": body.digest,
    }
    return {name: value for name, value in fields.items() if value is not None}


def _changed(pull: Pull) -> PullUpdated:
    return PullUpdated(pull, granted=True, changed=True)
