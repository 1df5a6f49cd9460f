"""Identities of things that expire, and topics that callers wait for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class WorkerKey:
    """One epoch of one worker: what a lease belongs to, and who a fenced write comes from."""

    worker_id: str
    epoch: int


@dataclass(frozen=True, slots=True)
class VersionKey:
    """A version of a model: STAGING ends at its deadline."""

    model: str
    version: int


@dataclass(frozen=True, slots=True)
class PullKey:
    """A pull: ASSIGNED and FETCHING end when no progress is reported."""

    pull_id: str


ClockKey: TypeAlias = WorkerKey | VersionKey | PullKey
"""What the lease clock counts down."""


@dataclass(frozen=True, slots=True)
class TargetTopic:
    """The target of a model changed."""

    model: str


@dataclass(frozen=True, slots=True)
class RevisionTopic:
    """The revision of a model grew: its target or the state of one of its versions changed."""

    model: str


@dataclass(frozen=True, slots=True)
class VersionTopic:
    """The state of one version changed."""

    model: str
    version: int


@dataclass(frozen=True, slots=True)
class ReplicasTopic:
    """What some replica of a model serves, or which of its ranks live, changed."""

    model: str


@dataclass(frozen=True, slots=True)
class ReplicaTopic:
    """A rank of this replica, or one of its pulls, changed state."""

    model: str
    replica: str


@dataclass(frozen=True, slots=True)
class ReadersTopic:
    """A pull that listed this worker as a source stopped reading."""

    worker_id: str


Topic: TypeAlias = TargetTopic | RevisionTopic | VersionTopic | ReplicasTopic | ReplicaTopic | ReadersTopic
"""What a parked call waits for."""
