"""Data-parallel training over gloo that keeps the weights of all ranks bit-identical."""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist

# Imported while no process group exists. Its functions take the group of that moment as a default; imported later (an
# optimizer does) they keep the group alive past `destroy_process_group`, and its threads abort the process at its exit.
import torch.distributed.nn.functional

from weightcast.demo.model import Transformer
from weightcast.demo.text import Corpus


@dataclass(frozen=True, slots=True)
class TrainingConfig:
    """How a step is made; batch is the number of sequences of one rank."""

    seed: int = 20
    batch: int = 4
    length: int = 128
    learning_rate: float = 1.5e-3
    warmup_steps: int = 8
    weight_decay: float = 0.05
    clip: float = 1.0


@dataclass(frozen=True, slots=True)
class StepResult:
    """What all ranks agree on after a step."""

    step: int
    loss: float
    publish: bool
    stop: bool


@contextmanager
def process_group(rendezvous: Path, rank: int, world_size: int, *, timeout_seconds: float = 60) -> Iterator[None]:
    """Join the trainers that meet at a file; a rank that dies ends the wait of the others."""
    # Addresses of the loopback only: resolving the host's own name fails in some containers.
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group(
        "gloo",
        init_method=rendezvous.resolve().as_uri(),
        rank=rank,
        world_size=world_size,
        timeout=dt.timedelta(seconds=timeout_seconds),
    )
    try:
        yield
    finally:
        dist.destroy_process_group()


class DataParallelTraining:
    """One rank: a step is forward and backward on its own batch, one all-reduce, and the same update everywhere.

    Gradients live in one flat buffer, so the all-reduce needs no copies. Its tail carries the loss and rank 0's signals
    along, so that all ranks publish or stop after the same step without another exchange.
    """

    def __init__(self, model: Transformer, corpus: Corpus, config: TrainingConfig, rank: int, world_size: int) -> None:
        self.model = model
        self.steps = 0
        self._corpus = corpus
        self._config = config
        self._rank = rank
        self._world_size = world_size
        parameters = list(model.parameters())
        size = sum(parameter.numel() for parameter in parameters)
        self._reduced = torch.zeros(size + 3)
        self._gradient = self._reduced[:size]
        self._tail = self._reduced[size:]
        offset = 0
        for parameter in parameters:
            parameter.grad = self._gradient[offset : offset + parameter.numel()].view_as(parameter)
            offset += parameter.numel()
        matrices = [parameter for parameter in parameters if parameter.dim() > 1]
        vectors = [parameter for parameter in parameters if parameter.dim() <= 1]
        self._optimizer = torch.optim.AdamW(
            [{"params": matrices, "weight_decay": config.weight_decay}, {"params": vectors, "weight_decay": 0.0}],
            lr=config.learning_rate,
            betas=(0.9, 0.95),
            fused=True,
        )

    def step(self, *, publish: bool = False, stop: bool = False) -> StepResult:
        """Train one step; a rank that signals is heard by all."""
        config = self._config
        inputs, targets = self._corpus.batch(
            seed=config.seed, rank=self._rank, step=self.steps, size=config.batch, length=config.length
        )
        self._reduced.zero_()
        loss = self.model.loss(inputs, targets)
        loss.backward()  # type: ignore[no-untyped-call]
        self._tail[0] = loss.detach()
        self._tail[1] = float(publish)
        self._tail[2] = float(stop)
        if self._world_size > 1:
            dist.all_reduce(self._reduced)
        self._reduced.div_(self._world_size)
        norm = float(torch.linalg.vector_norm(self._gradient))
        self._gradient.mul_(min(1.0, config.clip / (norm + 1e-6)))
        self.steps += 1
        for group in self._optimizer.param_groups:
            group["lr"] = config.learning_rate * min(1.0, self.steps / config.warmup_steps)
        self._optimizer.step()
        mean_loss, publish_votes, stop_votes = self._tail.tolist()
        return StepResult(self.steps, mean_loss, publish_votes > 0, stop_votes > 0)
