"""What memory must know when a database was opened: workers, open deadlines, targets."""

from __future__ import annotations

import sqlite3

from weightcast_server.domain.keys import PullKey, VersionKey
from weightcast_server.store.models import load_targets
from weightcast_server.store.protocol import Changes, StoreOptions, Timer
from weightcast_server.store.rows import worker_fact


def load_everything(db: sqlite3.Connection, options: StoreOptions) -> Changes:
    """Every worker, every running deadline (from its full length) and every target."""
    timers = []
    models = [model for (model,) in db.execute("SELECT model FROM models")]
    for model in models:
        staging = db.execute(
            "SELECT version, deadline_seconds FROM versions WHERE model = ? AND state = 'staging'", (model,)
        )
        timers += [Timer(VersionKey(model, row["version"]), row["deadline_seconds"]) for row in staging]
        reading = db.execute(
            "SELECT pull_id FROM pulls WHERE model = ? AND state IN ('assigned', 'fetching')", (model,)
        )
        timers += [Timer(PullKey(row["pull_id"]), options.pull_timeout_seconds) for row in reading]
    return Changes(
        targets=load_targets(db),
        workers=tuple(worker_fact(row) for row in db.execute("SELECT * FROM workers")),
        timers=tuple(timers),
        reset=True,
    )
