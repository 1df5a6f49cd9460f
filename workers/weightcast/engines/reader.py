"""The reading side of resident versions: whole shards into a staging arena, verified before anybody may use them."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass
from typing import Final, TypeVar

import structlog
import torch

from weightcast.contract.layout import Layout, layout_digest
from weightcast.contract.names import MemoryKind, PullFailure
from weightcast.contract.pulls import ShardSources
from weightcast.contract.workers import Agent as AgentInfo
from weightcast.engines.agent import AgentThread, NixlAgent
from weightcast.engines.digest import DEFAULT_BUCKET_NBYTES, bucket_count
from weightcast.engines.fetch import Fetch, FetchControl, ShardJob
from weightcast.engines.header import SlotHeader, model_key
from weightcast.engines.staging import Region
from weightcast.engines.ucx import remote_transport, shared_memory_allowed
from weightcast.engines.workspace import Workspace
from weightcast.errors import DeadlineExceeded, TransferError

T = TypeVar("T")
_log = structlog.get_logger("weightcast.engines.reader")

DEFAULT_STALL_SECONDS: Final = 5.0
PROGRESS_SECONDS: Final = 0.5
_GRACE_SECONDS: Final = 5.0
_RESERVE_SECONDS: Final = 600.0


@dataclass(frozen=True, slots=True)
class StagedShard:
    """One shard's verified bytes."""

    layout: Layout
    data: torch.Tensor


@dataclass(frozen=True, slots=True)
class Staged:
    """A version whose every byte is local and verified, until the next fetch begins."""

    version: int
    shards: list[StagedShard]
    sources: list[str]
    nbytes: int
    seconds: float
    transport: str


