"""Connections to the database file, and which file they are connected to."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from typing import Literal, TypeAlias
from urllib.parse import quote

from weightcast_server.store.protocol import StoreStartError

FileIdentity: TypeAlias = tuple[int, int]
"""Device and inode: what a path names, as opposed to what it is called."""

MIN_SQLITE = (3, 37, 0)
"""STRICT tables; RETURNING is older."""

BUSY_SECONDS = 1.0
"""How long a foreign lock (a backup, a shell) is waited for before the store is unavailable."""


def file_identity(path: Path) -> FileIdentity | None:
    """The file that the path names now; None when there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def connect_writer(path: Path, synchronous: Literal["normal", "full"]) -> sqlite3.Connection:
    """Open the database for the only writer; the file is created if it is missing."""
    if sqlite3.sqlite_version_info < MIN_SQLITE:
        raise StoreStartError(f"SQLite {sqlite3.sqlite_version} is too old: 3.37 is needed")
    # NIXL metadata is a key to memory: nobody else may read the file. SQLite gives its WAL the same mode.
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    db = sqlite3.connect(
        path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False, cached_statements=512
    )
    try:
        db.row_factory = sqlite3.Row
        _set_up(db, path, synchronous)
    except BaseException:
        db.close()
        raise
    return db


def _set_up(db: sqlite3.Connection, path: Path, synchronous: str) -> None:
    if db.execute("PRAGMA journal_mode = WAL").fetchone()[0] != "wal":
        raise StoreStartError(f"{path} cannot use write-ahead logging: is it on a network file system?")
    db.execute(f"PRAGMA synchronous = {synchronous}")
    db.execute("PRAGMA foreign_keys = ON")
    db.execute("PRAGMA cache_size = -65536")


def connect_reader(path: Path) -> sqlite3.Connection:
    """Open the database read-only; every transaction sees one snapshot."""
    db = sqlite3.connect(
        f"file:{quote(str(path.absolute()))}?mode=ro",
        uri=True,
        timeout=BUSY_SECONDS,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=512,
    )
    db.row_factory = sqlite3.Row
    return db


def log_files(path: Path) -> list[Path]:
    """The files that SQLite keeps beside a database in WAL mode."""
    return [path.with_name(path.name + suffix) for suffix in ("-wal", "-shm")]


def remove_leftovers(path: Path) -> None:
    """Delete the log of a database file that is gone, or SQLite would take it for the log of the next one."""
    for log in log_files(path):
        log.unlink(missing_ok=True)
