"""The only places where the state of a version or a pull is written."""

from __future__ import annotations

import sqlite3

from weightcast.contract.names import PullFailure, PullState, VersionFailure, VersionState
from weightcast.contract.pulls import Pull

from weightcast_server.domain.keys import PullKey, ReadersTopic, ReplicasTopic, ReplicaTopic, VersionKey, VersionTopic
from weightcast_server.domain.pulls import READING, taints
from weightcast_server.store.holdings import drop_holdings_of_version
from weightcast_server.store.protocol import Timer, VersionFact
from weightcast_server.store.rows import pull_of
from weightcast_server.store.transaction import Tx


def version_ready(tx: Tx, model: str, version: int) -> None:
    """STAGING becomes READY."""
    row = tx.one(
        """
        UPDATE versions SET state = 'ready', ready_at = ? WHERE model = ? AND version = ? AND state = 'staging'
        RETURNING *
        """,
        *(tx.now, model, version),
    )
    _log_version(tx, row)


def fail_version(tx: Tx, model: str, version: int, failure: VersionFailure, reason: str) -> None:
    """STAGING becomes FAILED; what was published of it is no longer a holding."""
    row = tx.one(
        """
        UPDATE versions SET state = 'failed', failure = ?, reason = ?, failed_at = ?
        WHERE model = ? AND version = ? AND state = 'staging'
        RETURNING *
        """,
        *(failure, reason or None, tx.now, model, version),
    )
    drop_holdings_of_version(tx, model, version)
    _log_version(tx, row)


def _log_version(tx: Tx, row: sqlite3.Row | None) -> None:
    if row is None:
        return
    model, version = row["model"], row["version"]
    failure = VersionFailure(row["failure"]) if row["failure"] is not None else None
    tx.log.versions.append(
        VersionFact(model, version, VersionState(row["state"]), failure, opened_at=row["opened_at"], at=tx.now)
    )
    tx.log.timers.append(Timer(VersionKey(model, version), None))
    tx.log.topics.add(VersionTopic(model, version))
    tx.log.revised.add(model)
    tx.log.holdings_of.add(model)


def move_pull(tx: Tx, row: sqlite3.Row, state: PullState, **columns: object) -> Pull:
    """Write a new state, and further columns, of a pull."""
    columns = {**columns, "state": state, "updated_at": tx.now}
    assignments = ", ".join(f"{column} = ?" for column in columns)
    moved = tx.one(
        f"UPDATE pulls SET {assignments} WHERE pull_id = ? RETURNING *",  # noqa: S608 - names from this package
        *(*columns.values(), row["pull_id"]),
    )
    if moved is None:
        raise AssertionError
    pull = pull_of(moved)
    if PullState(row["state"]) in READING and state not in READING:
        _stop_reading(tx, pull.pull_id)
    tx.log.pulls.append(pull)
    tx.log.topics.add(ReplicaTopic(pull.model, pull.replica))
    return pull


def fail_pull(
    tx: Tx,
    row: sqlite3.Row,
    failure: PullFailure,
    reason: str | None,
    *,
    tainted: bool | None = None,
    **columns: object,
) -> Pull:
    """End a pull; weights that it may have touched taint its rank. ``tainted``: what the worker says, if it did."""
    pull = move_pull(tx, row, PullState.FAILED, failure=failure, reason=reason or None, **columns)
    if taints(PullState(row["state"]), reported=tainted):
        tx.run("UPDATE workers SET tainted = 1, serving_version = NULL WHERE worker_id = ?", pull.worker_id)
        tx.log.topics.add(ReplicasTopic(pull.model))
    return pull


def open_pull(tx: Tx, worker_id: str) -> sqlite3.Row | None:
    """The pull of a worker that has not ended; there is one at most."""
    return tx.one(
        "SELECT * FROM pulls WHERE worker_id = ? AND state IN ('assigned', 'fetching', 'staged', 'applying')",
        worker_id,
    )


def _stop_reading(tx: Tx, pull_id: str) -> None:
    for row in tx.all("SELECT source_id FROM pull_sources WHERE pull_id = ?", pull_id):
        tx.log.topics.add(ReadersTopic(row["source_id"]))
    tx.run("DELETE FROM pull_sources WHERE pull_id = ?", pull_id)
    tx.log.timers.append(Timer(PullKey(pull_id), None))
