"""Layouts: blobs named by their digest, stored once and never looked into."""

from __future__ import annotations

import sqlite3

from weightcast.contract.problems import Code

from weightcast_server.store.fencing import fenced
from weightcast_server.store.protocol import Caller, StoreRefusal
from weightcast_server.store.transaction import Tx


def put_layout(tx: Tx, caller: Caller, model: str, digest: str, blob: bytes, nbytes: int) -> bool:
    """Keep a layout of the caller's model; False when it was there."""
    row = fenced(tx, caller)
    if row["model"] != model:
        raise StoreRefusal(Code.VALIDATION_FAILED, f"{caller.worker_id} is not a worker of model {model}")
    if tx.one("SELECT 1 FROM layouts WHERE model = ? AND digest = ?", model, digest) is not None:
        return False
    tx.run("INSERT INTO layouts VALUES (?, ?, ?, ?, ?)", model, digest, nbytes, tx.now, blob)
    return True


def get_layout(db: sqlite3.Connection, model: str, digest: str) -> bytes:
    """The blob as it was uploaded."""
    row = db.execute("SELECT blob FROM layouts WHERE model = ? AND digest = ?", (model, digest)).fetchone()
    if row is None:
        raise StoreRefusal(Code.UNKNOWN_LAYOUT, f"model {model} has no layout {digest}")
    blob: bytes = row["blob"]
    return blob
