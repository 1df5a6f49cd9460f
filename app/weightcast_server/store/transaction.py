"""What an operation of the writer works with: the connection, the time, and a log of what it changes."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from weightcast.contract.pulls import Pull

from weightcast_server.domain.keys import Topic
from weightcast_server.domain.refusal import Refusal
from weightcast_server.store.protocol import StoreOptions, StoreRefusal, Timer, VersionFact, WorkerFact
from weightcast_server.store.served import ServedCache


@dataclass(slots=True)
class ChangeLog:
    """Collects what operations change, in order."""

    topics: set[Topic] = field(default_factory=set)
    workers: list[WorkerFact] = field(default_factory=list)
    versions: list[VersionFact] = field(default_factory=list)
    pulls: list[Pull] = field(default_factory=list)
    timers: list[Timer] = field(default_factory=list)
    holdings_of: set[str] = field(default_factory=set)
    """Models whose holdings or READY versions changed: their target is chosen again before the operation ends."""

    revised: set[str] = field(default_factory=set)
    """Models whose revision grew, or that are new."""

    def add(self, other: ChangeLog) -> None:
        """Append what a successful operation changed."""
        self.topics |= other.topics
        self.workers += other.workers
        self.versions += other.versions
        self.pulls += other.pulls
        self.timers += other.timers
        self.revised |= other.revised


@dataclass(slots=True)
class Tx:
    """One operation within the writer's transaction."""

    db: sqlite3.Connection
    now: float
    options: StoreOptions
    served: ServedCache
    log: ChangeLog = field(default_factory=ChangeLog)

    def one(self, sql: str, *parameters: object) -> sqlite3.Row | None:
        """The first row, if any."""
        row: sqlite3.Row | None = self.db.execute(sql, parameters).fetchone()
        return row

    def all(self, sql: str, *parameters: object) -> list[sqlite3.Row]:
        """Every row."""
        return self.db.execute(sql, parameters).fetchall()

    def run(self, sql: str, *parameters: object) -> int:
        """Execute; the number of rows written."""
        return self.db.execute(sql, parameters).rowcount


@dataclass(frozen=True, slots=True)
class CommittedRefusal:
    """Outcome of an operation that keeps what it wrote and refuses all the same."""

    refusal: StoreRefusal


Operation: TypeAlias = Callable[[Tx], Any]


def require(refusal: Refusal | None) -> None:
    """Raise a rule's negative answer."""
    if refusal is not None:
        raise StoreRefusal(refusal.code, refusal.detail)
