"""One server per database file: a lock that the kernel releases with the process, however it ends."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from weightcast_server.store.connection import file_identity
from weightcast_server.store.protocol import StoreStartError


class LockFile:
    """``<database>.lock``, held from :meth:`acquire` to :meth:`release`. The file itself stays."""

    def __init__(self, database: Path) -> None:
        self._path = database.with_name(database.name + ".lock")
        self._fd: int | None = None

    def acquire(self) -> None:
        """Take the lock at once or not at all.

        Raises:
            StoreStartError: another server has it.
        """
        try:
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StoreStartError(f"cannot create the lock file {self._path}: {error}") from error
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(fd, 32, 0).decode("ascii", "replace").strip()
            os.close(fd)
            raise StoreStartError(
                f"another server (process {holder or 'unknown'}) has this database open: {self._path} is locked"
            ) from error
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        self._fd = fd

    @property
    def held(self) -> bool:
        """Whether the lock is held on the file that has its name now."""
        if self._fd is None:
            return False
        held = os.fstat(self._fd)
        return file_identity(self._path) == (held.st_dev, held.st_ino)

    def renew(self) -> None:
        """Take the lock again if its file was deleted, perhaps together with the database.

        Raises:
            StoreStartError: another server was faster.
        """
        if not self.held:
            self.release()
            self.acquire()

    def release(self) -> None:
        """Give the lock back. Idempotent."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
