"""A plain model of what the store must do, for the stateful test: two trainers, a replica of one rank, one of two."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from weightcast.contract.problems import Code
from weightcast.contract.pulls import Assignment
from weightcast_server.store.protocol import Caller

OPEN = ("assigned", "fetching", "staged", "applying")
READING = ("assigned", "fetching")
NEXT = {
    "assigned": ("fetching", "staged", "failed"),
    "fetching": ("fetching", "staged", "failed"),
    "staged": ("applying", "failed"),
    "applying": ("applied", "failed"),
    "applied": (),
    "failed": (),
}
WORLD = {"solo": 1, "pair": 2}


@dataclass
class ModelWorker:
    worker_id: str
    epoch: int
    incarnation: str
    live: bool = True
    rank: int = 0
    replica: str | None = None
    serving: int | None = None
    tainted: bool = False


@dataclass
class ModelPull:
    pull_id: str
    version: int
    worker: Caller
    state: str
    sources: set[str]


class Content(NamedTuple):
    """What fills a slot of a version."""

    shard: int
    seed: str
    caller: Caller
    memory_slot: int
    generation: int


@dataclass
class ModelVersion:
    version: int
    shards: int
    world: int = 2
    state: str = "staging"
    published: dict[int, Content] = field(default_factory=dict)

    holdings: dict[str, str] = field(default_factory=dict)
    """Worker to ``held`` or ``draining``."""

    def shard_of(self, worker_id: str) -> int:
        return next(content.shard for content in self.published.values() if content.caller.worker_id == worker_id)

    def available(self) -> bool:
        held = {self.shard_of(worker) for worker, state in self.holdings.items() if state == "held"}
        return self.state == "ready" and held == set(range(self.shards))


@dataclass
class World:
    workers: dict[str, ModelWorker] = field(default_factory=dict)
    versions: dict[int, ModelVersion] = field(default_factory=dict)
    pulls: dict[str, ModelPull] = field(default_factory=dict)

    def fence(self, caller: Caller) -> Code | None:
        worker = self.workers.get(caller.worker_id)
        if worker is None or caller.epoch > worker.epoch:
            return Code.UNKNOWN_WORKER
        if caller.epoch < worker.epoch:
            return Code.STALE_EPOCH
        return None if worker.live else Code.LEASE_EXPIRED

    def target(self) -> int | None:
        return max((version.version for version in self.versions.values() if version.available()), default=None)

    def open_pull(self, worker_id: str) -> ModelPull | None:
        mine = (pull for pull in self.pulls.values() if pull.worker.worker_id == worker_id and pull.state in OPEN)
        return next(mine, None)

    def siblings(self, worker: ModelWorker) -> list[ModelWorker]:
        return [
            other
            for other in self.workers.values()
            if other.replica == worker.replica and other.worker_id != worker.worker_id and other.live
        ]

    def readers(self, version: int, source: str) -> int:
        return sum(
            pull.version == version and source in pull.sources and pull.state in READING for pull in self.pulls.values()
        )

    def fail_pull(self, pull: ModelPull, *, tainted: bool = False) -> None:
        if tainted or pull.state == "applying":
            worker = self.workers[pull.worker.worker_id]
            worker.tainted, worker.serving = True, None
        pull.state = "failed"

    def fail_version(self, version: ModelVersion) -> None:
        if version.state == "staging":
            version.state = "failed"
            version.holdings.clear()

    def end_epoch(self, worker_id: str) -> None:
        """What belongs to the worker's epoch ends."""
        pull = self.open_pull(worker_id)
        if pull is not None:
            self.fail_pull(pull)
        for version in self.versions.values():
            version.holdings.pop(worker_id, None)
            if any(content.caller.worker_id == worker_id for content in version.published.values()):
                self.fail_version(version)

    def overwrite(self, worker_id: str, memory_slot: int) -> None:
        for version in self.versions.values():
            for content in version.published.values():
                if (content.caller.worker_id, content.memory_slot) == (worker_id, memory_slot):
                    version.holdings.pop(worker_id, None)

    def expected_assignment(self, worker: ModelWorker, have: int) -> int | None:
        """The version that the rank should get."""
        own = self.open_pull(worker.worker_id)
        if own is not None and own.state == "applying":
            return None
        if own is not None and own.state == "staged":
            have = max(have, own.version)
        meeting = set()
        for sibling in self.siblings(worker):
            pull = self.open_pull(sibling.worker_id)
            if pull is not None:
                meeting.add(pull.version)
            if sibling.serving is not None and not sibling.tainted:
                meeting.add(sibling.serving)
        for version in sorted(meeting, reverse=True):
            if version > have and self.versions[version].available():
                return version
        target = self.target()
        return target if target is not None and target > have else None

    def permit(self, worker: ModelWorker, version: int) -> str:
        """``granted``, ``wait`` or ``superseded``."""
        siblings = self.siblings(worker)
        ready = 0
        for sibling in siblings:
            pull = self.open_pull(sibling.worker_id)
            serves = sibling.serving == version and not sibling.tainted
            staged = pull is not None and pull.version == version and pull.state in ("staged", "applying")
            ready += serves or staged
        if ready == WORLD[worker.replica or ""] - 1:
            return "granted"
        pulls = [self.open_pull(sibling.worker_id) for sibling in siblings]
        return "superseded" if any(pull and pull.version > version for pull in pulls) else "wait"

    def assigned(self, caller: Caller, assignment: Assignment) -> None:
        sources = {source.worker_id for shard in assignment.shards for source in shard.sources}
        pull = assignment.pull
        self.pulls[pull.pull_id] = ModelPull(pull.pull_id, pull.version, caller, "assigned", sources)