class ResidentReader:
    """Fetches assigned versions into a staging arena.

    Args:
        model: the model's name.
        host: this host's name, to tell a shared-memory fallback from a network.
        stall_seconds: a source from which no READ ends for so long is given up.

    Memory: one arena (the shards' bytes); while a READ from a stopped source is in flight, a second one.
    """

    def __init__(self, model: str, host: str, *, stall_seconds: float = DEFAULT_STALL_SECONDS) -> None:
        self._model_key = model_key(model)
        self._host = host
        self._stall_seconds = stall_seconds
        self._pool = ThreadPoolExecutor(min(2, os.cpu_count() or 1), thread_name_prefix="weightcast-verify")
        self._lock = threading.Lock()
        self._warned: set[str] = set()
        self._start_agent()

    def agent_info(self) -> AgentInfo:
        """The fetching agent, for the registration."""
        return self._fetch.info()

    def fetch(
        self,
        version: int,
        shards: Sequence[ShardSources],
        layouts: Mapping[str, Layout],
        timeout: float,
        progress: Callable[[int], None] | None = None,
    ) -> Staged:
        """READ and verify a version. What was staged before is gone as soon as this begins.

        Args:
            version: its number, which the sources' headers must show.
            shards: shards and sources; the first source of each shard is read.
            layouts: layouts by digest.
            timeout: seconds, for everything.
            progress: called twice a second on the calling thread with the bytes that have arrived; what it raises
                stops the fetch.

        Raises:
            TransferError: naming source and reason; nothing of the version may be used.
            DeadlineExceeded: NIXL itself did not return in time.
        """
        for shard in shards:
            _check_shard(shard, layouts, version)
        with self._lock:
            control = FetchControl(version, time.monotonic() + timeout, self._stall_seconds)
            future = self._fetch.submit(lambda agent: self._run(agent, shards, layouts, control))
            try:
                return self._await(future, control, progress)
            except BaseException:
                control.stopped.set()
                if not _settled(future, self._stall_seconds + _GRACE_SECONDS):
                    # Stuck inside NIXL (a blocking connect, say): that thread, its agent and memory are left behind.
                    _abandon(self._fetch, self._workspace)
                    self._start_agent()
                raise

    def reserve(self, layout: Layout, bucket_nbytes: int = DEFAULT_BUCKET_NBYTES) -> None:
        """Allocate, touch and register the arena for versions of this one layout before the first of them comes.

        Raises:
            OutOfMemoryError: it does not fit.
        """
        shape = ((layout_digest(layout), bucket_nbytes),)
        with self._lock:
            self._fetch.call(
                lambda agent: self._workspace.reserve(agent, shape, [layout]), _RESERVE_SECONDS, "reserving an arena"
            )

    def _await(self, future: Future[Staged], control: FetchControl, progress: Callable[[int], None] | None) -> Staged:
        while True:
            remaining = control.deadline + _GRACE_SECONDS - time.monotonic()
            try:
                return future.result(max(0.0, min(remaining, PROGRESS_SECONDS)))
            except FutureTimeoutError:
                if future.done():
                    return future.result()
            if remaining <= 0:
                raise DeadlineExceeded(f"The fetch of version {control.version}", control.seconds)
            if progress is not None:
                progress(control.bytes_done)

    def call(self, job: Callable[[NixlAgent], T], timeout: float, what: str) -> T:
        """Run ``job`` on the thread that owns the fetching agent; see :meth:`AgentThread.call`."""
        return self._fetch.call(job, timeout, what)

    @property
    def quarantined_nbytes(self) -> int:
        """Bytes that a READ in flight keeps from being used."""
        return self._workspace.quarantine.nbytes

    def close(self) -> None:
        """End the agent, then let the memory go."""
        with self._lock:
            workspace = self._workspace
            # The memory stays referenced until the agent is gone: freeing it under a READ would crash the process.
            if not self._fetch.close():
                _abandon(self._fetch, workspace)
            self._pool.shutdown(wait=True, cancel_futures=True)

    def _start_agent(self) -> None:
        self._fetch = fetch = AgentThread("fetch")
        self._workspace = workspace = Workspace(fetch.rebuild)
        fetch.on_idle(workspace.idle)

    def _run(
        self, agent: NixlAgent, shards: Sequence[ShardSources], layouts: Mapping[str, Layout], control: FetchControl
    ) -> Staged:
        started = time.perf_counter()
        workspace = self._workspace
        fetch: Fetch | None = None
        try:
            arena = workspace.begin(agent, shards, layouts)
            jobs = [
                self._job(agent, workspace, control.version, shard, region)
                for shard, region in zip(shards, arena.regions, strict=True)
            ]
            fetch = Fetch(agent, jobs, control, self._pool, workspace.shared_memory)
            fetch.run()
        except TransferError as error:
            workspace.after_failure(agent, error, fetch.in_flight if fetch is not None else [])
            raise
        return Staged(
            version=control.version,
            shards=[
                StagedShard(layouts[shard.layout_digest], region.data)
                for shard, region in zip(shards, arena.regions, strict=True)
            ],
            sources=[job.source.worker_id for job in jobs],
            nbytes=sum(shard.nbytes for shard in shards),
            seconds=time.perf_counter() - started,
            transport=self._transport(jobs, workspace.shared_memory),
        )

    def _job(
        self, agent: NixlAgent, workspace: Workspace, version: int, shard: ShardSources, region: Region
    ) -> ShardJob:
        source = shard.sources[0]
        try:
            prepared = workspace.peers.prepare(agent, shard, source, region, workspace.quarantine.handles())
        except TransferError as error:
            raise TransferError(error.detail, reason=error.reason, peer=source.worker_id, version=version) from error
        buckets = bucket_count(shard.nbytes, source.bucket_nbytes)
        expected = SlotHeader(
            model=self._model_key,
            version=version,
            epoch=source.epoch,
            generation=source.slot_generation,
            buckets_ready=buckets,
            digests_ready=buckets,
            data_nbytes=shard.nbytes,
        )
        return ShardJob(shard, source, region, prepared, expected)

    def _transport(self, jobs: list[ShardJob], shared_memory: Mapping[str, bool]) -> str:
        names = set()
        for job in jobs:
            if job.source.memory.kind is not MemoryKind.DRAM:
                continue
            same_host = job.source.host == self._host
            name = remote_transport(shared_memory.get(job.source.agent.name, False), same_host)
            names.add(name)
            if same_host and name == "tcp" and shared_memory_allowed() and job.source.worker_id not in self._warned:
                self._warned.add(job.source.worker_id)
                _log.warning(
                    "shared memory fell back to TCP: READs are several times slower than they could be",
                    source=job.source.worker_id,
                    remedy="allow ptrace: same user; in containers SYS_PTRACE or a shared pid namespace",
                )
        return "+".join(sorted(names))


def _check_shard(shard: ShardSources, layouts: Mapping[str, Layout], version: int) -> None:
    layout = layouts[shard.layout_digest]
    if layout.nbytes != shard.nbytes:
        raise TransferError(
            f"shard {shard.shard} has {shard.nbytes} bytes, its layout {layout.nbytes}",
            reason=PullFailure.LAYOUT_MISMATCH,
            version=version,
        )
    if not shard.sources:
        raise TransferError(
            f"shard {shard.shard} has no source", reason=PullFailure.SOURCE_UNREACHABLE, version=version
        )


def _settled(future: Future[Staged], seconds: float) -> bool:
    return not wait([future], seconds).not_done


_abandoned: list[tuple[AgentThread, Workspace]] = []
"""Agents stuck inside NIXL, with the memory they may still write to: freed when they have come back and ended."""


def _abandon(thread: AgentThread, workspace: Workspace) -> None:
    thread.close(0)
    _abandoned[:] = [item for item in _abandoned if item[0].alive]
    _abandoned.append((thread, workspace))
