"""Bounded scalar types, enumerations and constants shared by every wire model.

Every string has a pattern and a length, every integer a range and every number of seconds is finite: what passes here
can be stored, logged and compared without further checks.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final

from pydantic import Field, StringConstraints

CONTRACT_VERSION: Final = 1
"""Version of the REST contract spoken by this build; negotiated at registration."""

WORKER_HEADER: Final = "Weightcast-Worker"
"""Request header naming the calling worker (its id)."""

EPOCH_HEADER: Final = "Weightcast-Epoch"
"""Request header with the caller's epoch; an older epoch than the stored one is refused as ``stale_epoch``."""

MAX_INT: Final = 2**53 - 1
"""Largest integer that every JSON reader keeps exactly."""

MAX_WAIT_SECONDS: Final = 60.0
"""Longest time that one request may stay parked."""

MAX_WORLD_SIZE: Final = 65_536
MAX_METADATA_BASE64: Final = 4_194_304
MAX_SLOTS: Final = 8

# Plain `int` and `float` accept booleans and numeric strings in pydantic's lax mode; the wire models do not.
Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")]
"""Name of a model, run, replica, host, rack or zone: 1–63 characters, safe in a path."""

WorkerId = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:-]{0,199}$")]
"""``<model>:trainer:<rank>`` or ``<model>:rollout:<replica>:<rank>``: a natural key, so one rank has one owner."""

Incarnation = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{32}$")]
"""Random identity of one worker process life (a UUID4 in hex)."""

PullId = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{32}$")]
AgentName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:-]{0,199}$")]
Digest = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
"""SHA-256 in lower-case hex."""

Base64 = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9+/]*={0,2}$", max_length=MAX_METADATA_BASE64)]
Address = Annotated[str, StringConstraints(pattern=r"^(0|[1-9][0-9]{0,19})$")]
"""A memory address as decimal text: device addresses exceed 2^53, which JSON numbers do not keep."""

Reason = Annotated[str, StringConstraints(pattern=r"^[\x20-\x7e\u00a0-\ud7ff\ue000-\ufffd]*$", max_length=1000)]
"""One line of human-readable text."""

Rank = Annotated[int, Field(strict=True, ge=0, lt=MAX_WORLD_SIZE)]
WorldSize = Annotated[int, Field(strict=True, ge=1, le=MAX_WORLD_SIZE)]
Count = Annotated[int, Field(strict=True, ge=0, le=MAX_INT)]
Sequence = Annotated[int, Field(strict=True, ge=0, le=2**40)]
"""A version or epoch as a worker remembers it: numbering continues above it, so it leaves room."""

VersionNumber = Annotated[int, Field(strict=True, ge=1, le=MAX_INT)]
Epoch = Annotated[int, Field(strict=True, ge=1, le=MAX_INT)]
Seconds = Annotated[float, Field(ge=0, le=31_536_000, allow_inf_nan=False, strict=True)]
"""A duration in seconds, finite."""

Timestamp = Annotated[float, Field(ge=0, allow_inf_nan=False)]
"""Seconds since the Unix epoch by the server's clock."""


class Role(StrEnum):
    """What a worker does for its model."""

    TRAINER = "trainer"
    ROLLOUT = "rollout"


class WorkerState(StrEnum):
    """``live`` while its lease runs; ``lost`` when the lease ended; ``left`` after a goodbye."""

    LIVE = "live"
    LOST = "lost"
    LEFT = "left"


class VersionState(StrEnum):
    """``staging`` until the last expected shard arrived; ``ready`` and ``failed`` are final."""

    STAGING = "staging"
    READY = "ready"
    FAILED = "failed"


class VersionFailure(StrEnum):
    """Why a version failed."""

    DEADLINE = "deadline"
    ABORTED = "aborted"
    PUBLISHER_LOST = "publisher_lost"
    REPLICA_DIGEST_MISMATCH = "replica_digest_mismatch"
    REPLICA_LAYOUT_MISMATCH = "replica_layout_mismatch"
    SHARDS_INCOMPLETE = "shards_incomplete"
    RUN_REPLACED = "run_replaced"


class HoldingState(StrEnum):
    """``held``: may be assigned; ``draining``: current readers may finish, no new ones. Gone holdings are deleted."""

    HELD = "held"
    DRAINING = "draining"


class PullState(StrEnum):
    """States of one rank's pull of one version."""

    ASSIGNED = "assigned"
    FETCHING = "fetching"
    STAGED = "staged"
    APPLYING = "applying"
    APPLIED = "applied"
    FAILED = "failed"


class PullFailure(StrEnum):
    """Why a pull failed. The first group is reported by workers, the second decided by the server."""

    SOURCE_UNREACHABLE = "source_unreachable"
    SOURCE_STALLED = "source_stalled"
    SOURCE_OVERWRITTEN = "source_overwritten"
    DIGEST_MISMATCH = "digest_mismatch"
    METADATA_CORRUPT = "metadata_corrupt"
    LAYOUT_MISMATCH = "layout_mismatch"
    APPLY_FAILED = "apply_failed"
    CANCELLED = "cancelled"
    INTERNAL = "internal"

    WORKER_LOST = "worker_lost"
    SUPERSEDED = "superseded"
    DEADLINE = "deadline"


class MemoryKind(StrEnum):
    """NIXL memory segment kinds that a slot can live in."""

    DRAM = "DRAM"
    VRAM = "VRAM"
