"""Pulls: who reads which version from whom, and how it went."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from weightcast.contract.base import RequestModel, ResponseModel
from weightcast.contract.names import (
    Count,
    Digest,
    Epoch,
    Name,
    PullFailure,
    PullId,
    PullState,
    Reason,
    Seconds,
    Timestamp,
    WorkerId,
)
from weightcast.contract.workers import SourceAgent, SourceMemory


class RequestPull(RequestModel):
    """Body of ``POST /v1/models/{m}/pulls``: ask for the next assignment of the calling rank."""

    have_version: Count = Field(
        0, description="Version applied by the rank, 0 for none: only one newer than it and what is staged is assigned."
    )
    exclude: list[WorkerId] = Field(
        default_factory=list, max_length=64, description="Sources to avoid while others are left."
    )


class Source(ResponseModel):
    """One worker that holds a shard, with all that is needed to READ it."""

    worker_id: WorkerId
    epoch: Epoch
    host: str
    agent: SourceAgent
    memory: SourceMemory
    bucket_nbytes: int
    slot_generation: int


class ShardSources(ResponseModel):
    """A shard and the interchangeable holders of it, best first."""

    shard: int
    layout_digest: Digest
    digest_root: Digest
    nbytes: int
    sources: list[Source]


class Pull(ResponseModel):
    """A pull as shown to people and dashboards."""

    pull_id: PullId
    model: Name
    version: int
    step: int
    worker_id: WorkerId
    epoch: int
    replica: Name
    rank: int
    attempt: int
    state: PullState
    failure: PullFailure | None = None
    reason: str | None = None
    failed_source: str | None = None
    sources: list[str] = Field(default_factory=list, description="Worker ids of the first source of each shard.")
    nbytes: int = Field(description="Bytes to read.")
    bytes_done: int = 0
    fetch_seconds: float | None = None
    pause_seconds: float | None = None
    transport: str | None = None
    assigned_at: Timestamp
    updated_at: Timestamp


class PullList(ResponseModel):
    """One page of pulls, newest first."""

    items: list[Pull]
    next_cursor: str | None = None


class Assignment(ResponseModel):
    """Answer to ``POST /pulls``: read these shards from these sources."""

    pull: Pull
    shards: list[ShardSources]
    revision: int


class UpdatePull(RequestModel):
    """Body of ``PATCH /v1/pulls/{id}``. Sending the state it already has is a no-op and is answered alike.

    ``applying`` is the permit: it is granted when every rank of the replica has staged, and no byte of live weights may
    change before it. An answer whose ``pull.state`` is still ``staged`` means not granted within the wait: ask again.
    """

    state: Literal["fetching", "staged", "applying", "applied", "failed"]
    bytes_done: Count | None = None
    fetch_seconds: Seconds | None = None
    pause_seconds: Seconds | None = None
    transport: Annotated[str, Field(pattern=r"^[A-Za-z0-9_+./ -]{0,63}$")] | None = None
    digest: Digest | None = Field(None, description="SHA-256 over what was verified, for the record.")
    failure: PullFailure | None = None
    failed_source: WorkerId | None = None
    reason: Reason | None = None
    tainted: Annotated[bool, Field(strict=True)] | None = Field(
        None,
        description="With ``failed``: whether live weights are of no single version now. Left out, a pull that was "
        "applying taints its rank.",
    )

    @model_validator(mode="after")
    def _failure_goes_with_failed(self) -> Self:
        if (self.state == "failed") != (self.failure is not None):
            raise ValueError("'failure' is given exactly when state is 'failed'")
        return self
