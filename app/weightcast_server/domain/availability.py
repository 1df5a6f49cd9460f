"""Which version can be had, and which one a model's replicas should serve."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from weightcast.contract.names import VersionState


@dataclass(frozen=True, slots=True)
class Coverage:
    """A version and the shards that assignable holdings cover."""

    version: int
    state: VersionState
    shards: int
    covered: Collection[int]


def is_available(coverage: Coverage) -> bool:
    """READY, and every shard has at least one assignable holding."""
    return coverage.state is VersionState.READY and len(set(coverage.covered)) == coverage.shards


def choose_target(newest_first: Iterable[Coverage]) -> int | None:
    """The first available version of an iterable that runs from the newest down; the rest is not looked at."""
    return next((coverage.version for coverage in newest_first if is_available(coverage)), None)
