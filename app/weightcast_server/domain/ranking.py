"""In which order a reader should try the holders of a shard."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Place:
    """Where a worker runs; None is unknown, and unknown is never the same place."""

    host: str
    rack: str | None = None
    zone: str | None = None


@dataclass(frozen=True, slots=True)
class Candidate:
    """A live worker with an assignable holding of the shard."""

    worker_id: str
    place: Place
    readers: int
    """Pulls that read from it first."""


def rank_sources(reader_id: str, place: Place, excluded: Collection[str], candidates: Iterable[Candidate]) -> list[str]:
    """Worker ids, best first: not excluded, near, few readers; equals are spread by a hash. Never the reader itself."""

    def key(candidate: Candidate) -> tuple[bool, int, int, bytes, str]:
        return (
            candidate.worker_id in excluded,
            distance(place, candidate.place),
            candidate.readers,
            _spread(reader_id, candidate.worker_id),
            candidate.worker_id,
        )

    others = (candidate for candidate in candidates if candidate.worker_id != reader_id)
    return [candidate.worker_id for candidate in sorted(others, key=key)]


def distance(one: Place, other: Place) -> int:
    """0 on the same host, 1 in the same rack, 2 in the same zone, 3 elsewhere."""
    if one.host == other.host:
        return 0
    if one.rack is not None and one.rack == other.rack:
        return 1
    if one.zone is not None and one.zone == other.zone:
        return 2
    return 3


def _spread(reader_id: str, source_id: str) -> bytes:
    return hashlib.blake2b(f"{reader_id}\n{source_id}".encode(), digest_size=8).digest()
