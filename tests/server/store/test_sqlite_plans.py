"""No statement reads a whole table that grows with the steps of a training run."""

from __future__ import annotations

import re
import sqlite3
from pathlib import Path

import pytest
from support.stores import MODEL, Fleet, Recorder, agents, memory
from weightcast.contract.names import PullState, VersionState
from weightcast.contract.workers import UpdateMemory
from weightcast_server.domain.keys import PullKey, VersionKey
from weightcast_server.store import readers
from weightcast_server.store.connection import connect_reader
from weightcast_server.store.protocol import StoreOptions
from weightcast_server.store.recovery import load_everything
from weightcast_server.store.sqlite import SQLiteStore

GROWING = ("versions", "published", "shards", "pulls", "pull_sources", "holdings", "holding_reports", "layouts")
"""Holdings and readers are bounded by memory, but not by so little that they may be read as a whole."""


@pytest.mark.anyio
async def test_every_statement_searches_growing_tables_by_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "weightcast.db"
    statements: set[str] = set()

    def traced(file: Path) -> sqlite3.Connection:
        db = connect_reader(file)
        db.set_trace_callback(statements.add)
        return db

    monkeypatch.setattr(readers, "connect_reader", traced)
    store = SQLiteStore(path)
    await store.start(Recorder())
    store._database.db.set_trace_callback(statements.add)
    await exercise(store)
    await store.close()
    restarted = traced(path)
    load_everything(restarted, StoreOptions())
    restarted.close()

    db = sqlite3.connect(path)
    explained = 0
    for statement in statements:
        if not re.match(r"\s*(SELECT|INSERT|UPDATE|DELETE)", statement):
            continue
        explained += 1
        for *_, detail in db.execute(f"EXPLAIN QUERY PLAN {statement}"):
            aliases = "|".join([*GROWING, "v", "p", "h", "s"])
            assert not re.match(rf"SCAN ({aliases})\b", detail), f"{detail}: {statement}"
    db.close()
    assert explained > 60


async def exercise(store: SQLiteStore) -> None:
    """Call everything that a store can do."""
    fleet = Fleet(store)
    trainers = [await fleet.trainer(rank, 2) for rank in range(2)]
    for step in (1, 2, 3):
        await fleet.publish(trainers, step)
    aborted = await fleet.open(trainers[0], 9, 2)
    await store.abort_version(trainers[0], MODEL, aborted, "")
    late = await fleet.open(trainers[0], 10, 2)
    await store.expire([VersionKey(MODEL, late)])
    first, second = [await fleet.rollout("tp", rank, 2) for rank in range(2)]
    one, two = [(await fleet.pull(rank)).pull for rank in (first, second)]
    await fleet.pull(second)
    await fleet.move(first, one, "fetching", "fetching", "staged")
    await fleet.move(second, two, "staged")
    await fleet.move(first, one, "applying", "applied")
    await fleet.move(second, two, "failed", failure="source_stalled", failed_source=trainers[0].worker_id)
    await store.expire([PullKey((await fleet.pull(second)).pull.pull_id)])
    await store.drain_holding(trainers[0], MODEL, 3, trainers[0].worker_id, final=False)
    await store.update_memory(trainers[1], UpdateMemory(agents=agents("x"), memory=memory(1)))
    await store.get_worker(first.worker_id)
    await store.get_pull(one.pull_id)
    await store.list_workers(model=MODEL, role=None, state=None, cursor=None, limit=9)
    await store.list_replicas(MODEL, cursor=None, limit=9)
    for state in (None, VersionState.READY):
        await store.list_versions(MODEL, state=state, cursor=None, limit=9)
    for pull_state, version, worker in (
        (None, None, None),
        (PullState.FAILED, None, None),
        (None, 3, None),
        (None, None, first.worker_id),
        (PullState.FAILED, 3, first.worker_id),
    ):
        await store.list_pulls(MODEL, state=pull_state, version=version, worker_id=worker, cursor=None, limit=9)
    await store.get_target(MODEL)
    await fleet.open(trainers[0], 11, 2)
    await fleet.trainer(0, 2)
    await store.expire([trainers[1], first])
    await store.leave(second)
