"""Versions, shards, holdings and the watched target."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from weightcast.contract.base import RequestModel, ResponseModel
from weightcast.contract.names import (
    MAX_SLOTS,
    Count,
    Digest,
    HoldingState,
    Name,
    Rank,
    Reason,
    Timestamp,
    VersionFailure,
    VersionNumber,
    VersionState,
    WorkerId,
    WorldSize,
)


class OpenVersion(RequestModel):
    """Body of ``POST /v1/models/{m}/versions``. Natural key: (run, step, attempt); every rank asks."""

    run: Name
    step: Count
    attempt: Annotated[int, Field(strict=True, ge=0, le=1_000_000)] = 0
    world_size: WorldSize = Field(description="Trainer ranks that will publish; each fills the slot of its rank.")
    shards: WorldSize = Field(1, description="Distinct shards; ranks beyond that number are replicas of one of them.")
    deadline_seconds: Annotated[float, Field(gt=0, le=86_400, allow_inf_nan=False, strict=True)] = Field(
        600.0, description="STAGING longer than this fails the version."
    )


class PublishShard(RequestModel):
    """Body of ``PUT /v1/models/{m}/versions/{v}/shards/{slot}``; ``slot`` is the trainer rank."""

    shard: Rank
    layout_digest: Digest
    digest_root: Digest = Field(description="Root over the shard's digest table; equal among replicas of a shard.")
    nbytes: Count
    memory_slot: Annotated[int, Field(strict=True, ge=0, lt=MAX_SLOTS)] = Field(
        description="Index into the slots that the worker registered."
    )
    slot_generation: Count = Field(description="Generation in the slot's header while these bytes are valid.")


class AbortVersion(RequestModel):
    """Body of ``POST /v1/models/{m}/versions/{v}/abort``."""

    reason: Reason = ""


class Holding(ResponseModel):
    """One worker's readable copy of one shard of a version."""

    worker_id: WorkerId
    epoch: int
    shard: int
    state: HoldingState
    readers: int = Field(description="Pulls that may be reading it now.")


class Version(ResponseModel):
    """One complete set of weights, immutable once READY."""

    model: Name
    version: VersionNumber
    run: Name
    step: int
    attempt: int
    state: VersionState
    failure: VersionFailure | None = None
    reason: str | None = None
    world_size: int
    shards: int
    published: list[int] = Field(description="Slots (trainer ranks) that have published.")
    nbytes: int = Field(description="Bytes of one full set of shards published so far.")
    opened_at: Timestamp
    ready_at: Timestamp | None = None
    failed_at: Timestamp | None = None
    available: bool = Field(description="READY, and assignable holdings cover every shard.")
    holdings: list[Holding] = Field(default_factory=list)
    applied: list[str] = Field(default_factory=list, description="Replicas that serve this version or a newer one.")
    live_replicas: int = 0


class VersionList(ResponseModel):
    """One page of versions, newest first."""

    items: list[Version]
    next_cursor: str | None = None


class Target(ResponseModel):
    """What the model's replicas should serve now."""

    model: Name
    revision: int
    version: int | None
    step: int | None = None
    ready_at: Timestamp | None = None


class Model(ResponseModel):
    """A model, the run that publishes it, and what its replicas should serve now."""

    model: Name
    run: Name | None = Field(description="Run that owns the model; null before its first trainer.")
    revision: int
    version: int | None = Field(description="Target version; null before the first READY one.")
    step: int | None = None
    ready_at: Timestamp | None = None


class ModelList(ResponseModel):
    """One page of models, by name."""

    items: list[Model]
    next_cursor: str | None = None


class Drained(ResponseModel):
    """Answer to a drain. The holding is gone in both cases; readers left behind find an invalid header."""

    drained: bool = Field(description="False when the deadline came before the last reader finished.")
    readers: int
