"""Holdings: deleted when overwritten, drained, reported broken, or when their worker's epoch ends."""

from __future__ import annotations

from weightcast.contract.problems import Code
from weightcast.contract.versions import Drained

from weightcast_server.store.fencing import fenced
from weightcast_server.store.protocol import Caller, StoreRefusal
from weightcast_server.store.transaction import Tx


def add_holding(
    tx: Tx, model: str, version: int, caller: Caller, shard: int, memory_slot: int, slot_generation: int
) -> None:
    """A worker's memory slot holds a shard from now on; what was reported of an earlier copy does not count."""
    tx.run(
        "DELETE FROM holding_reports WHERE model = ? AND version = ? AND worker_id = ?",
        *(model, version, caller.worker_id),
    )
    tx.run(
        "INSERT INTO holdings VALUES (?, ?, ?, ?, ?, ?, ?, 'held')",
        *(model, version, caller.worker_id, caller.epoch, shard, memory_slot, slot_generation),
    )
    tx.log.holdings_of.add(model)


def drop_overwritten(tx: Tx, model: str, worker_id: str, memory_slot: int) -> None:
    """The slot was filled anew: whatever it held is gone."""
    if tx.run("DELETE FROM holdings WHERE worker_id = ? AND memory_slot = ?", worker_id, memory_slot):
        tx.log.holdings_of.add(model)


def drop_holdings_of_worker(tx: Tx, model: str, worker_id: str) -> None:
    """The worker's epoch ended."""
    if tx.run("DELETE FROM holdings WHERE worker_id = ?", worker_id):
        tx.log.holdings_of.add(model)


def drop_holdings_of_version(tx: Tx, model: str, version: int) -> None:
    """The version failed."""
    if tx.run("DELETE FROM holdings WHERE model = ? AND version = ?", model, version):
        tx.log.holdings_of.add(model)


def drop_misfits(tx: Tx, model: str, worker_id: str, slot_sizes: list[int]) -> None:
    """Drop holdings whose memory slot is not registered any more, or too small now."""
    rows = tx.all(
        """
        SELECT h.version, h.memory_slot, s.nbytes FROM holdings h
        JOIN shards s ON s.model = h.model AND s.version = h.version AND s.shard = h.shard
        WHERE h.worker_id = ?
        """,
        worker_id,
    )
    for row in rows:
        if row["memory_slot"] >= len(slot_sizes) or slot_sizes[row["memory_slot"]] < row["nbytes"]:
            drop_overwritten(tx, model, worker_id, row["memory_slot"])


def report_broken(tx: Tx, model: str, version: int, source: str, epoch: int, reporter: str) -> None:
    """One more worker could not read a holding; enough of them end it."""
    held = tx.one(
        "SELECT 1 FROM holdings WHERE model = ? AND version = ? AND worker_id = ? AND epoch = ?",
        *(model, version, source, epoch),
    )
    if held is None:
        return
    tx.run("INSERT OR IGNORE INTO holding_reports VALUES (?, ?, ?, ?)", model, version, source, reporter)
    reports = tx.one(
        "SELECT count(*) AS n FROM holding_reports WHERE model = ? AND version = ? AND worker_id = ?",
        *(model, version, source),
    )
    if reports is not None and reports["n"] >= tx.options.broken_reports:
        _delete(tx, model, version, source)


def drain_holding(
    tx: Tx, caller: Caller | None, model: str, version: int, worker_id: str, *, final: bool
) -> Drained | None:
    """Stop assigning a holding, and delete it once nobody reads it or at the end (``final``)."""
    if caller is not None:
        fenced(tx, caller)
        if caller.worker_id != worker_id:
            raise StoreRefusal(Code.FORBIDDEN, f"{caller.worker_id} may not drain the holding of {worker_id}")
    if tx.one("SELECT 1 FROM versions WHERE model = ? AND version = ?", model, version) is None:
        raise StoreRefusal(Code.UNKNOWN_VERSION, f"{model} has no version {version}")
    key = (model, version, worker_id)
    holding = tx.one("SELECT state FROM holdings WHERE model = ? AND version = ? AND worker_id = ?", *key)
    if holding is None:
        return Drained(drained=True, readers=0)
    readers = count_readers(tx, version, worker_id)
    if final or not readers:
        _delete(tx, *key)
        return Drained(drained=not readers, readers=readers)
    if holding["state"] == "held":
        tx.run("UPDATE holdings SET state = 'draining' WHERE model = ? AND version = ? AND worker_id = ?", *key)
        tx.log.holdings_of.add(model)
    return None


def count_readers(tx: Tx, version: int, worker_id: str) -> int:
    """Pulls that may be reading this worker's copy of a version now."""
    row = tx.one("SELECT count(*) AS n FROM pull_sources WHERE source_id = ? AND version = ?", worker_id, version)
    return int(row["n"]) if row is not None else 0


def _delete(tx: Tx, model: str, version: int, worker_id: str) -> None:
    tx.run("DELETE FROM holdings WHERE model = ? AND version = ? AND worker_id = ?", model, version, worker_id)
    tx.log.holdings_of.add(model)
