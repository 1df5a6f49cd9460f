"""A trainer that does what it is told."""

from __future__ import annotations

from typing import Any

import torch
from support.child_hooks import Gate, gated_write
from support.weights import Changes, change, make_weights, part_of, sha256
from weightcast.engines.agent import NixlAgent
from weightcast.settings import WorkerSettings
from weightcast.trainer import Trainer


class TrainerChild:
    """Commands of a trainer. ``part`` publishes only every n-th tensor, ``changes`` other ones than rollouts have."""

    def __init__(
        self,
        settings: WorkerSettings,
        mib: float,
        part: list[int] | None = None,
        changes: Changes | None = None,
        **options: Any,
    ) -> None:
        self._mib, self._part, self._changes = mib, part, changes
        self.weights = self._make(0)
        self.trainer = Trainer(lambda: self.weights, settings=settings, **options)
        self._published: dict[int, Any] = {}
        self.written = Gate()
        gated_write(self.trainer, self.written)

    def publish(self, step: int, seed: int, corrupt: bool = False) -> dict[str, Any]:
        self.weights = self._make(seed)
        published = self.trainer.publish(step=step)
        self._published[published.version] = published
        if corrupt:
            self.corrupt()
        return {
            "version": published.version,
            "step": published.step,
            "sha256": sha256(self.weights),
        }

    def hold(self) -> None:
        """Let the next publish wait when its bytes are written and the server does not know yet, until `release`."""
        self.written.close()

    def held(self) -> bool:
        """Whether a publish waits now."""
        return self.written.waiting

    def release(self) -> None:
        self.written.open()

    def offered(self) -> dict[str, Any]:
        """What the newest slot is offered as, and the agent and memory behind it: what an impostor would copy."""
        newest = max(self.trainer._offers._offers.values(), key=lambda offer: offer.version)
        return {
            "body": newest.body.model_dump(mode="json"),
            "agent": self.trainer.agent_info.model_dump(mode="json"),
            "memory": self.trainer.memory.model_dump(mode="json"),
        }

    def corrupt(self) -> None:
        """Flip one bit of every slot behind the library's back."""
        for slot in self.trainer._source._slots:
            slot.bytes[len(slot.bytes) // 2] ^= 1

    def wait_ready(self, version: int, timeout: float = 30.0) -> str:
        return str(self._published[version].wait_ready(timeout).state)

    def wait_applied(self, version: int, replicas: int | None = None, timeout: float = 30.0) -> list[str]:
        return list(self._published[version].wait_applied(replicas, timeout).applied)

    def wait_drained(self, version: int, timeout: float = 10.0) -> bool:
        return bool(self._published[version].wait_drained(timeout))

    def abort(self, version: int) -> str:
        return str(self._published[version].abort("told to").state)

    def state(self) -> dict[str, Any]:
        source = self.trainer._source
        return {
            "metadata_nbytes": len(source._serve.call(NixlAgent.metadata, 10, "the metadata")),
            "fenced": self.trainer._session.fenced,
            "slots": [source.held(slot).version for slot in range(source.slots)],
            "valid": [source.held(slot).valid for slot in range(source.slots)],
        }

    def close(self) -> None:
        self.release()
        self.trainer.close()

    @property
    def identity(self) -> list[Any]:
        return list(self.trainer._session.identity)

    def _make(self, seed: int) -> dict[str, torch.Tensor]:
        return change(part_of(make_weights(seed, self._mib), self._part), self._changes)
