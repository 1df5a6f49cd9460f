"""Models: the revision that watchers compare, and the target that replicas should serve."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator

from weightcast.contract.names import VersionState
from weightcast.contract.problems import Code
from weightcast.contract.versions import Target

from weightcast_server.domain.availability import Coverage, choose_target, is_available
from weightcast_server.domain.keys import RevisionTopic, TargetTopic
from weightcast_server.store.protocol import StoreRefusal
from weightcast_server.store.transaction import Tx

_TARGET = """
SELECT m.model, m.revision, m.target_version, v.step, v.ready_at
FROM models m LEFT JOIN versions v ON v.model = m.model AND v.version = m.target_version
"""


def load_target(db: sqlite3.Connection, model: str) -> Target:
    """Revision and target of a model."""
    row = db.execute(_TARGET + "WHERE m.model = ?", (model,)).fetchone()
    if row is None:
        raise StoreRefusal(Code.UNKNOWN_MODEL, f"no worker of model {model} has ever registered")
    return _target(row)


def load_targets(db: sqlite3.Connection, models: Iterable[str] | None = None) -> dict[str, Target]:
    """Targets by model; of all models if none are named."""
    if models is not None:
        return {model: load_target(db, model) for model in models}
    return {row["model"]: _target(row) for row in db.execute(_TARGET)}


def require_model(db: sqlite3.Connection, model: str) -> None:
    """Refuse a model that never had a worker."""
    if db.execute("SELECT 1 FROM models WHERE model = ?", (model,)).fetchone() is None:
        raise StoreRefusal(Code.UNKNOWN_MODEL, f"no worker of model {model} has ever registered")


def version_available(db: sqlite3.Connection, model: str, version: int) -> bool:
    """Whether a version can be had now."""
    row = db.execute("SELECT state, shards FROM versions WHERE model = ? AND version = ?", (model, version)).fetchone()
    return row is not None and is_available(_coverage(db, model, version, row))


def settle_targets(tx: Tx) -> None:
    """Choose the target of every model whose holdings or READY versions changed, as the last step of an operation.

    The revision grows once per operation that changed the target or the state of a version.
    """
    for model in tx.log.holdings_of:
        row = tx.one("SELECT target_version FROM models WHERE model = ?", model)
        target = choose_target(_newest_first(tx.db, model))
        if row is not None and row["target_version"] != target:
            tx.run("UPDATE models SET target_version = ? WHERE model = ?", target, model)
            tx.log.topics.add(TargetTopic(model))
            tx.log.revised.add(model)
    for model in tx.log.revised:
        tx.run("UPDATE models SET revision = revision + 1 WHERE model = ?", model)
        tx.log.topics.add(RevisionTopic(model))


def _newest_first(db: sqlite3.Connection, model: str) -> Iterator[Coverage]:
    # Only versions with holdings can be available, and holdings are as few as the memory that holds them.
    rows = db.execute(
        """
        SELECT v.version, v.state, v.shards FROM versions v
        WHERE v.model = ? AND v.version IN (SELECT DISTINCT version FROM holdings WHERE model = ?)
        ORDER BY v.version DESC
        """,
        (model, model),
    )
    for row in rows:
        yield _coverage(db, model, row["version"], row)


def _coverage(db: sqlite3.Connection, model: str, version: int, row: sqlite3.Row) -> Coverage:
    covered = db.execute(
        "SELECT DISTINCT shard FROM holdings WHERE model = ? AND version = ? AND state = 'held'", (model, version)
    )
    return Coverage(version, VersionState(row["state"]), row["shards"], [shard for (shard,) in covered])


def _target(row: sqlite3.Row) -> Target:
    return Target(
        model=row["model"],
        revision=row["revision"],
        version=row["target_version"],
        step=row["step"],
        ready_at=row["ready_at"],
    )
