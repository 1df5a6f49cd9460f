"""The ranks of a replica as the rules see them."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass

from weightcast.contract.names import PullState, WorkerState

from weightcast_server.domain.pulls import Rank

_RANKS = """
SELECT w.worker_id, w.rank, w.state, w.serving_version, w.tainted, w.pause_seconds,
       p.version AS pull_version, p.state AS pull_state
FROM workers w
LEFT JOIN pulls p ON p.worker_id = w.worker_id AND p.state IN ('assigned', 'fetching', 'staged', 'applying')
WHERE w.model = ? AND w.replica = ? AND w.role = 'rollout'
ORDER BY w.rank
"""


@dataclass(frozen=True, slots=True)
class Member:
    """A rank, and what only the listings need of it."""

    worker_id: str
    rank: Rank
    pause_seconds: float | None


def load_members(db: sqlite3.Connection, model: str, replica: str) -> Sequence[Member]:
    """Every rank that ever registered for the replica, by rank."""
    return [_member(row) for row in db.execute(_RANKS, (model, replica))]


def load_siblings(db: sqlite3.Connection, model: str, replica: str, worker_id: str) -> list[Rank]:
    """The other ranks."""
    return [member.rank for member in load_members(db, model, replica) if member.worker_id != worker_id]


def _member(row: sqlite3.Row) -> Member:
    return Member(
        row["worker_id"],
        Rank(
            rank=row["rank"],
            live=row["state"] == WorkerState.LIVE,
            serving_version=row["serving_version"],
            tainted=bool(row["tainted"]),
            pull_version=row["pull_version"],
            pull_state=PullState(row["pull_state"]) if row["pull_state"] is not None else None,
        ),
        row["pause_seconds"],
    )
