"""Reads: a few threads, each with a read-only connection on a WAL snapshot. Writers never wait for them."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from weightcast_server.store.connection import connect_reader
from weightcast_server.store.protocol import StoreUnavailable

T = TypeVar("T")


class ReaderPool:
    """Runs read functions. A token per thread carries its connection, None until it is first needed."""

    def __init__(self, path: Path, threads: int) -> None:
        self._path = path
        self._threads = threads
        self._tokens: queue.LifoQueue[sqlite3.Connection | None] = queue.LifoQueue()
        for _ in range(threads):
            self._tokens.put(None)
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix="store-read")

    async def run(self, read: Callable[[sqlite3.Connection], T]) -> T:
        """Run ``read`` in one read transaction on a reader thread."""
        try:
            future = asyncio.get_running_loop().run_in_executor(self._executor, self._read, read)
        except RuntimeError as error:
            raise StoreUnavailable("the store is closed") from error
        return await future

    def _read(self, read: Callable[[sqlite3.Connection], T]) -> T:
        db = self._tokens.get()
        try:
            if db is None:
                db = connect_reader(self._path)
            db.execute("BEGIN")
            try:
                return read(db)
            finally:
                if db.in_transaction:
                    db.execute("ROLLBACK")
        except sqlite3.Error as error:
            # A connection that failed once is not trusted again.
            if db is not None:
                db.close()
            db = None
            raise StoreUnavailable(f"the store cannot be read: {error}") from error
        finally:
            self._tokens.put(db)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Close every connection and let no read begin until the block ends: the file is being replaced."""
        held = [self._tokens.get() for _ in range(self._threads)]
        try:
            for db in held:
                if db is not None:
                    db.close()
            yield
        finally:
            for _ in held:
                self._tokens.put(None)

    def close(self) -> None:
        """Let running reads finish, then close."""
        self._executor.shutdown(wait=True)
        with self.paused():
            pass
