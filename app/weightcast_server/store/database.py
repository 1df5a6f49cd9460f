"""The database file of the writer: opened, migrated, noticed when it is deleted, opened anew."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

import structlog

from weightcast_server.store.connection import FileIdentity, connect_writer, file_identity, log_files, remove_leftovers
from weightcast_server.store.lockfile import LockFile
from weightcast_server.store.migrations import load_migrations, migrate
from weightcast_server.store.protocol import Changes, StoreOptions, StoreStartError
from weightcast_server.store.readers import ReaderPool
from weightcast_server.store.recovery import load_everything
from weightcast_server.store.served import ServedCache

_log = structlog.get_logger(__name__)


class Database:
    """Owned by whichever thread writes, and locked against other servers.

    ``suspect`` asks for a new connection before the next batch.
    """

    def __init__(self, path: Path, options: StoreOptions, readers: ReaderPool, clock: Callable[[], float]) -> None:
        self._lock = LockFile(path)
        self.options = options
        self.clock = clock
        self.served = ServedCache()
        self.suspect = False
        self._path = path
        self._readers = readers
        self._db: sqlite3.Connection | None = None
        self._identity: FileIdentity | None = None
        self._log_identity: dict[Path, FileIdentity | None] = {}
        self._replaced = False

    @property
    def db(self) -> sqlite3.Connection:
        """The writing connection."""
        if self._db is None:
            raise sqlite3.OperationalError("the database is not open")
        return self._db

    def open(self) -> Changes:
        """Open or create the database; everything that memory must know.

        Raises:
            StoreStartError: the file is no database of this kind, or of a newer server.
        """
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._lock.acquire()
            return self._open()
        except StoreStartError:
            self._lock.release()
            raise
        except (OSError, sqlite3.Error) as error:
            self._lock.release()
            raise StoreStartError(f"cannot open the database {self._path}: {error}") from error

    def must_reopen(self) -> bool:
        """Whether the connection failed, or the path no longer names the file that is open."""
        return self.suspect or self._db is None or self._file_is_another() or not self._lock.held

    def reopen(self) -> Changes | None:
        """Connect again. What memory must know, if it is another file now (a new one when it was deleted)."""
        # Looked at while the old file is still open, because its inode number may be given to the next one.
        self._replaced = self._replaced or self._file_is_another()
        # Old connections go first: the last one to close removes "<path>-wal" where it still belongs to the path.
        with self._readers.paused():
            self._disconnect()
            if self._replaced:
                self._remove_old_log()
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._lock.renew()
            if file_identity(self._path) is None:
                remove_leftovers(self._path)
            changes = self._open()
        self.suspect = False
        if not self._replaced:
            return None
        self._replaced = False
        _log.warning("store.replaced", path=str(self._path), workers=len(changes.workers))
        return changes

    def _file_is_another(self) -> bool:
        return self._identity is None or file_identity(self._path) != self._identity

    def _remove_old_log(self) -> None:
        """Remove the log of the file that was open: SQLite leaves it when its file was moved away, and would replay it
        over the file that has taken its place. A log that came with the new file stays."""
        for log, identity in self._log_identity.items():
            if identity is not None and file_identity(log) == identity:
                log.unlink(missing_ok=True)

    def _open(self) -> Changes:
        db = connect_writer(self._path, self.options.synchronous)
        try:
            migrate(db, load_migrations(), self.clock())
            changes = load_everything(db, self.options)
        except BaseException:
            db.close()
            raise
        self._db = db
        self._identity = file_identity(self._path)
        self._log_identity = {log: file_identity(log) for log in log_files(self._path)}
        self.served.clear()
        return changes

    def close(self) -> None:
        """Close the connection, which also folds the log into the file, and give the lock back. Idempotent."""
        self._disconnect()
        self._lock.release()

    def _disconnect(self) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None
