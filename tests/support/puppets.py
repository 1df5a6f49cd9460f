"""Trainers and rollouts that go through the protocol's motions with addresses of nothing."""

from __future__ import annotations

import hashlib
from typing import Any

from weightcast.client import ControlPlane, Identity
from weightcast.contract.layout import Layout, TensorSpec
from weightcast.contract.names import Role
from weightcast.contract.pulls import Assignment, Pull, RequestPull, UpdatePull
from weightcast.contract.versions import OpenVersion, PublishShard, Version
from weightcast.contract.workers import Agent, RegisterWorker, SlotMemory, UpdateMemory, WorkerMemory

LAYOUT = Layout(1, 4096, (TensorSpec("w", "float32", (1024,), 0),))


def _memory() -> WorkerMemory:
    slot = SlotMemory(
        header_address="4096", table_address="8192", table_nbytes=1024, data_address="65536", data_nbytes=LAYOUT.nbytes
    )
    return WorkerMemory(bucket_nbytes=1024, slots=[slot, slot])


def _agent(name: str) -> Agent:
    return Agent(name=name, purpose="serve", metadata="AAAA", metadata_digest=hashlib.sha256(b"\0\0\0").hexdigest())


class Puppet:
    """One registered worker."""

    def __init__(self, control: ControlPlane, **facts: Any) -> None:
        self.control = control
        self.body = RegisterWorker(rank=0, world_size=1, incarnation="a" * 32, memory=_memory(), **facts)
        registration = control.register(self.body)
        self.model = self.body.model
        self.me = Identity(registration.worker_id, registration.epoch)

    def move(self) -> None:
        """Announce new memory."""
        body = UpdateMemory(agents=[_agent("moved")], memory=_memory())
        self.control.update_memory(self.me, body)

    def leave(self) -> None:
        """Say goodbye."""
        self.control.leave(self.me)


class PuppetTrainer(Puppet):
    """Rank 0 of 1."""

    def __init__(self, control: ControlPlane, model: str = "policy", run: str = "run-1") -> None:
        super().__init__(control, model=model, role=Role.TRAINER, run=run, agents=[_agent("trainer-0")])

    def open(self, step: int, **options: Any) -> Version:
        """Open a version."""
        body = OpenVersion(run=self.body.run or "", step=step, world_size=1, **options)
        return self.control.open_version(self.me, self.model, body)

    def publish(self, step: int) -> Version:
        """Open, publish, READY."""
        opened = self.open(step)
        digest = self.control.put_layout(self.me, self.model, LAYOUT)
        shard = PublishShard(
            shard=0,
            layout_digest=digest,
            digest_root=hashlib.sha256(str(step).encode()).hexdigest(),
            nbytes=LAYOUT.nbytes,
            memory_slot=step % 2,
            slot_generation=step,
        )
        return self.control.publish_shard(self.me, self.model, opened.version, 0, shard)


class PuppetRollout(Puppet):
    """The one rank of its replica."""

    def __init__(self, control: ControlPlane, replica: str = "r0", model: str = "policy") -> None:
        super().__init__(
            control, model=model, role=Role.ROLLOUT, replica=replica, agents=[_agent(f"rollout-{replica}")]
        )
        self.have = 0

    def ask(self, wait: float = 0.0) -> Assignment | None:
        """The next assignment."""
        return self.control.request_pull(self.me, self.model, RequestPull(have_version=self.have), wait=wait)

    def tell(self, pull_id: str, state: str, **facts: Any) -> Pull:
        """Move a pull along."""
        return self.control.update_pull(self.me, pull_id, UpdatePull.model_validate({"state": state, **facts}))

    def pull(self) -> Pull:
        """Take the next version through all states."""
        assignment = self.ask(wait=5.0)
        assert assignment is not None
        pull_id = assignment.pull.pull_id
        self.tell(pull_id, "fetching", bytes_done=1024)
        self.tell(pull_id, "staged", bytes_done=LAYOUT.nbytes, fetch_seconds=0.5, transport="shm")
        self.tell(pull_id, "applying")
        self.have = assignment.pull.version
        return self.tell(pull_id, "applied", pause_seconds=0.02)
