"""Numbered SQL migrations: each applied once, in order, in one transaction, and recorded with its checksum."""

from __future__ import annotations

import hashlib
import re
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources

from weightcast_server.store.protocol import StoreStartError

_FILE_NAME = re.compile(r"^(\d{4})_([a-z0-9_]+)\.sql$")

_TABLE = """
CREATE TABLE IF NOT EXISTS schema_migrations (
    number     INTEGER PRIMARY KEY,
    name       TEXT NOT NULL,
    sha256     TEXT NOT NULL,
    applied_at REAL NOT NULL
) STRICT
"""


@dataclass(frozen=True, slots=True)
class Migration:
    """One step of the schema."""

    number: int
    name: str
    sql: str

    @property
    def sha256(self) -> str:
        """Checksum of the text: an applied migration must never be edited."""
        return hashlib.sha256(self.sql.encode()).hexdigest()


def load_migrations() -> list[Migration]:
    """The migrations in this package, in order; numbers run from 1 without gaps."""
    found = []
    for file in resources.files("weightcast_server.store").joinpath("sql").iterdir():
        match = _FILE_NAME.match(file.name)
        if match:
            found.append(Migration(int(match[1]), match[2], file.read_text("utf-8")))
    found.sort(key=lambda migration: migration.number)
    if [migration.number for migration in found] != list(range(1, len(found) + 1)):
        raise StoreStartError(f"the migrations are not numbered 1..n: {[migration.number for migration in found]}")
    return found


def migrate(db: sqlite3.Connection, migrations: Sequence[Migration], now: float) -> list[int]:
    """Bring the schema up to date under the database's exclusive lock; the numbers that were applied now.

    Raises:
        StoreStartError: the database was written by a newer server, or an applied migration was edited.
    """
    applied_now: list[int] = []
    db.execute("BEGIN EXCLUSIVE")
    try:
        db.execute(_TABLE)
        applied = {row[0]: row[1] for row in db.execute("SELECT number, sha256 FROM schema_migrations")}
        _check_applied(applied, migrations)
        for migration in migrations[len(applied) :]:
            for statement in _statements(migration.sql):
                db.execute(statement)
            db.execute(
                "INSERT INTO schema_migrations VALUES (?, ?, ?, ?)",
                (migration.number, migration.name, migration.sha256, now),
            )
            applied_now.append(migration.number)
    except BaseException:
        db.execute("ROLLBACK")
        raise
    db.execute("COMMIT")
    return applied_now


def _check_applied(applied: Mapping[int, str], migrations: Sequence[Migration]) -> None:
    if len(applied) > len(migrations):
        raise StoreStartError(
            f"the database has schema {len(applied)}, this server knows {len(migrations)}: start a newer server"
        )
    for migration in migrations[: len(applied)]:
        if applied.get(migration.number) != migration.sha256:
            raise StoreStartError(f"migration {migration.number:04}_{migration.name} is not the one that was applied")


def _statements(sql: str) -> Iterator[str]:
    # executescript() would commit the transaction that makes a migration all or nothing.
    statement = ""
    for line in sql.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
    if statement.strip() and not all(line.startswith("--") for line in statement.strip().splitlines()):
        raise StoreStartError(f"a migration ends in the middle of a statement: {statement.strip()[:80]!r}")
