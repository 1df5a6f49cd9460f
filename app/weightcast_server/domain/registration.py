"""Who may take a rank, under which epoch, and who may act under one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from weightcast.contract.names import MAX_INT, WorkerState
from weightcast.contract.problems import Code

from weightcast_server.domain.refusal import Refusal


@dataclass(frozen=True, slots=True)
class StoredWorker:
    """What the store knows about the last process of a rank."""

    epoch: int
    state: WorkerState
    incarnation: str


@dataclass(frozen=True, slots=True)
class Epoch:
    """The epoch that a registration gets; ``replayed`` when it had it before and only lost the answer."""

    number: int
    replayed: bool


def decide_epoch(stored: StoredWorker | None, incarnation: str, previous_epoch: int) -> Epoch | Refusal:
    """Decide the epoch of a registering process.

    A process that once held an epoch and finds a newer one of another process was replaced: it may not come back.
    """
    if stored is None:
        return _next_epoch(previous_epoch)
    if incarnation == stored.incarnation:
        if stored.state is WorkerState.LIVE and previous_epoch <= stored.epoch:
            return Epoch(stored.epoch, replayed=True)
    elif 0 < previous_epoch < stored.epoch:
        return Refusal(
            Code.STALE_EPOCH, f"epoch {previous_epoch} was replaced by epoch {stored.epoch} of another process"
        )
    return _next_epoch(max(stored.epoch, previous_epoch))


def _next_epoch(last: int) -> Epoch | Refusal:
    if last >= MAX_INT:
        return Refusal(Code.VALIDATION_FAILED, f"there is no epoch above {last}")
    return Epoch(last + 1, replayed=False)


def check_fence(worker_id: str, epoch: int, stored_epoch: int | None, state: WorkerState | None) -> Refusal | None:
    """Whether a process may act under its epoch; None means that it may."""
    if stored_epoch is None:
        return Refusal(Code.UNKNOWN_WORKER, f"no worker {worker_id} is registered")
    if epoch > stored_epoch:
        # Only a store that was wiped or rolled back is behind its workers: registering again continues above.
        return Refusal(Code.UNKNOWN_WORKER, f"{worker_id} is registered with epoch {stored_epoch}, not yet {epoch}")
    if epoch < stored_epoch:
        return Refusal(Code.STALE_EPOCH, f"{worker_id} was taken over by epoch {stored_epoch}; {epoch} may not act")
    if state is not WorkerState.LIVE:
        return Refusal(Code.LEASE_EXPIRED, f"{worker_id} epoch {epoch} is {state}")
    return None


def decide_owner(model: str, owner_run: str | None, run: str, live_trainers: Sequence[str]) -> Refusal | None:
    """Whether a run may publish a model: while any trainer of the owner lives, no other run may."""
    if owner_run is None or owner_run == run or not live_trainers:
        return None
    names = ", ".join(sorted(live_trainers)[:4]) + (" …" if len(live_trainers) > 4 else "")
    return Refusal(Code.MODEL_OWNED, f"{model} is published by run {owner_run}, whose trainers are live: {names}")


def decide_world_size(replica: str, agreed: int | None, asked: int, live_others: int) -> Refusal | None:
    """Whether a rank may join a replica with this world size: the live ranks must agree."""
    if agreed is None or agreed == asked or not live_others:
        return None
    return Refusal(
        Code.REPLICA_CONFLICT, f"replica {replica} has {live_others} live ranks of world size {agreed}, not {asked}"
    )
