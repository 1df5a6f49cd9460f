"""What only a file can suffer: restarts, deletion, damage, a full disk, a second server."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from support.stores import MODEL, Fleet, Recorder, digest, rollout_body
from weightcast.contract.problems import Code
from weightcast_server.domain.keys import PullKey, VersionKey
from weightcast_server.store.connection import file_identity
from weightcast_server.store.protocol import (
    Caller,
    Changes,
    StoreOptions,
    StoreRefusal,
    StoreStartError,
    StoreUnavailable,
)
from weightcast_server.store.sqlite import SQLiteStore
from weightcast_server.store.transaction import Tx

pytestmark = pytest.mark.anyio


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "folder" / "weightcast.db"


@pytest.fixture
async def store(path: Path, recorder: Recorder) -> AsyncIterator[SQLiteStore]:
    opened = SQLiteStore(path)
    await opened.start(recorder)
    yield opened
    await opened.close()


def delete(*files: Path) -> None:
    for file in files:
        file.unlink()


async def test_a_restart_restores_workers_targets_and_deadlines(path: Path, store: SQLiteStore) -> None:
    fleet = Fleet(store)
    trainer = await fleet.trainer()
    await fleet.publish([trainer], 1)
    staging = await fleet.open(trainer, 2, deadline_seconds=7.0)
    rollout = await fleet.rollout()
    pull = (await fleet.pull(rollout)).pull
    fetcher = await fleet.rollout("r1")
    fetching = await fleet.move(fetcher, (await fleet.pull(fetcher)).pull, "fetching")
    stager = await fleet.rollout("r2")
    await fleet.move(stager, (await fleet.pull(stager)).pull, "staged")
    left = await fleet.rollout("r9")
    await store.leave(left)
    target = await store.get_target(MODEL)
    await store.close()
    again, recorder = SQLiteStore(path, StoreOptions(pull_timeout_seconds=11.0)), Recorder()
    await again.start(recorder)
    (changes,) = recorder.take()
    assert changes.reset
    assert changes.targets == {MODEL: target}
    assert {(fact.worker_id, fact.epoch, fact.state.value) for fact in changes.workers} == {
        (trainer.worker_id, 1, "live"),
        (rollout.worker_id, 1, "live"),
        (fetcher.worker_id, 1, "live"),
        (stager.worker_id, 1, "live"),
        (left.worker_id, 1, "left"),
    }
    assert {timer.key: timer.seconds for timer in changes.timers} == {
        VersionKey(MODEL, staging): 7.0,
        PullKey(pull.pull_id): 11.0,
        PullKey(fetching.pull_id): 11.0,
    }
    await again.close()


async def test_many_at_once_are_few_commits(store: SQLiteStore, recorder: Recorder) -> None:
    recorder.take()
    registered = await asyncio.gather(*[store.register_worker(rollout_body(f"r{index}")) for index in range(2000)])
    batches = recorder.take()
    assert len(batches) < 200
    assert [fact.worker_id for changes in batches for fact in changes.workers] == [r.worker_id for r in registered]
    page = await store.list_workers(model=MODEL, role=None, state=None, cursor=None, limit=3000)
    assert len(page.items) == 2000


async def test_one_refused_operation_leaves_its_neighbours_alone(store: SQLiteStore) -> None:
    fleet = Fleet(store)

    def write_and_fail(tx: Tx) -> None:
        tx.run("INSERT INTO models (model) VALUES ('half')")
        tx.log.holdings_of.add("half")
        raise ZeroDivisionError

    outcomes = await asyncio.gather(
        fleet.rollout("r0"),
        fleet.rollout("r0", rank=1, world=2),
        store._write.submit(write_and_fail),
        store._write.submit(lambda tx: tx.run("INSERT INTO models (model) VALUES (?)", MODEL)),
        fleet.rollout("r1"),
        return_exceptions=True,
    )
    expected = [Caller, StoreRefusal, ZeroDivisionError, sqlite3.IntegrityError, Caller]
    assert [type(outcome) for outcome in outcomes] == expected
    replicas = await store.list_replicas(MODEL, cursor=None, limit=9)
    assert [replica.replica for replica in replicas.items] == ["r0", "r1"]
    assert [model.model for model in (await store.list_models(cursor=None, limit=9)).items] == [MODEL]


async def test_a_caller_that_went_away_hurts_nobody(store: SQLiteStore) -> None:
    fleet = Fleet(store)
    calls = [asyncio.create_task(fleet.rollout(f"r{index}")) for index in range(50)]
    await asyncio.sleep(0)
    for call in calls[::2]:
        call.cancel()
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert sum(isinstance(outcome, Caller) for outcome in outcomes) == 25
    await store.ping()


async def test_an_observer_that_fails_does_not_stop_the_store(path: Path) -> None:
    def broken(changes: object) -> None:
        if getattr(changes, "workers", ()):
            raise RuntimeError("observer")

    store = SQLiteStore(path)
    await store.start(broken)
    assert (await store.register_worker(rollout_body())).epoch == 1
    await store.close()


@pytest.mark.parametrize("everything", [True, False])
async def test_a_deleted_database_is_noticed_by_the_next_write(
    path: Path, store: SQLiteStore, recorder: Recorder, everything: bool
) -> None:
    fleet = Fleet(store)
    trainer = await fleet.trainer()
    version = (await fleet.publish([trainer], 1)).version
    recorder.take()
    delete(*(list(path.parent.iterdir()) if everything else [path]))
    with pytest.raises(StoreRefusal) as refused:
        await fleet.open(trainer, 2)
    assert refused.value.code is Code.UNKNOWN_WORKER
    reset = recorder.take()[0]
    assert reset.reset
    assert (reset.workers, reset.targets, reset.timers) == ((), {}, ())
    with pytest.raises(StoreRefusal) as refused:
        await store.get_target(MODEL)
    assert refused.value.code is Code.UNKNOWN_MODEL
    back = await fleet.trainer(previous_epoch=trainer.epoch, highest_version=version)
    assert back.epoch == trainer.epoch + 1
    assert (await fleet.publish([back], 1)).version == version + 1
    with pytest.raises(StoreStartError):
        await SQLiteStore(path).start(Recorder())
    await store.close()
    again = SQLiteStore(path)
    await again.start(Recorder())
    assert (await again.get_target(MODEL)).version == version + 1
    await again.close()


async def test_a_deleted_database_is_noticed_while_nobody_writes(path: Path) -> None:
    noticed = asyncio.Event()
    seen: list[Changes] = []

    def observe(changes: Changes) -> None:
        seen.append(changes)
        if len(seen) == 3:
            noticed.set()

    store = SQLiteStore(path)
    await store.start(observe)
    await Fleet(store).rollout()
    delete(path)
    await asyncio.wait_for(noticed.wait(), 20)
    assert [changes.reset for changes in seen] == [True, False, True]
    await store.close()
    assert file_identity(path) is not None


async def test_a_second_server_on_the_same_file_is_refused(path: Path, store: SQLiteStore) -> None:
    second = SQLiteStore(path)
    with pytest.raises(StoreStartError, match=f"process {os.getpid()}"):
        await second.start(Recorder())
    await second.close()
    await store.ping()
    await store.close()
    third = SQLiteStore(path)
    await third.start(Recorder())
    await third.close()


async def test_a_locked_database_is_unavailable_and_comes_back(path: Path, store: SQLiteStore) -> None:
    foreign = sqlite3.connect(path, isolation_level=None)
    foreign.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreUnavailable):
        await store.ping()
    foreign.execute("ROLLBACK")
    foreign.close()
    await store.ping()


async def test_a_full_disk_is_unavailable_and_nothing_is_half_written(store: SQLiteStore, recorder: Recorder) -> None:
    fleet = Fleet(store)
    trainer = await fleet.trainer()
    pages = store._database.db.execute("PRAGMA page_count").fetchone()[0]
    store._database.db.execute(f"PRAGMA max_page_count = {pages + 4}")
    recorder.take()
    outcomes = await asyncio.gather(
        fleet.rollout("r0"),
        store.put_layout(trainer, MODEL, digest("large"), bytes(10_000_000), 1),
        return_exceptions=True,
    )
    assert StoreUnavailable in {type(outcome) for outcome in outcomes}
    with pytest.raises(StoreRefusal):
        await store.get_layout(MODEL, digest("large"))
    kept = {fact.worker_id for changes in recorder.take() for fact in changes.workers}
    page = await store.list_workers(model=MODEL, role=None, state=None, cursor=None, limit=9)
    assert {worker.worker_id for worker in page.items} == kept | {trainer.worker_id}
    assert await store.put_layout(trainer, MODEL, digest("large"), bytes(10_000_000), 1), "the disk has room again"


async def test_a_closed_store_says_so(store: SQLiteStore, path: Path) -> None:
    await store.close()
    await store.close()
    for call in (store.ping(), store.get_target(MODEL), store.register_worker(rollout_body())):
        with pytest.raises(StoreUnavailable):
            await call
    with pytest.raises(StoreUnavailable):
        await SQLiteStore(path).ping()


def test_what_is_no_database_is_left_alone(path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b"precious notes " * 1000)
    with pytest.raises(StoreStartError, match="not a database"):
        asyncio.run(SQLiteStore(path).start(Recorder()))
    assert path.read_bytes().startswith(b"precious notes")
    path.unlink()
    path.mkdir()
    with pytest.raises(StoreStartError):
        asyncio.run(SQLiteStore(path).start(Recorder()))


async def test_nobody_else_can_read_the_file(path: Path, store: SQLiteStore) -> None:
    await Fleet(store).rollout()
    assert {file.name: file.stat().st_mode & 0o077 for file in path.parent.iterdir()} == {
        "weightcast.db": 0,
        "weightcast.db-wal": 0,
        "weightcast.db-shm": 0,
        "weightcast.db.lock": 0,
    }


async def test_a_database_restored_while_it_is_open_is_not_mixed_with_the_old_log(
    store: SQLiteStore, path: Path, tmp_path: Path
) -> None:
    fleet, backup = Fleet(store), tmp_path / "backup.db"
    trainer = await fleet.trainer()
    await fleet.publish([trainer], 1)
    with contextlib.closing(sqlite3.connect(path)) as source, contextlib.closing(sqlite3.connect(backup)) as target:
        source.backup(target)
    for step in range(2, 30):
        await fleet.publish([trainer], step)
    backup.replace(path)
    await asyncio.sleep(1.2)
    successor = await fleet.trainer()
    versions = (await store.list_versions(MODEL, state=None, cursor=None, limit=100)).items
    assert [version.version for version in versions] == [1]
    await fleet.publish([successor], 50)
    await store.close()
    with contextlib.closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
