"""Leases and deadlines that ran out, ended together in one transaction."""

from __future__ import annotations

from collections.abc import Sequence

from weightcast.contract.names import PullFailure, PullState, VersionFailure, VersionState, WorkerState

from weightcast_server.domain.keys import ClockKey, PullKey, VersionKey, WorkerKey
from weightcast_server.domain.pulls import READING
from weightcast_server.store.protocol import Timer
from weightcast_server.store.transaction import Tx
from weightcast_server.store.transitions import fail_pull, fail_version
from weightcast_server.store.workers import end_worker


def expire(tx: Tx, keys: Sequence[ClockKey]) -> None:
    """End what ran out and has not moved on since the clock looked."""
    for key in keys:
        match key:
            case WorkerKey():
                _lose(tx, key)
            case VersionKey():
                _fail_staging(tx, key)
            case PullKey():
                _fail_reading(tx, key)


def _lose(tx: Tx, key: WorkerKey) -> None:
    row = tx.one("SELECT * FROM workers WHERE worker_id = ? AND epoch = ?", key.worker_id, key.epoch)
    if row is not None and row["state"] == WorkerState.LIVE:
        end_worker(tx, row, WorkerState.LOST, "its lease ended")


def _fail_staging(tx: Tx, key: VersionKey) -> None:
    row = tx.one("SELECT * FROM versions WHERE model = ? AND version = ?", key.model, key.version)
    if row is not None and row["state"] == VersionState.STAGING:
        detail = f"{row['published']} of {row['world_size']} slots published within {row['deadline_seconds']:g} s"
        fail_version(tx, key.model, key.version, VersionFailure.DEADLINE, detail)
    else:
        tx.log.timers.append(Timer(key, None))


def _fail_reading(tx: Tx, key: PullKey) -> None:
    row = tx.one("SELECT * FROM pulls WHERE pull_id = ?", key.pull_id)
    if row is not None and PullState(row["state"]) in READING:
        detail = f"no progress within {tx.options.pull_timeout_seconds:g} s"
        fail_pull(tx, row, PullFailure.DEADLINE, detail)
    else:
        tx.log.timers.append(Timer(key, None))
