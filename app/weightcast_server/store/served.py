"""What readers are told of a serving worker, parsed once per registration instead of once per assignment."""

from __future__ import annotations

import json
import sqlite3
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

from weightcast.contract.workers import SourceAgent, SourceMemory

_CAPACITY = 4096


@dataclass(frozen=True, slots=True)
class Served:
    """The serve agent and memory slots of one registration."""

    agent: SourceAgent | None
    slots: tuple[SourceMemory, ...]
    bucket_nbytes: int


def parse_served(agents: str, memory: str | None) -> Served:
    """Read the stored JSON of a registration."""
    serve = next((agent for agent in json.loads(agents) if agent["purpose"] == "serve"), None)
    fields: dict[str, Any] = {"slots": [], "bucket_nbytes": 1}
    if memory is not None:
        fields = json.loads(memory)
    return Served(
        agent=SourceAgent(**serve) if serve is not None else None,
        slots=tuple(SourceMemory(**slot) for slot in fields["slots"]),
        bucket_nbytes=fields["bucket_nbytes"],
    )


class ServedCache:
    """Least recently used, one registration a worker; of the writer thread only.

    Cleared when a batch is rolled back: sequence numbers recur.
    """

    def __init__(self) -> None:
        self._entries: OrderedDict[str, tuple[tuple[int, int], Served]] = OrderedDict()

    def get(self, db: sqlite3.Connection, worker_id: str, epoch: int, memory_seq: int) -> Served:
        """The memory of a registration as it is in this transaction."""
        known = self._entries.get(worker_id)
        if known is None or known[0] != (epoch, memory_seq):
            row = db.execute("SELECT agents, memory FROM worker_memory WHERE worker_id = ?", (worker_id,)).fetchone()
            known = self._entries[worker_id] = ((epoch, memory_seq), parse_served(row["agents"], row["memory"]))
            if len(self._entries) > _CAPACITY:
                self._entries.popitem(last=False)
        self._entries.move_to_end(worker_id)
        return known[1]

    def clear(self) -> None:
        """Forget everything."""
        self._entries.clear()
