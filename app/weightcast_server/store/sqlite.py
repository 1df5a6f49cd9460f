"""The SQLite store: a file, one writer with group commit, a few readers. Exactly one server per file."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from weightcast.contract.names import PullState, Role, VersionState, WorkerState
from weightcast.contract.pulls import Assignment, Pull, PullList, RequestPull, UpdatePull
from weightcast.contract.versions import Drained, ModelList, OpenVersion, PublishShard, Target, Version, VersionList
from weightcast.contract.workers import RegisterWorker, ReplicaList, UpdateMemory, Worker, WorkerList

from weightcast_server.domain.keys import ClockKey
from weightcast_server.store import (
    assignments,
    expiry,
    holdings,
    layouts,
    models,
    overview,
    progress,
    version_views,
    versions,
    views,
    workers,
)
from weightcast_server.store.database import Database
from weightcast_server.store.protocol import (
    Caller,
    OnCommit,
    Opened,
    Published,
    PullUpdated,
    Registered,
    StoreOptions,
    StoreUnavailable,
)
from weightcast_server.store.readers import ReaderPool
from weightcast_server.store.writer import Writer


class SQLiteStore:
    """Implements :class:`weightcast_server.store.protocol.Store`; every method is documented there.

    Args:
        path: the database file; created with its folder when missing.
        options: see :class:`StoreOptions`.
        clock: wall clock, seconds since the Unix epoch.
    """

    def __init__(
        self, path: Path | str, options: StoreOptions | None = None, *, clock: Callable[[], float] = time.time
    ) -> None:
        options = options or StoreOptions()
        path = Path(path).resolve()  # one lock for one file, whatever it is called
        self._readers = ReaderPool(path, options.readers)
        self._database = Database(path, options, self._readers, clock)
        self._writer: Writer | None = None

    async def start(self, on_commit: OnCommit) -> None:
        """Lock, open, migrate, and deliver everything with ``reset``.

        Raises:
            StoreStartError: another server has the file, or it cannot be opened.
        """
        changes = await asyncio.to_thread(self._database.open)
        writer = Writer(self._database, on_commit)
        on_commit(changes)
        writer.start()
        self._writer = writer

    async def close(self) -> None:
        """Finish what was accepted, close every connection, give the lock back."""
        if self._writer is not None:
            await self._writer.close()
        await asyncio.to_thread(self._readers.close)
        await asyncio.to_thread(self._database.close)

    @property
    def _write(self) -> Writer:
        if self._writer is None:
            raise StoreUnavailable("the store is not started")
        return self._writer

    async def ping(self) -> None:
        """Commit an empty operation."""
        await self._write.submit(lambda tx: tx.run("UPDATE models SET revision = revision WHERE false"))

    # Workers

    async def register_worker(self, body: RegisterWorker) -> Registered:
        """See the protocol."""
        return await self._write.submit(lambda tx: workers.register_worker(tx, body))

    async def update_memory(self, caller: Caller, body: UpdateMemory) -> Worker:
        """See the protocol."""
        return await self._write.submit(lambda tx: workers.update_memory(tx, caller, body))

    async def leave(self, caller: Caller) -> None:
        """See the protocol."""
        await self._write.submit(lambda tx: workers.leave(tx, caller))

    async def expire(self, keys: Sequence[ClockKey]) -> None:
        """See the protocol."""
        await self._write.submit(lambda tx: expiry.expire(tx, keys))

    async def get_worker(self, worker_id: str) -> Worker:
        """See the protocol."""
        return await self._readers.run(lambda db: views.get_worker(db, worker_id))

    async def list_workers(
        self, *, model: str | None, role: Role | None, state: WorkerState | None, cursor: str | None, limit: int
    ) -> WorkerList:
        """See the protocol."""
        return await self._readers.run(lambda db: views.list_workers(db, model, role, state, cursor, limit))

    async def list_replicas(self, model: str, *, cursor: str | None, limit: int) -> ReplicaList:
        """See the protocol."""
        return await self._readers.run(lambda db: views.list_replicas(db, model, cursor, limit))

    # Layouts

    async def put_layout(self, caller: Caller, model: str, digest: str, blob: bytes, nbytes: int) -> bool:
        """See the protocol."""
        return await self._write.submit(lambda tx: layouts.put_layout(tx, caller, model, digest, blob, nbytes))

    async def get_layout(self, model: str, digest: str) -> bytes:
        """See the protocol."""
        return await self._readers.run(lambda db: layouts.get_layout(db, model, digest))

    # Versions

    async def open_version(self, caller: Caller, model: str, body: OpenVersion) -> Opened:
        """See the protocol."""
        return await self._write.submit(lambda tx: versions.open_version(tx, caller, model, body))

    async def publish_shard(self, caller: Caller, model: str, version: int, slot: int, body: PublishShard) -> Published:
        """See the protocol."""
        return await self._write.submit(lambda tx: versions.publish_shard(tx, caller, model, version, slot, body))

    async def abort_version(self, caller: Caller, model: str, version: int, reason: str) -> None:
        """See the protocol."""
        await self._write.submit(lambda tx: versions.abort_version(tx, caller, model, version, reason))

    async def drain_holding(
        self, caller: Caller | None, model: str, version: int, worker_id: str, *, final: bool
    ) -> Drained | None:
        """See the protocol."""
        return await self._write.submit(
            lambda tx: holdings.drain_holding(tx, caller, model, version, worker_id, final=final)
        )

    async def get_version(self, model: str, version: int) -> Version:
        """See the protocol."""
        return await self._readers.run(lambda db: version_views.get_version(db, model, version))

    async def list_versions(
        self, model: str, *, state: VersionState | None, cursor: str | None, limit: int
    ) -> VersionList:
        """See the protocol."""
        return await self._readers.run(lambda db: version_views.list_versions(db, model, state, cursor, limit))

    async def list_models(self, *, cursor: str | None, limit: int) -> ModelList:
        """See the protocol."""
        return await self._readers.run(lambda db: overview.list_models(db, cursor, limit))

    async def count_versions(self) -> dict[VersionState, int]:
        """See the protocol."""
        return await self._readers.run(overview.count_versions)

    async def get_target(self, model: str) -> Target:
        """See the protocol."""
        return await self._readers.run(lambda db: models.load_target(db, model))

    # Pulls

    async def assign_pull(self, caller: Caller, model: str, body: RequestPull) -> Assignment | None:
        """See the protocol."""
        return await self._write.submit(lambda tx: assignments.assign_pull(tx, caller, model, body))

    async def update_pull(self, caller: Caller, pull_id: str, body: UpdatePull) -> PullUpdated:
        """See the protocol."""
        return await self._write.submit(lambda tx: progress.update_pull(tx, caller, pull_id, body))

    async def get_pull(self, pull_id: str) -> Pull:
        """See the protocol."""
        return await self._readers.run(lambda db: views.get_pull(db, pull_id))

    async def list_pulls(
        self,
        model: str,
        *,
        state: PullState | None,
        version: int | None,
        worker_id: str | None,
        cursor: str | None,
        limit: int,
    ) -> PullList:
        """See the protocol."""
        return await self._readers.run(lambda db: views.list_pulls(db, model, state, version, worker_id, cursor, limit))
