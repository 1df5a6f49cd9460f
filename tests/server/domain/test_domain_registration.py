"""Epochs and ownership: who may take a rank, and who may act."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given
from weightcast.contract.names import MAX_INT, WorkerState
from weightcast.contract.problems import Code
from weightcast_server.domain.refusal import Refusal
from weightcast_server.domain.registration import (
    Epoch,
    StoredWorker,
    check_fence,
    decide_epoch,
    decide_owner,
    decide_world_size,
)

LIVE, LOST, LEFT = WorkerState.LIVE, WorkerState.LOST, WorkerState.LEFT


@pytest.mark.parametrize(
    ("stored", "incarnation", "previous", "expected"),
    [
        (None, "me", 0, Epoch(1, replayed=False)),
        (None, "me", 6, Epoch(7, replayed=False)),
        (StoredWorker(4, LIVE, "me"), "me", 0, Epoch(4, replayed=True)),
        (StoredWorker(4, LIVE, "me"), "me", 3, Epoch(4, replayed=True)),
        (StoredWorker(4, LIVE, "me"), "me", 4, Epoch(4, replayed=True)),
        (StoredWorker(4, LIVE, "me"), "me", 6, Epoch(7, replayed=False)),
        (StoredWorker(4, LOST, "me"), "me", 4, Epoch(5, replayed=False)),
        (StoredWorker(4, LEFT, "me"), "me", 0, Epoch(5, replayed=False)),
        (StoredWorker(4, LIVE, "other"), "me", 0, Epoch(5, replayed=False)),
        (StoredWorker(4, LIVE, "other"), "me", 4, Epoch(5, replayed=False)),
        (StoredWorker(4, LOST, "other"), "me", 9, Epoch(10, replayed=False)),
        (StoredWorker(4, LIVE, "other"), "me", 3, Code.STALE_EPOCH),
        (StoredWorker(4, LOST, "other"), "me", 1, Code.STALE_EPOCH),
        (StoredWorker(MAX_INT, LOST, "me"), "me", 1, Code.VALIDATION_FAILED),
    ],
)
def test_epochs(stored: StoredWorker | None, incarnation: str, previous: int, expected: Epoch | Code) -> None:
    decision = decide_epoch(stored, incarnation, previous)
    assert (decision.code if isinstance(decision, Refusal) else decision) == expected


stored_workers = st.builds(StoredWorker, st.integers(1, 9), st.sampled_from(WorkerState), st.sampled_from("ab"))


@given(stored_workers, st.sampled_from("ab"), st.integers(0, 10))
def test_an_epoch_never_falls_and_only_its_owner_keeps_it(
    stored: StoredWorker, incarnation: str, previous: int
) -> None:
    decision = decide_epoch(stored, incarnation, previous)
    if isinstance(decision, Refusal):
        assert incarnation != stored.incarnation
        return
    assert decision.number >= max(stored.epoch, previous)
    assert decision.replayed == (decision.number == stored.epoch)
    if decision.replayed:
        assert (incarnation, LIVE) == (stored.incarnation, stored.state)


@pytest.mark.parametrize(
    ("epoch", "stored", "state", "expected"),
    [
        (3, None, None, Code.UNKNOWN_WORKER),
        (4, 3, LIVE, Code.UNKNOWN_WORKER),
        (2, 3, LIVE, Code.STALE_EPOCH),
        (2, 3, LOST, Code.STALE_EPOCH),
        (3, 3, LOST, Code.LEASE_EXPIRED),
        (3, 3, LEFT, Code.LEASE_EXPIRED),
        (3, 3, LIVE, None),
    ],
)
def test_fences(epoch: int, stored: int | None, state: WorkerState | None, expected: Code | None) -> None:
    refusal = check_fence("w", epoch, stored, state)
    assert (refusal.code if refusal else None) == expected


def test_owners() -> None:
    assert decide_owner("m", None, "b", []) is None
    assert decide_owner("m", "a", "a", ["m:trainer:0"]) is None
    assert decide_owner("m", "a", "b", []) is None
    refusal = decide_owner("m", "a", "b", [f"m:trainer:{rank}" for rank in range(9)])
    assert refusal is not None
    assert refusal.code is Code.MODEL_OWNED
    assert "run a" in refusal.detail
    assert refusal.detail.endswith("m:trainer:3 …")


def test_world_sizes() -> None:
    assert decide_world_size("r", None, 2, 0) is None
    assert decide_world_size("r", 2, 2, 1) is None
    assert decide_world_size("r", 2, 4, 0) is None
    refusal = decide_world_size("r", 2, 4, 1)
    assert refusal is not None
    assert refusal.code is Code.REPLICA_CONFLICT
