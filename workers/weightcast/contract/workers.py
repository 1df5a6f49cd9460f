"""Registration, leases and listing of workers and replicas."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BaseModel, Field, model_validator

from weightcast.contract.base import RequestModel, ResponseModel
from weightcast.contract.names import (
    MAX_SLOTS,
    Address,
    AgentName,
    Base64,
    Count,
    Digest,
    Epoch,
    Incarnation,
    MemoryKind,
    Name,
    Rank,
    Role,
    Seconds,
    Sequence,
    Timestamp,
    VersionNumber,
    WorkerId,
    WorkerState,
    WorldSize,
)


def worker_id(model: str, role: Role, rank: int, replica: str | None = None) -> str:
    """The natural key of one rank: ``<model>:trainer:<rank>`` or ``<model>:rollout:<replica>:<rank>``."""
    return f"{model}:trainer:{rank}" if role is Role.TRAINER else f"{model}:rollout:{replica}:{rank}"


class AgentFields(BaseModel):
    """One NIXL agent of a worker. Its metadata is a key to the worker's memory: shown to assigned readers only."""

    name: AgentName
    purpose: Literal["serve", "fetch"]
    metadata: Base64 = Field(description="NIXL agent metadata, base64.")
    metadata_digest: Digest = Field(description="SHA-256 of the metadata bytes; readers check it before loading them.")


class Agent(AgentFields, RequestModel):
    """An agent as its worker registers it."""


class SourceAgent(AgentFields, ResponseModel):
    """An agent as a reader is told of it."""


class SlotFields(BaseModel):
    """Registered memory of one arena slot. Addresses are in the worker's own address space, lengths in bytes."""

    kind: MemoryKind = MemoryKind.DRAM
    device_id: Annotated[int, Field(strict=True, ge=0, le=1023)] = 0
    header_address: Address = Field(description="64-byte slot header, always in host memory.")
    table_address: Address = Field(description="Digest table: 16 bytes a bucket, always in host memory.")
    table_nbytes: Count
    data_address: Address
    data_nbytes: Count


class SlotMemory(SlotFields, RequestModel):
    """A slot as its worker registers it."""


class SourceMemory(SlotFields, ResponseModel):
    """A slot as a reader is told of it."""


class WorkerMemory(RequestModel):
    """What a serving worker lets others read."""

    bucket_nbytes: Annotated[int, Field(strict=True, ge=1, le=2**40)] = Field(description="Bytes a digest covers.")
    slots: list[SlotMemory] = Field(min_length=1, max_length=MAX_SLOTS)


class RegisterWorker(RequestModel):
    """Body of ``POST /v1/workers``."""

    model: Name
    role: Role
    rank: Rank
    world_size: WorldSize
    incarnation: Incarnation
    previous_epoch: Sequence = Field(
        0, description="Epoch that this same process held before; 0 for a fresh process, which fences its predecessor."
    )
    contract_version: Annotated[int, Field(strict=True, ge=1, le=1000)] = 1
    run: Name | None = Field(None, description="Training job; required of trainers.")
    replica: Name | None = Field(None, description="Rollout replica (TP group); required of rollouts.")
    host: Name = "localhost"
    rack: Name | None = None
    zone: Name | None = None
    agents: list[Agent] = Field(default_factory=list, max_length=4)
    memory: WorkerMemory | None = None
    highest_version: Sequence = Field(0, description="Highest version it has seen; numbering continues above.")
    serving_version: VersionNumber | None = Field(None, description="Version a rollout computes with now.")
    tainted: Annotated[bool, Field(strict=True)] = Field(False, description="Live weights are of no single version.")

    @model_validator(mode="after")
    def _role_fields(self) -> Self:
        if self.rank >= self.world_size:
            raise ValueError(f"rank {self.rank} is not below world_size {self.world_size}")
        if self.role is Role.TRAINER and (self.run is None or self.replica is not None):
            raise ValueError("a trainer names its run and no replica")
        if self.role is Role.ROLLOUT and (self.replica is None or self.run is not None):
            raise ValueError("a rollout names its replica and no run")
        return self


class Registration(ResponseModel):
    """Answer to a registration: the identity under which every later call is made."""

    worker_id: WorkerId
    epoch: Epoch
    contract_version: int
    lease_seconds: float
    heartbeat_seconds: float = Field(description="Interval the server wants between heartbeats.")
    revision: int
    registered_at: Timestamp


class Heartbeat(ResponseModel):
    """Answer to ``POST /v1/workers/{id}/heartbeat``."""

    lease_seconds: float
    heartbeat_seconds: float
    revision: int
    commands: list[str] = Field(default_factory=list)


class UpdateMemory(RequestModel):
    """Body of ``PUT /v1/workers/{id}/memory``: new addresses and metadata within the same epoch."""

    agents: list[Agent] = Field(min_length=1, max_length=4)
    memory: WorkerMemory


class Worker(ResponseModel):
    """A worker as shown to people and dashboards (no NIXL metadata)."""

    worker_id: WorkerId
    model: Name
    role: Role
    rank: int
    world_size: int
    epoch: int
    state: WorkerState
    run: str | None
    replica: str | None
    host: str
    rack: str | None
    zone: str | None
    agents: list[str] = Field(description="Names of its NIXL agents.")
    serving_version: int | None
    tainted: bool
    registered_at: Timestamp
    heartbeat_age_seconds: float | None = Field(description="Since the last heartbeat; null when not live.")


class WorkerList(ResponseModel):
    """One page of workers."""

    items: list[Worker]
    next_cursor: str | None = None


class Replica(ResponseModel):
    """The rollout ranks that serve one engine together, derived from its workers and pulls."""

    model: Name
    replica: Name
    generation: int = Field(description="Grows when any of its ranks registers again.")
    world_size: int
    live_ranks: int
    serving_version: int | None = Field(description="Version that every rank computes with; null while they differ.")
    staged_version: int | None = Field(description="Version that every rank has staged; null when none.")
    tainted: bool
    servable: bool = Field(description="All ranks live, untainted and on one version.")
    lag: int | None = Field(description="READY versions it is behind the target; null before its first apply.")
    pause_seconds: Seconds | None = Field(description="Pause of its last apply (the longest of its ranks).")


class ReplicaList(ResponseModel):
    """All replicas of a model."""

    items: list[Replica]
    next_cursor: str | None = None
