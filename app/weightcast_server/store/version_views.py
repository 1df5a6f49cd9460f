"""Versions as they are shown: with holdings, and with the replicas that serve them."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass

from weightcast.contract.names import HoldingState, VersionState
from weightcast.contract.problems import Code
from weightcast.contract.versions import Holding, Version, VersionList

from weightcast_server.domain.availability import Coverage, is_available
from weightcast_server.store.models import require_model
from weightcast_server.store.pages import cut, number_cursor
from weightcast_server.store.protocol import StoreRefusal

_SERVING = """
SELECT r.replica, r.world_size, count(*) AS live,
       min(CASE WHEN w.tainted THEN 0 ELSE coalesce(w.serving_version, 0) END) AS level
FROM replicas r JOIN workers w ON w.model = r.model AND w.replica = r.replica AND w.role = 'rollout'
WHERE r.model = ? AND w.state = 'live' AND w.rank < r.world_size
GROUP BY r.replica
"""

_HOLDINGS = """
SELECT h.worker_id, h.epoch, h.shard, h.state,
       (SELECT count(*) FROM pull_sources s WHERE s.source_id = h.worker_id AND s.version = h.version) AS readers
FROM holdings h WHERE h.model = ? AND h.version = ? ORDER BY h.shard, h.worker_id
"""


@dataclass(frozen=True, slots=True)
class _Serving:
    """A replica with live ranks, and the version that all of them have reached."""

    replica: str
    complete: bool
    level: int


def get_version(db: sqlite3.Connection, model: str, version: int) -> Version:
    """One version."""
    require_model(db, model)
    row = db.execute("SELECT * FROM versions WHERE model = ? AND version = ?", (model, version)).fetchone()
    if row is None:
        raise StoreRefusal(Code.UNKNOWN_VERSION, f"{model} has no version {version}")
    return _version(db, row, _load_serving(db, model))


def list_versions(
    db: sqlite3.Connection, model: str, state: VersionState | None, cursor: str | None, limit: int
) -> VersionList:
    """Versions of a model, newest first."""
    require_model(db, model)
    rows = db.execute(
        f"SELECT * FROM versions WHERE model = ? {'AND state = ?' if state is not None else ''} "  # noqa: S608
        "AND version < ? ORDER BY version DESC LIMIT ?",
        (model, *([state] if state is not None else []), number_cursor(cursor), limit + 1),
    ).fetchall()
    page, more = cut(rows, limit)
    serving = _load_serving(db, model)
    items = [_version(db, row, serving) for row in page]
    return VersionList(items=items, next_cursor=str(page[-1]["version"]) if more else None)


def _load_serving(db: sqlite3.Connection, model: str) -> list[_Serving]:
    return [
        _Serving(row["replica"], row["live"] == row["world_size"], row["level"])
        for row in db.execute(_SERVING, (model,))
    ]


def _version(db: sqlite3.Connection, row: sqlite3.Row, serving: list[_Serving]) -> Version:
    key = (row["model"], row["version"])
    holdings = [
        Holding(
            worker_id=holding["worker_id"],
            epoch=holding["epoch"],
            shard=holding["shard"],
            state=holding["state"],
            readers=holding["readers"],
        )
        for holding in db.execute(_HOLDINGS, key)
    ]
    slots = db.execute("SELECT slot FROM published WHERE model = ? AND version = ? ORDER BY slot", key)
    covered = [holding.shard for holding in holdings if holding.state is HoldingState.HELD]
    state = VersionState(row["state"])
    return Version(
        model=row["model"],
        version=row["version"],
        run=row["run"],
        step=row["step"],
        attempt=row["attempt"],
        state=state,
        failure=row["failure"],
        reason=row["reason"],
        world_size=row["world_size"],
        shards=row["shards"],
        published=[slot for (slot,) in slots],
        nbytes=row["nbytes"],
        opened_at=row["opened_at"],
        ready_at=row["ready_at"],
        failed_at=row["failed_at"],
        available=is_available(Coverage(row["version"], state, row["shards"], covered)),
        holdings=holdings,
        applied=[replica.replica for replica in serving if replica.complete and replica.level >= row["version"]],
        live_replicas=len(serving),
    )
