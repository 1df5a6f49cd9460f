"""Path, query and header parameters shared by the routes: every one bounded."""

from __future__ import annotations

import re
from typing import Annotated, Any, Final, TypeAlias

from fastapi import Header, Path, Query
from pydantic import BeforeValidator
from weightcast.contract.names import (
    EPOCH_HEADER,
    MAX_INT,
    MAX_WAIT_SECONDS,
    MAX_WORLD_SIZE,
    WORKER_HEADER,
    Digest,
    Name,
    PullId,
    WorkerId,
)

_DECIMAL: Final = re.compile(r"0|[1-9][0-9]*", re.ASCII)


def _decimal(value: Any) -> Any:
    if isinstance(value, str) and not _DECIMAL.fullmatch(value):
        raise ValueError("not a decimal integer without sign and leading zeros")
    return value


Decimal: TypeAlias = Annotated[int, BeforeValidator(_decimal)]
"""An integer of a path, query or header in its one spelling: pydantic itself also takes ``1_0``, ``1.0`` and `` 1``."""

ModelPath: TypeAlias = Annotated[Name, Path(description="Model.", examples=["policy"])]
WorkerPath: TypeAlias = Annotated[WorkerId, Path(description="Worker id.", examples=["policy:trainer:0"])]
PullPath: TypeAlias = Annotated[PullId, Path(description="Pull id.", examples=["5f0c" * 8])]
DigestPath: TypeAlias = Annotated[Digest, Path(description="SHA-256 of the canonical form.", examples=["ab" * 32])]
VersionPath: TypeAlias = Annotated[Decimal, Path(ge=1, le=MAX_INT, description="Version number.", examples=[7])]
SlotPath: TypeAlias = Annotated[
    Decimal, Path(ge=0, lt=MAX_WORLD_SIZE, description="Slot: the trainer's rank.", examples=[0])
]

CallerHeader: TypeAlias = Annotated[
    WorkerId, Header(alias=WORKER_HEADER, description="Calling worker.", examples=["policy:rollout:r0:0"])
]
EpochHeader: TypeAlias = Annotated[
    Decimal, Header(alias=EPOCH_HEADER, ge=1, le=MAX_INT, description="Epoch of the calling worker.", examples=[3])
]
OptionalCallerHeader: TypeAlias = Annotated[
    WorkerId | None,
    Header(alias=WORKER_HEADER, description="Calling worker; absent for operators.", examples=["policy:trainer:0"]),
]
OptionalEpochHeader: TypeAlias = Annotated[
    Decimal | None,
    Header(alias=EPOCH_HEADER, ge=1, le=MAX_INT, description="Epoch of the calling worker.", examples=[3]),
]

WaitQuery: TypeAlias = Annotated[
    float,
    Query(
        ge=0,
        le=MAX_WAIT_SECONDS,
        allow_inf_nan=False,
        description="Seconds that the call may stay parked; 0 answers at once.",
        examples=[30],
    ),
]
RevisionQuery: TypeAlias = Annotated[
    Decimal | None,
    Query(ge=0, le=MAX_INT, description="Revision already known: parks until it is another one.", examples=[12]),
]
CursorQuery: TypeAlias = Annotated[
    str | None,
    Query(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:-]{0,199}$", description="`next_cursor` of the page before."),
]
LimitQuery: TypeAlias = Annotated[Decimal, Query(ge=1, le=1000, description="Most items of the page.", examples=[100])]
VersionQuery: TypeAlias = Annotated[
    Decimal | None, Query(ge=1, le=MAX_INT, description="Only this version.", examples=[7])
]
