"""The only writer: one thread that commits whatever is waiting as one transaction (group commit).

Every operation runs in a savepoint, so one that is refused leaves no trace while its neighbours are committed. Nothing
is answered before the commit.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import sqlite3
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import structlog

from weightcast_server.store.database import Database
from weightcast_server.store.models import load_targets, settle_targets
from weightcast_server.store.protocol import Changes, OnCommit, StoreUnavailable
from weightcast_server.store.transaction import ChangeLog, CommittedRefusal, Operation, Tx

T = TypeVar("T")

MAX_BATCH = 512
MAX_QUEUED = 100_000
IDLE_CHECK_SECONDS = 1.0
"""How often an idle writer looks whether its database file is still there."""

_OWN_FAULT = (sqlite3.IntegrityError, sqlite3.ProgrammingError, sqlite3.DataError, sqlite3.InterfaceError)
"""Errors of one operation that leave the transaction intact."""

_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _Job:
    operation: Operation
    future: asyncio.Future[Any]
    result: Any = None
    error: BaseException | None = None


class Writer:
    """Owns the writing connection. Create it, :meth:`start` it, and submit operations from one event loop."""

    def __init__(self, database: Database, on_commit: OnCommit) -> None:
        self._database = database
        self._on_commit = on_commit
        self._loop = asyncio.get_running_loop()
        self._queue: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="store-write", daemon=True)
        self._closed = False

    def start(self) -> None:
        """Start the thread; the database is open already."""
        self._thread.start()

    async def submit(self, operation: Callable[[Tx], T | CommittedRefusal]) -> T:
        """Run an operation and wait for its commit."""
        if self._closed:
            raise StoreUnavailable("the store is closed")
        if self._queue.qsize() >= MAX_QUEUED:
            raise StoreUnavailable(f"{MAX_QUEUED} writes are waiting already")
        job = _Job(operation, self._loop.create_future())
        self._queue.put(job)
        result: T = await job.future
        return result

    async def close(self) -> None:
        """Commit what was submitted, then end the thread."""
        if not self._closed:
            self._closed = True
            self._queue.put(None)
        await asyncio.to_thread(self._thread.join)

    def _run(self) -> None:
        running = True
        while running:
            jobs, running = self._next_batch()
            changes = None
            try:
                self._ensure_database()
                if jobs:
                    changes = self._commit(jobs)
            except Exception as error:
                self._database.suspect = True
                _log.exception("store.batch_failed", operations=len(jobs))
                for job in jobs:
                    job.error = StoreUnavailable(f"the store cannot be written: {error}")
            if jobs:
                self._post(jobs, changes)

    def _next_batch(self) -> tuple[list[_Job], bool]:
        jobs: list[_Job] = []
        try:
            job = self._queue.get(timeout=IDLE_CHECK_SECONDS)
            while job is not None:
                jobs.append(job)
                if len(jobs) >= MAX_BATCH:
                    return jobs, True
                job = self._queue.get_nowait()
        except queue.Empty:
            return jobs, True
        return jobs, False

    def _ensure_database(self) -> None:
        if self._database.must_reopen():
            changes = self._database.reopen()
            if changes is not None:
                self._post([], changes)

    def _commit(self, jobs: list[_Job]) -> Changes:
        db = self._database.db
        log = ChangeLog()
        try:
            db.execute("BEGIN IMMEDIATE")
            for job in jobs:
                self._apply(db, job, log)
            targets = load_targets(db, log.revised)
            db.execute("COMMIT")
        except BaseException:
            self._database.served.clear()
            with contextlib.suppress(sqlite3.Error):
                if db.in_transaction:
                    db.execute("ROLLBACK")
            raise
        return Changes(
            topics=frozenset(log.topics),
            targets=targets,
            workers=tuple(log.workers),
            versions=tuple(log.versions),
            pulls=tuple(log.pulls),
            timers=tuple(log.timers),
        )

    def _apply(self, db: sqlite3.Connection, job: _Job, log: ChangeLog) -> None:
        tx = Tx(db, self._database.clock(), self._database.options, self._database.served)
        db.execute("SAVEPOINT operation")
        try:
            result = job.operation(tx)
            settle_targets(tx)
        except Exception as error:
            if isinstance(error, sqlite3.Error) and not isinstance(error, _OWN_FAULT):
                # Disk full, I/O error, damage: SQLite may have rolled back everything, so the whole batch fails.
                raise
            job.error = error
            db.execute("ROLLBACK TO operation")
            db.execute("RELEASE operation")
            return
        db.execute("RELEASE operation")
        log.add(tx.log)
        if isinstance(result, CommittedRefusal):
            job.error = result.refusal
        else:
            job.result = result

    def _post(self, jobs: list[_Job], changes: Changes | None) -> None:
        # The loop is closed only when nobody waits any more.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._deliver, jobs, changes)

    def _deliver(self, jobs: list[_Job], changes: Changes | None) -> None:
        if changes is not None:
            try:
                self._on_commit(changes)
            except Exception:
                _log.exception("store.on_commit_failed")
        for job in jobs:
            if job.future.done():
                continue
            if job.error is not None:
                job.future.set_exception(job.error)
            else:
                job.future.set_result(job.result)
