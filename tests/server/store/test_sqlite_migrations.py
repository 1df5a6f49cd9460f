"""Migrations: in order, once, whole, and never edited."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from support.stores import Recorder
from weightcast_server.store.migrations import Migration, load_migrations, migrate
from weightcast_server.store.protocol import StoreStartError
from weightcast_server.store.sqlite import SQLiteStore

ONE = Migration(1, "one", "CREATE TABLE a (x INTEGER) STRICT;\nINSERT INTO a VALUES (1);\n")
TWO = Migration(
    2,
    "two",
    "-- a trigger has semicolons inside\n"
    "CREATE TRIGGER t AFTER INSERT ON a BEGIN\n  UPDATE a SET x = x + 1;\n  SELECT 1;\nEND;\n"
    "INSERT INTO a VALUES (5);\n-- the end\n",
)


@pytest.fixture
def db(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(tmp_path / "m.db", isolation_level=None)
    yield connection
    connection.close()


def test_each_is_applied_once_and_in_order(db: sqlite3.Connection) -> None:
    assert migrate(db, [ONE], 1.0) == [1]
    assert migrate(db, [ONE, TWO], 2.0) == [2]
    assert migrate(db, [ONE, TWO], 3.0) == []
    assert db.execute("SELECT x FROM a ORDER BY x").fetchall() == [(2,), (6,)]
    rows = db.execute("SELECT number, name, applied_at FROM schema_migrations").fetchall()
    assert rows == [(1, "one", 1.0), (2, "two", 2.0)]


def test_an_edited_one_is_refused(db: sqlite3.Connection) -> None:
    migrate(db, [ONE], 1.0)
    with pytest.raises(StoreStartError, match="0001_one"):
        migrate(db, [replace(ONE, sql=ONE.sql + "-- changed"), TWO], 2.0)
    assert not db.in_transaction


def test_a_newer_schema_is_refused(db: sqlite3.Connection) -> None:
    migrate(db, [ONE, TWO], 1.0)
    with pytest.raises(StoreStartError, match="newer server"):
        migrate(db, [ONE], 2.0)


@pytest.mark.parametrize("tail", ["INSERT INTO nowhere VALUES (1);\n", "INSERT INTO a VALUES (2)\n"])
def test_a_broken_one_leaves_nothing_behind(db: sqlite3.Connection, tail: str) -> None:
    broken = replace(ONE, sql=ONE.sql + tail)
    with pytest.raises((sqlite3.Error, StoreStartError)):
        migrate(db, [broken], 1.0)
    assert not db.in_transaction
    assert db.execute("SELECT name FROM sqlite_master").fetchall() == []


@pytest.mark.anyio
async def test_the_schema_of_this_build_is_what_a_new_file_gets(tmp_path: Path) -> None:
    path = tmp_path / "weightcast.db"
    store = SQLiteStore(path)
    await store.start(Recorder())
    await store.close()
    connection = sqlite3.connect(path)
    recorded = connection.execute("SELECT number, sha256 FROM schema_migrations").fetchall()
    connection.close()
    assert recorded == [(migration.number, migration.sha256) for migration in load_migrations()]
