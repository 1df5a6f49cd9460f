"""The states of a pull: which may follow which, which version a rank gets, and when it may touch live weights."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from weightcast.contract.names import PullFailure, PullState

READING: Final = frozenset({PullState.ASSIGNED, PullState.FETCHING})
"""The pull may be reading from its sources."""

OPEN: Final = READING | {PullState.STAGED, PullState.APPLYING}
"""The pull has not ended."""

SOURCE_FAILURES: Final = frozenset(
    {
        PullFailure.SOURCE_UNREACHABLE,
        PullFailure.SOURCE_STALLED,
        PullFailure.SOURCE_OVERWRITTEN,
        PullFailure.DIGEST_MISMATCH,
        PullFailure.METADATA_CORRUPT,
    }
)
"""Failures that speak against the holding that was read."""

SERVER_FAILURES: Final = frozenset({PullFailure.WORKER_LOST, PullFailure.SUPERSEDED, PullFailure.DEADLINE})
"""Failures that only the server decides."""

_NEXT: Final[Mapping[PullState, frozenset[PullState]]] = {
    PullState.ASSIGNED: frozenset({PullState.FETCHING, PullState.STAGED, PullState.FAILED}),
    PullState.FETCHING: frozenset({PullState.STAGED, PullState.FAILED}),
    PullState.STAGED: frozenset({PullState.APPLYING, PullState.FAILED}),
    PullState.APPLYING: frozenset({PullState.APPLIED, PullState.FAILED}),
    PullState.APPLIED: frozenset(),
    PullState.FAILED: frozenset(),
}


class Step(Enum):
    """What a requested state means for a pull."""

    MOVE = "move"
    SAME = "same"
    REFUSED = "refused"


def decide_step(current: PullState, wanted: PullState) -> Step:
    """Whether a pull may go from one state to another; the state it already has is a repetition."""
    if current is wanted:
        return Step.SAME
    return Step.MOVE if wanted in _NEXT[current] else Step.REFUSED


def taints(current: PullState, *, reported: bool | None) -> bool:
    """Whether a pull that fails in this state leaves live weights of no single version.

    ``reported`` is what its worker says; None when it did not or cannot, and then a pull that was applying taints.
    """
    return current is PullState.APPLYING if reported is None else reported


@dataclass(frozen=True, slots=True)
class Rank:
    """A rank of a replica as far as its siblings care. Of the current epoch only: a lost rank is not ``live``."""

    rank: int
    live: bool
    serving_version: int | None
    tainted: bool
    pull_version: int | None
    """Version of its open pull."""

    pull_state: PullState | None

    def serves(self, version: int) -> bool:
        """Whether it computes with exactly this version."""
        return self.live and not self.tainted and self.serving_version == version

    def has_staged(self, version: int) -> bool:
        """Whether the version's bytes are local and verified, or being applied."""
        return self.live and self.pull_version == version and self.pull_state in (PullState.STAGED, PullState.APPLYING)


def meeting_versions(have_version: int, siblings: Iterable[Rank]) -> list[int]:
    """Versions above ``have_version`` that a sibling serves or is on its way to, highest first.

    A rank that asks is assigned the first of them that can be had, instead of the target, so that all meet at one.
    """
    versions: set[int] = set()
    for sibling in siblings:
        if not sibling.live:
            continue
        if sibling.pull_version is not None and sibling.pull_state in OPEN:
            versions.add(sibling.pull_version)
        if sibling.serving_version is not None and not sibling.tainted:
            versions.add(sibling.serving_version)
    return sorted((version for version in versions if version > have_version), reverse=True)


class Permit(Enum):
    """Answer to a rank that wants to change live weights."""

    GRANTED = "granted"
    WAIT = "wait"
    SUPERSEDED = "superseded"


def decide_permit(version: int, world_size: int, rank: int, siblings: Sequence[Rank]) -> Permit:
    """Grant when every other rank has the version staged or serves it; superseded when one moved on to a newer one."""
    by_rank = {sibling.rank: sibling for sibling in siblings}
    others = [by_rank.get(other) for other in range(world_size) if other != rank]
    if all(other is not None and (other.serves(version) or other.has_staged(version)) for other in others):
        return Permit.GRANTED
    if any(other is not None and other.live and (other.pull_version or 0) > version for other in others):
        return Permit.SUPERSEDED
    return Permit.WAIT
