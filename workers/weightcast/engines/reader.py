"""The reading side of resident versions: whole shards into a staging arena, verified before anybody may use them."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

import structlog
import torch

from weightcast.contract.layout import Layout
from weightcast.contract.names import MemoryKind, PullFailure
from weightcast.contract.pulls import Assignment, ShardSources
from weightcast.contract.workers import Agent as AgentInfo
from weightcast.engines.agent import AgentThread, NixlAgent
from weightcast.engines.digest import bucket_count
from weightcast.engines.fetch import Fetch, FetchControl, ShardJob
from weightcast.engines.header import SlotHeader, model_key
from weightcast.engines.staging import Region
from weightcast.engines.ucx import remote_transport, shared_memory_allowed
from weightcast.engines.workspace import Workspace
from weightcast.errors import DeadlineExceeded, TransferError

_log = structlog.get_logger("weightcast.engines.reader")

DEFAULT_STALL_SECONDS: Final = 5.0
_GRACE_SECONDS: Final = 5.0


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
        assignment: Assignment,
        layouts: Mapping[str, Layout],
        timeout: float,
        progress: Callable[[int], None] | None = None,
    ) -> Staged:
        """READ and verify an assignment. What was staged before is gone as soon as this begins.

        Args:
            assignment: shards and sources; the first source of each shard is read.
            layouts: layouts by digest.
            timeout: seconds, for everything.
            progress: called on another thread with the bytes that have arrived.

        Raises:
            TransferError: naming source and reason; nothing of the version may be used.
            DeadlineExceeded: NIXL itself did not return in time; the agent has been replaced.
        """
        version = assignment.pull.version
        for shard in assignment.shards:
            _check_shard(shard, layouts, version)
        with self._lock:
            control = FetchControl(version, time.monotonic() + timeout, self._stall_seconds, progress=progress)
            try:
                return self._fetch.call(
                    lambda agent: self._run(agent, assignment, layouts, control),
                    timeout + _GRACE_SECONDS,
                    f"The fetch of version {version}",
                )
            except DeadlineExceeded:
                # Stuck inside NIXL (a blocking connect, say): that thread, its agent and its memory are left behind.
                control.stopped.set()
                _abandoned.append((self._fetch, self._workspace))
                self._start_agent()
                raise

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
                _abandoned.append((self._fetch, workspace))
            self._pool.shutdown(wait=True, cancel_futures=True)

    def _start_agent(self) -> None:
        self._fetch = fetch = AgentThread("fetch")
        self._workspace = workspace = Workspace(fetch.rebuild)
        fetch.on_idle(workspace.idle)

    def _run(
        self, agent: NixlAgent, assignment: Assignment, layouts: Mapping[str, Layout], control: FetchControl
    ) -> Staged:
        started = time.perf_counter()
        workspace = self._workspace
        arena = workspace.begin(agent, assignment, layouts)
        fetch: Fetch | None = None
        try:
            jobs = [
                self._job(agent, workspace, assignment, shard, region)
                for shard, region in zip(assignment.shards, arena.regions, strict=True)
            ]
            fetch = Fetch(agent, jobs, control, self._pool)
            fetch.run()
        except TransferError as error:
            workspace.after_failure(agent, error, fetch.in_flight if fetch is not None else [])
            raise
        return Staged(
            version=control.version,
            shards=[
                StagedShard(layouts[shard.layout_digest], region.data)
                for shard, region in zip(assignment.shards, arena.regions, strict=True)
            ],
            sources=[job.source.worker_id for job in jobs],
            nbytes=sum(shard.nbytes for shard in assignment.shards),
            seconds=time.perf_counter() - started,
            transport=self._transport(jobs, fetch.done_at_post),
        )

    def _job(
        self, agent: NixlAgent, workspace: Workspace, assignment: Assignment, shard: ShardSources, region: Region
    ) -> ShardJob:
        source, version = shard.sources[0], assignment.pull.version
        try:
            prepared = workspace.peers.prepare(agent, shard, source, region)
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

    def _transport(self, jobs: list[ShardJob], done_at_post: bool) -> str:
        names = set()
        for job in jobs:
            if job.source.memory.kind is not MemoryKind.DRAM:
                continue
            same_host = job.source.host == self._host
            name = remote_transport(done_at_post, same_host)
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


_abandoned: list[object] = []
"""Agents stuck inside NIXL, with the memory they may still write to: never freed, or the process would crash."""
