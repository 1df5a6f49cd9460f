"""The running server's parts and how a commit reaches them. Routes get it from ``request.app.state.runtime``."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from weightcast.contract.names import PullState, Role, VersionState, WorkerState
from weightcast.contract.versions import Target

from weightcast_server.leases import Leases
from weightcast_server.logs import get_logger
from weightcast_server.metrics import Metrics
from weightcast_server.readiness import Readiness
from weightcast_server.refits import RefitClock
from weightcast_server.settings import Settings
from weightcast_server.store.protocol import Changes, Store
from weightcast_server.watch import Hub

T = TypeVar("T")

LAYOUT_THREADS = 2
"""Layouts that are checked at the same time; more wait, so that uploads cannot starve heartbeats."""

_log = get_logger(__name__)


class Runtime:
    """Settings, store, waiters, leases and metrics of one server."""

    def __init__(self, settings: Settings, store: Store, version: str) -> None:
        self.settings = settings
        self.store = store
        self.metrics = Metrics(version)
        self.hub = Hub(settings.max_waiters)
        self.leases = Leases(settings.lease_seconds, settings.max_heartbeats_per_second)
        self.targets: dict[str, Target] = {}
        self.layout_threads = ThreadPoolExecutor(LAYOUT_THREADS, thread_name_prefix="layout")
        self._refits = RefitClock()
        self._readiness = Readiness(lambda: self.timed(store.ping()))
        self._sweeper: asyncio.Task[None] | None = None
        self.metrics.parked.set_function(lambda: self.hub.parked)

    async def start(self) -> None:
        """Open the store and start the sweep; a second call does nothing.

        Raises:
            StoreStartError: the database cannot be used, for example because another server has it.
        """
        if self._sweeper is not None:
            return
        await self.store.start(self._on_commit)
        self._sweeper = asyncio.create_task(self.leases.sweep_forever(self.store.expire, self.metrics.lag))
        self._sweeper.add_done_callback(_report_death)

    async def stop(self) -> None:
        """Answer the parked requests, end the sweep, close the store. Idempotent."""
        self.hub.close()
        if self._sweeper is not None:
            self._sweeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._sweeper
        await self.store.close()
        self.layout_threads.shutdown(wait=False, cancel_futures=True)

    async def check_ready(self) -> None:
        """Return when the server may get traffic.

        Raises:
            StoreUnavailable: the store takes no writes, or nobody ends leases.
        """
        await self._readiness.check(self._sweeper)

    async def timed(self, call: Coroutine[Any, Any, T]) -> T:
        """Await a store call, its duration measured."""
        started = time.perf_counter()
        try:
            return await call
        finally:
            self.metrics.observe_store(getattr(call, "__name__", "other"), time.perf_counter() - started)

    def _on_commit(self, changes: Changes) -> None:
        self.leases.apply(changes)
        if changes.reset:
            self.targets.clear()
        self.targets.update(changes.targets)
        for seconds in self._refits.apply(changes, time.monotonic()):
            self.metrics.refit_seconds.observe(seconds)
        if changes.reset:
            self.hub.publish_all()
            return
        self._record(changes)
        self.hub.publish(changes.topics)

    def _record(self, changes: Changes) -> None:
        for worker in changes.workers:
            if worker.state is WorkerState.LOST:
                self.metrics.lease_expirations.labels(worker.role.value).inc()
            _log.info("worker", worker=worker.worker_id, epoch=worker.epoch, state=worker.state.value)
        for version in changes.versions:
            log = _log.warning if version.state is VersionState.FAILED else _log.info
            failure = version.failure.value if version.failure else None
            log("version", model=version.model, version=version.version, state=version.state.value, failure=failure)
        for pull in changes.pulls:
            if pull.state is PullState.FAILED and pull.failure is not None:
                self.metrics.failed_pulls.labels(pull.failure.value).inc()
                _log.warning(
                    "pull failed",
                    pull=pull.pull_id,
                    worker=pull.worker_id,
                    epoch=pull.epoch,
                    model=pull.model,
                    version=pull.version,
                    failure=pull.failure.value,
                    source=pull.failed_source,
                    reason=pull.reason,
                )
            elif pull.state is PullState.STAGED:
                self.metrics.pulled_bytes.inc(pull.nbytes)
                if pull.fetch_seconds is not None:
                    self.metrics.fetch_seconds.observe(pull.fetch_seconds)
            elif pull.state is PullState.APPLIED and pull.pause_seconds is not None:
                self.metrics.pause_seconds.observe(pull.pause_seconds)

    async def count(self) -> None:
        """Bring the gauges up to date, for a scrape."""
        workers: dict[tuple[Role, WorkerState], int] = {}
        for fact in self.leases.facts():
            key = (fact.role, fact.state)
            workers[key] = workers.get(key, 0) + 1
        self.metrics.set_workers(workers)
        self.metrics.set_versions(await self.store.count_versions())


def _report_death(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        _log.error("the lease sweep died", exc_info=task.exception())
