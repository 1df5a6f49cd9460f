"""One fetch: READ shards from their sources, overlapped with checking what has arrived.

Order, per shard: header, digest table (checked against the root that the control plane gave), data, header again. The
data is accepted when both headers are the one that was assigned and every bucket has the digest in the table.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

from weightcast.contract.names import PullFailure
from weightcast.contract.pulls import ShardSources, Source
from weightcast.engines.agent import DisconnectedError, NixlAgent, NixlHandle
from weightcast.engines.digest import DIGEST_NBYTES, bucket_digest, digest_root
from weightcast.engines.header import HeaderInvalidError, SlotHeader
from weightcast.engines.peers import PreparedShard, Request
from weightcast.engines.staging import Region
from weightcast.engines.ucx import shared_memory_allowed
from weightcast.errors import TransferError

WINDOW = 4
"""READs in flight. On shared memory each is done when posted; on a network this hides the round trip."""

PROBES = 32
"""READs in a row that are complete when posted prove shared memory; they take 3 µs each there."""

MAX_WAITED_PROBES = 3
"""READs that were not, after which it is a network. They take up to a millisecond each there."""

_SPIN_SECONDS = 20e-6
_NAP_SECONDS = 1e-3


@dataclass(frozen=True, slots=True)
class ShardJob:
    """One shard to read: from which source, into which region, and what its header must say."""

    shard: ShardSources
    source: Source
    region: Region
    prepared: PreparedShard
    expected: SlotHeader


@dataclass(slots=True)
class FetchControl:
    """Bounds of one fetch, and how it is watched and stopped from other threads."""

    version: int
    deadline: float
    stall_seconds: float
    stopped: threading.Event = field(default_factory=threading.Event)
    bytes_done: int = 0
    seconds: float = 0.0

    def __post_init__(self) -> None:
        self.seconds = self.deadline - time.monotonic()


class Fetch:
    """Runs on the agent's owner thread. ``shared_memory`` says by agent name what is known, and is added to.

    After an error, ``in_flight`` holds the READs that could not be ended.
    """

    def __init__(
        self,
        agent: NixlAgent,
        jobs: list[ShardJob],
        control: FetchControl,
        pool: ThreadPoolExecutor,
        shared_memory: dict[str, bool],
    ) -> None:
        self._agent = agent
        self._jobs = jobs
        self._control = control
        self._pool = pool
        self._checks: list[tuple[ShardJob, int, Future[bytes]]] = []
        self.in_flight: list[NixlHandle] = []
        self._shared_memory = shared_memory

    def run(self) -> None:
        """Read and verify everything.

        Raises:
            TransferError: with the source, the reason and, for wrong bytes, the bucket.
        """
        try:
            for job in self._jobs:
                self._read_header(job)
                self._read_table(job)
            self._read_data()
            for job in self._jobs:
                self._read_header(job)
            self._verify()
            for job in self._jobs:
                self._probe(job)
        finally:
            for _job, _bucket, check in self._checks:
                check.cancel()
            # No digest may still be looking at the region when it is reused.
            for _job, _bucket, check in self._checks:
                if not check.cancelled():
                    check.exception()

    def _read_header(self, job: ShardJob) -> None:
        self._read_now(job, job.prepared.header)
        try:
            found = SlotHeader.unpack(job.region.header)
        except HeaderInvalidError as error:
            raise self._failure(job, PullFailure.SOURCE_OVERWRITTEN, str(error)) from None
        if found != job.expected:
            state = f"generation {found.generation} of version {found.version}, epoch {found.epoch}"
            wanted = f"generation {job.expected.generation}, epoch {job.expected.epoch}"
            detail = f"its slot holds {state}, not {wanted}: it has been overwritten"
            raise self._failure(job, PullFailure.SOURCE_OVERWRITTEN, detail)

    def _read_table(self, job: ShardJob) -> None:
        if job.prepared.table is not None:
            self._read_now(job, job.prepared.table)
        root = digest_root(job.shard.layout_digest, job.source.bucket_nbytes, job.region.table)
        if root != job.shard.digest_root:
            raise self._failure(job, PullFailure.DIGEST_MISMATCH, "its digest table is not the published one")

    def _read_data(self) -> None:
        window: deque[tuple[ShardJob, Request]] = deque()
        for job, request in self._requests():
            if self._post(job, request.handle):
                self._arrived(job, request)
                continue
            window.append((job, request))
            if len(window) >= WINDOW:
                self._settle(*window.popleft())
        while window:
            self._settle(*window.popleft())

    def _requests(self) -> Iterator[tuple[ShardJob, Request]]:
        """Requests of all shards in turn, so that several sources are read at once."""
        queues = [(job, deque(job.prepared.requests)) for job in self._jobs]
        while queues:
            for job, requests in queues:
                if requests:
                    yield job, requests.popleft()
            queues = [(job, requests) for job, requests in queues if requests]

    def _arrived(self, job: ShardJob, request: Request) -> None:
        bucket_nbytes = job.source.bucket_nbytes
        for start in range(request.start, request.stop, bucket_nbytes):
            data = job.region.bytes[start : min(start + bucket_nbytes, request.stop)]
            self._checks.append((job, start // bucket_nbytes, self._pool.submit(bucket_digest, data)))
        self._control.bytes_done += request.stop - request.start
        if self._control.stopped.is_set():
            raise self._failure(job, PullFailure.CANCELLED, "the fetch was stopped")

    def _verify(self) -> None:
        for job, bucket, check in self._checks:
            expected = bytes(job.region.table[bucket * DIGEST_NBYTES : (bucket + 1) * DIGEST_NBYTES])
            if check.result() != expected:
                detail = f"bucket {bucket} does not have its published digest"
                raise self._failure(job, PullFailure.DIGEST_MISMATCH, detail, bucket)

    def _probe(self, job: ShardJob) -> None:
        """Find out whether this source is read through shared memory: then every READ is complete when it is posted.

        Over TCP about every third small one is, by luck; the first ones of a connection never are.
        """
        if job.source.agent.name in self._shared_memory:
            return
        if not shared_memory_allowed():
            self._shared_memory[job.source.agent.name] = False
            return
        in_a_row = waited = 0
        while in_a_row < PROBES and waited < MAX_WAITED_PROBES:
            done = self._read_now(job, job.prepared.header)
            in_a_row, waited = (in_a_row + 1, waited) if done else (0, waited + 1)
        self._shared_memory[job.source.agent.name] = in_a_row == PROBES

    def _read_now(self, job: ShardJob, handle: NixlHandle) -> bool:
        """READ and wait; whether it was complete when it was posted."""
        done = self._post(job, handle)
        if not done:
            self._wait(job, handle)
        return done

    def _post(self, job: ShardJob, handle: NixlHandle) -> bool:
        self.in_flight.append(handle)
        try:
            done = self._agent.post(handle)
        except TransferError as error:
            self._broke_off(handle, error)
            raise self._failure(job, error.reason, error.detail) from error
        if done:
            self.in_flight.remove(handle)
        return done

    def _broke_off(self, handle: NixlHandle, error: TransferError) -> None:
        """Of all errors only a disconnect means that nothing lands any more."""
        if isinstance(error, DisconnectedError):
            self.in_flight.remove(handle)

    def _settle(self, job: ShardJob, request: Request) -> None:
        self._wait(job, request.handle)
        self._arrived(job, request)

    def _wait(self, job: ShardJob, handle: NixlHandle) -> None:
        """Poll tightly at first, then with naps: bytes that move are not waited for long."""
        started = time.monotonic()
        nap = _SPIN_SECONDS
        while True:
            try:
                done = self._agent.poll(handle)
            except TransferError as error:
                self._broke_off(handle, error)
                raise self._failure(job, error.reason, error.detail) from error
            if done:
                self.in_flight.remove(handle)
                return
            now = time.monotonic()
            if self._control.stopped.is_set() or now >= self._control.deadline:
                raise self._failure(job, PullFailure.CANCELLED, "the fetch was stopped or ran out of time")
            if now - started > self._control.stall_seconds:
                detail = f"no byte arrived for {self._control.stall_seconds:g} s: it is stopped or cannot be reached"
                raise self._failure(job, PullFailure.SOURCE_STALLED, detail)
            time.sleep(nap)
            nap = min(nap * 1.5, _NAP_SECONDS)

    def _failure(self, job: ShardJob, reason: PullFailure, detail: str, bucket: int | None = None) -> TransferError:
        return TransferError(
            detail, reason=reason, peer=job.source.worker_id, version=self._control.version, bucket=bucket
        )
