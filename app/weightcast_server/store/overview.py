"""Reads over all models: their list, and how many versions there are in which state."""

from __future__ import annotations

import sqlite3

from weightcast.contract.names import VersionState
from weightcast.contract.versions import Model, ModelList

from weightcast_server.store.pages import cut

_MODELS = """
SELECT m.model, m.run, m.revision, m.target_version AS version, v.step, v.ready_at
FROM models m LEFT JOIN versions v ON v.model = m.model AND v.version = m.target_version
WHERE m.model > ? ORDER BY m.model LIMIT ?
"""


def list_models(db: sqlite3.Connection, cursor: str | None, limit: int) -> ModelList:
    """Models by name."""
    rows = db.execute(_MODELS, (cursor or "", limit + 1)).fetchall()
    page, more = cut(rows, limit)
    items = [Model.model_validate(dict(row)) for row in page]
    return ModelList(items=items, next_cursor=items[-1].model if more else None)


def count_versions(db: sqlite3.Connection) -> dict[VersionState, int]:
    """Versions of all models by state."""
    return {
        VersionState(state): count for state, count in db.execute("SELECT state, count(*) FROM versions GROUP BY state")
    }
