"""What the server asks of its store. One method is one transaction with one named outcome.

Use::

    store = SQLiteStore(path, StoreOptions())
    await store.start(on_commit)   # calls on_commit once with reset=True: every worker, open deadline and target
    ...
    await store.close()            # after this every call raises StoreUnavailable

``on_commit(changes)`` runs on the event loop, once per committed batch, in commit order and *before* the awaited call
of a writer returns; it must be quick and must not raise. With ``changes.reset`` (at the start, and when the database
file was deleted under the server) everything kept in memory is forgotten and rebuilt from that same object, and every
parked call evaluates again.

Parking without losing a wake-up: subscribe to the topics first, then evaluate, then wait for one of them.

======================  =============================================================================
call                    topics to wait for
======================  =============================================================================
target watch            ``RevisionTopic(model)``
``assign_pull`` = None  ``TargetTopic(model)`` and ``ReplicaTopic(model, replica)``
applying not granted    ``ReplicaTopic(model, replica)``
``drain_holding`` None  ``ReadersTopic(worker_id)``
``wait_for=ready``      ``VersionTopic(model, version)``
``wait_for=applied``    ``VersionTopic(model, version)``, ``ReplicasTopic(model)``
======================  =============================================================================

What the store decides against is a :class:`StoreRefusal` with a problem code; what it cannot answer now is
:class:`StoreUnavailable`. Cursors are opaque, of characters that :data:`weightcast.contract.names.WorkerId` allows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias

from weightcast.contract.names import PullState, Role, VersionFailure, VersionState, WorkerState
from weightcast.contract.problems import Code
from weightcast.contract.pulls import Assignment, Pull, PullList, RequestPull, UpdatePull
from weightcast.contract.versions import Drained, ModelList, OpenVersion, PublishShard, Target, Version, VersionList
from weightcast.contract.workers import RegisterWorker, ReplicaList, UpdateMemory, Worker, WorkerList

from weightcast_server.domain.keys import ClockKey, PullKey, Topic, VersionKey, WorkerKey

Caller: TypeAlias = WorkerKey
"""Who makes a fenced write: the worker and epoch of the request headers."""


class StoreRefusal(Exception):  # noqa: N818 - a refusal is a decision, not a failure of the store
    """The store decided against a request; nothing was written, or exactly what the documentation of the call says."""

    def __init__(self, code: Code, detail: str) -> None:
        super().__init__(f"{code}: {detail}")
        self.code = code
        self.detail = detail


class StoreUnavailable(Exception):  # noqa: N818 - named after the problem code it becomes
    """The store cannot answer now (disk full, I/O error, closed, overloaded); the call was not carried out."""


class StoreStartError(Exception):
    """The store cannot be opened at all; the message is for the person who starts the server."""


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """Settings that belong to the store."""

    synchronous: Literal["normal", "full"] = "normal"
    """``normal`` survives the death of the process, ``full`` also the loss of power."""

    pull_timeout_seconds: float = 300.0
    """ASSIGNED or FETCHING without progress for this long fails the pull."""

    broken_reports: int = 3
    """Distinct workers that must report a holding broken before it is dropped."""

    sources_per_shard: int = 16
    """Most sources that one assignment lists per shard."""

    readers: int = 2
    """Threads that serve reads."""


@dataclass(frozen=True, slots=True)
class WorkerFact:
    """A worker whose epoch or state was written; LIVE starts or renews its lease."""

    worker_id: str
    model: str
    role: Role
    replica: str | None
    world_size: int
    epoch: int
    state: WorkerState


@dataclass(frozen=True, slots=True)
class VersionFact:
    """A version whose state was written."""

    model: str
    version: int
    state: VersionState
    failure: VersionFailure | None
    opened_at: float
    at: float


@dataclass(frozen=True, slots=True)
class Timer:
    """A deadline that starts (again) now, or ended."""

    key: VersionKey | PullKey
    seconds: float | None
    """Seconds from now; None when the deadline no longer applies."""


@dataclass(frozen=True, slots=True)
class Changes:
    """What one committed batch changed. Later facts about the same thing come later in each tuple."""

    topics: frozenset[Topic] = frozenset()
    targets: Mapping[str, Target] = field(default_factory=dict)
    """Per model whose revision grew (or that is new): its revision and target after the commit."""

    workers: tuple[WorkerFact, ...] = ()
    versions: tuple[VersionFact, ...] = ()
    pulls: tuple[Pull, ...] = ()
    """Pulls whose state changed, as they are now."""

    timers: tuple[Timer, ...] = ()
    reset: bool = False


OnCommit: TypeAlias = Callable[[Changes], None]


@dataclass(frozen=True, slots=True)
class Registered:
    """Outcome of a registration."""

    worker_id: str
    epoch: int
    revision: int
    registered_at: float
    replayed: bool


@dataclass(frozen=True, slots=True)
class Opened:
    """Outcome of opening a version; ``created`` is False when the natural key existed."""

    version: int
    state: VersionState
    created: bool


@dataclass(frozen=True, slots=True)
class Published:
    """Outcome of publishing a shard."""

    state: VersionState
    replayed: bool


@dataclass(frozen=True, slots=True)
class PullUpdated:
    """Outcome of a pull update. ``granted`` is False only when ``applying`` was asked for and has to wait."""

    pull: Pull
    granted: bool
    changed: bool


class Store(Protocol):
    """Everything the server keeps. Writes are fenced by ``caller`` inside their transaction.

    Every fenced write may be refused with ``unknown_worker``, ``stale_epoch`` or ``lease_expired``.
    """

    async def start(self, on_commit: OnCommit) -> None:
        """Open (create, migrate) the store and deliver everything that memory must know with ``reset``."""

    async def close(self) -> None:
        """Finish what was accepted, then close. Idempotent."""

    async def ping(self) -> None:
        """Answer, through the write path, that the store can be written (for readiness)."""

    # Workers

    async def register_worker(self, body: RegisterWorker) -> Registered:
        """Register a process for its rank. Refusals: stale_epoch, model_owned, replica_conflict."""

    async def update_memory(self, caller: Caller, body: UpdateMemory) -> Worker:
        """New addresses and metadata within the epoch; holdings that no longer fit their slot are dropped."""

    async def leave(self, caller: Caller) -> None:
        """Say goodbye: LEFT, and everything of this epoch ends. A repeated goodbye is accepted."""

    async def expire(self, keys: Sequence[ClockKey]) -> None:
        """End leases and deadlines that ran out; keys that meanwhile moved on are left alone."""

    async def get_worker(self, worker_id: str) -> Worker:
        """One worker (``heartbeat_age_seconds`` is None: the lease clock knows). Refusal: unknown_worker."""

    async def list_workers(
        self, *, model: str | None, role: Role | None, state: WorkerState | None, cursor: str | None, limit: int
    ) -> WorkerList:
        """Workers by id."""

    async def list_replicas(self, model: str, *, cursor: str | None, limit: int) -> ReplicaList:
        """Replicas by name, as their workers and pulls are now. Refusal: unknown_model."""

    # Layouts

    async def put_layout(self, caller: Caller, model: str, digest: str, blob: bytes, nbytes: int) -> bool:
        """Keep a validated layout (compressed ``blob``, shard size ``nbytes``); True when it is new."""

    async def get_layout(self, model: str, digest: str) -> bytes:
        """The compressed blob. Refusal: unknown_layout."""

    # Versions

    async def open_version(self, caller: Caller, model: str, body: OpenVersion) -> Opened:
        """Open by natural key. Refusals: model_owned, version_conflict, validation_failed."""

    async def publish_shard(self, caller: Caller, model: str, version: int, slot: int, body: PublishShard) -> Published:
        """Publish one slot; the last one makes the version READY in the same transaction.

        Refusals: unknown_version, unknown_layout, validation_failed, version_conflict, model_owned, shard_conflict,
        version_state (also when this very shard failed the version: the failure is written, then refused).
        """

    async def abort_version(self, caller: Caller, model: str, version: int, reason: str) -> None:
        """STAGING becomes FAILED; FAILED stays. Refusals: unknown_version, model_owned, version_state."""

    async def drain_holding(
        self, caller: Caller | None, model: str, version: int, worker_id: str, *, final: bool
    ) -> Drained | None:
        """Stop assigning a holding and delete it once nobody reads it; None while somebody does and not ``final``.

        ``caller`` None: an operator. Refusals: forbidden (another worker's holding), unknown_version.
        """

    async def get_version(self, model: str, version: int) -> Version:
        """One version with its holdings. Refusals: unknown_model, unknown_version."""

    async def list_versions(
        self, model: str, *, state: VersionState | None, cursor: str | None, limit: int
    ) -> VersionList:
        """Versions, newest first. Refusal: unknown_model."""

    async def list_models(self, *, cursor: str | None, limit: int) -> ModelList:
        """Models by name, with their owner, revision and target."""

    async def count_versions(self) -> dict[VersionState, int]:
        """Versions of all models by state, for metrics."""

    async def get_target(self, model: str) -> Target:
        """Revision and target. Refusal: unknown_model."""

    # Pulls

    async def assign_pull(self, caller: Caller, model: str, body: RequestPull) -> Assignment | None:
        """The next assignment of the calling rank; None when nothing newer than ``have_version`` can be had.

        Asking ends every other open pull of the rank (superseded). Refusal: validation_failed (not a rollout of it).
        """

    async def update_pull(self, caller: Caller, pull_id: str, body: UpdatePull) -> PullUpdated:
        """Move a pull along.

        Refusals: unknown_pull, forbidden, pull_state, validation_failed, pull_superseded (the pull is FAILED then).
        """

    async def get_pull(self, pull_id: str) -> Pull:
        """One pull. Refusal: unknown_pull."""

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
        """Pulls, newest first. Refusal: unknown_model."""
