"""The fence in front of every write of a worker, checked in the transaction that writes."""

from __future__ import annotations

import sqlite3

from weightcast.contract.names import WorkerState

from weightcast_server.domain.registration import check_fence
from weightcast_server.store.protocol import Caller
from weightcast_server.store.transaction import Tx, require


def fenced(tx: Tx, caller: Caller) -> sqlite3.Row:
    """The caller's row, if it may act under its epoch."""
    row = tx.one("SELECT * FROM workers WHERE worker_id = ?", caller.worker_id)
    if row is None:
        require(check_fence(caller.worker_id, caller.epoch, None, None))
        raise AssertionError
    require(check_fence(caller.worker_id, caller.epoch, row["epoch"], WorkerState(row["state"])))
    return row
