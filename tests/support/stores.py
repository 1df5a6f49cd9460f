"""A fleet of imagined workers in front of a real store: what the store's tests say in one line."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from typing import Any

from weightcast.contract.names import Role
from weightcast.contract.pulls import Assignment, Pull, RequestPull, UpdatePull
from weightcast.contract.versions import OpenVersion, PublishShard, Version
from weightcast.contract.workers import Agent, RegisterWorker, SlotMemory, WorkerMemory
from weightcast_server.domain.keys import Topic
from weightcast_server.store.protocol import Caller, Changes, Store

MODEL = "policy"
RUN = "run-a"


def digest(seed: int | str) -> str:
    """A digest that differs for every seed."""
    return uuid.uuid5(uuid.NAMESPACE_OID, str(seed)).hex * 2


class Clock:
    """A wall clock that the test moves."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        """Seconds since the Unix epoch."""
        return self.now


class Recorder:
    """Keeps what ``on_commit`` was told."""

    def __init__(self) -> None:
        self.all: list[Changes] = []

    def __call__(self, changes: Changes) -> None:
        self.all.append(changes)

    def take(self) -> list[Changes]:
        """What came since the last call."""
        taken, self.all = self.all, []
        return taken

    def take_topics(self) -> set[Topic]:
        """The topics that changed since the last call."""
        return {topic for changes in self.take() for topic in changes.topics}


def memory(slots: int = 2, nbytes: int = 1000) -> WorkerMemory:
    """Registered memory with slots of one size."""
    return WorkerMemory(
        bucket_nbytes=64,
        slots=[
            SlotMemory(
                header_address=str(1000 + index),
                table_address="2000",
                table_nbytes=256,
                data_address="18446744073709551615",
                data_nbytes=nbytes,
            )
            for index in range(slots)
        ],
    )


def agents(name: str, purposes: Iterable[str] = ("serve", "fetch")) -> list[Agent]:
    """Agents of a worker."""
    return [
        Agent.model_validate(
            {"name": f"{name}-{purpose}", "purpose": purpose, "metadata": "AAAA", "metadata_digest": digest(name)}
        )
        for purpose in purposes
    ]


def trainer_body(rank: int = 0, world: int = 1, **fields: Any) -> RegisterWorker:
    """Registration of a trainer."""
    values: dict[str, Any] = {
        "model": MODEL,
        "role": Role.TRAINER,
        "rank": rank,
        "world_size": world,
        "run": RUN,
        "incarnation": uuid.uuid4().hex,
        "agents": agents(f"trainer-{rank}"),
        "memory": memory(),
    }
    return RegisterWorker(**{**values, **fields})


def rollout_body(replica: str = "r0", rank: int = 0, world: int = 1, **fields: Any) -> RegisterWorker:
    """Registration of a rollout."""
    values: dict[str, Any] = {
        "model": MODEL,
        "role": Role.ROLLOUT,
        "rank": rank,
        "world_size": world,
        "replica": replica,
        "incarnation": uuid.uuid4().hex,
        "agents": agents(f"rollout-{replica}-{rank}", ["fetch"]),
    }
    return RegisterWorker(**{**values, **fields})


def shard_body(seed: int | str = 0, **fields: Any) -> PublishShard:
    """Publication whose bytes are named by a seed; its layout is the one that :meth:`Fleet.layout` uploads."""
    values: dict[str, Any] = {
        "shard": 0,
        "layout_digest": digest("layout"),
        "digest_root": digest(seed),
        "nbytes": 800,
        "memory_slot": 0,
        "slot_generation": 1,
    }
    return PublishShard(**{**values, **fields})


class Fleet:
    """Registers workers of one model and moves them along."""

    def __init__(self, store: Store) -> None:
        self.store = store

    async def register(self, body: RegisterWorker) -> Caller:
        """Register anything."""
        registered = await self.store.register_worker(body)
        return Caller(registered.worker_id, registered.epoch)

    async def trainer(self, rank: int = 0, world: int = 1, **fields: Any) -> Caller:
        """Register a trainer, and see to it that the layout is there."""
        caller = await self.register(trainer_body(rank, world, **fields))
        await self.store.put_layout(caller, fields.get("model", MODEL), digest("layout"), b"blob", 800)
        return caller

    async def rollout(self, replica: str = "r0", rank: int = 0, world: int = 1, **fields: Any) -> Caller:
        """Register a rollout."""
        return await self.register(rollout_body(replica, rank, world, **fields))

    async def open(self, caller: Caller, step: int, world: int = 1, **fields: Any) -> int:
        """Open a version; its number."""
        body = OpenVersion(**{"run": RUN, "step": step, "world_size": world, **fields})
        return (await self.store.open_version(caller, MODEL, body)).version

    async def publish(self, callers: Sequence[Caller], step: int, shards: int = 1, slot: int | None = None) -> Version:
        """Open a version and fill every slot of it; rank r publishes shard r modulo ``shards``."""
        version = 0
        run = (await self.store.get_worker(callers[0].worker_id)).run
        for caller in callers:
            version = await self.open(caller, step, len(callers), shards=shards, run=run)
        for rank, caller in enumerate(callers):
            shard = rank % shards
            body = shard_body(
                f"{step}/{shard}",
                shard=shard,
                memory_slot=version % 2 if slot is None else slot,
                slot_generation=version,
            )
            await self.store.publish_shard(caller, MODEL, version, rank, body)
        return await self.store.get_version(MODEL, version)

    async def assign(self, caller: Caller, have: int = 0, exclude: Sequence[str] = ()) -> Assignment | None:
        """Ask for an assignment."""
        return await self.store.assign_pull(caller, MODEL, RequestPull(have_version=have, exclude=list(exclude)))

    async def pull(self, caller: Caller, have: int = 0, exclude: Sequence[str] = ()) -> Assignment:
        """Ask for an assignment that must be there."""
        assignment = await self.assign(caller, have, exclude)
        assert assignment is not None
        return assignment

    async def move(self, caller: Caller, pull: Pull, *states: str, **fields: Any) -> Pull:
        """Report states in turn; ``fields`` go with the last."""
        for index, state in enumerate(states):
            last = index == len(states) - 1
            body = UpdatePull.model_validate({"state": state, **(fields if last else {})})
            pull = (await self.store.update_pull(caller, pull.pull_id, body)).pull
        return pull

    async def apply(self, caller: Caller, have: int = 0) -> int:
        """Pull the next version and apply it; its number."""
        assignment = await self.pull(caller, have)
        pull = await self.move(caller, assignment.pull, "fetching", "staged", "applying", "applied", pause_seconds=0.5)
        return pull.version
