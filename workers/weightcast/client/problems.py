"""From an HTTP answer that is no success to the error that a caller can act on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import httpx
from pydantic import ValidationError

from weightcast.contract.problems import Code, Problem
from weightcast.errors import (
    ContractError,
    ContractUnsupported,
    ControlPlaneError,
    Fenced,
    LeaseExpired,
    ModelOwned,
    NotFound,
    PullConflict,
    PullSuperseded,
    ReplicaConflict,
    RequestRefused,
    ServerUnavailable,
    Unauthorized,
    UnknownWorker,
    VersionConflict,
)

BY_CODE: Final[dict[str, type[ControlPlaneError]]] = {
    Code.BAD_REQUEST: RequestRefused,
    Code.VALIDATION_FAILED: RequestRefused,
    Code.PAYLOAD_TOO_LARGE: RequestRefused,
    Code.UNSUPPORTED_MEDIA_TYPE: RequestRefused,
    Code.LAYOUT_INVALID: RequestRefused,
    Code.UNAUTHORIZED: Unauthorized,
    Code.FORBIDDEN: Unauthorized,
    Code.NOT_FOUND: NotFound,
    Code.UNKNOWN_MODEL: NotFound,
    Code.UNKNOWN_VERSION: NotFound,
    Code.UNKNOWN_PULL: NotFound,
    Code.UNKNOWN_LAYOUT: NotFound,
    Code.UNKNOWN_WORKER: UnknownWorker,
    Code.STALE_EPOCH: Fenced,
    Code.LEASE_EXPIRED: LeaseExpired,
    Code.CONTRACT_UNSUPPORTED: ContractUnsupported,
    Code.MODEL_OWNED: ModelOwned,
    Code.VERSION_STATE: VersionConflict,
    Code.VERSION_CONFLICT: VersionConflict,
    Code.SHARD_CONFLICT: VersionConflict,
    Code.REPLICA_CONFLICT: ReplicaConflict,
    Code.PULL_STATE: PullConflict,
    Code.PULL_SUPERSEDED: PullSuperseded,
    Code.STORE_UNAVAILABLE: ServerUnavailable,
    Code.SERVER_DRAINING: ServerUnavailable,
    Code.TOO_MANY_WAITERS: ServerUnavailable,
}
"""Problem code to error class; a code that is not here (a newer server's) is a plain ControlPlaneError."""

BUSY_STATUSES: Final = frozenset({429, 500, 502, 503, 504})
"""Statuses after which the same call may succeed: the server's own, or a proxy's in front of it."""

MAX_RETRY_AFTER_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class Refusal:
    """An answer that is no success: the error for the caller, and when another try makes sense."""

    error: ControlPlaneError
    again: bool
    after_seconds: float | None = None


def read_refusal(response: httpx.Response, body: bytes, *, call: str, worker: str) -> Refusal:
    """What a non-2xx answer means. Never raises: any garbage ends in a ContractError that shows its beginning."""
    status = response.status_code
    again = status in BUSY_STATUSES
    after = _retry_after(response.headers.get("retry-after"))
    try:
        problem = Problem.model_validate_json(body)
    except ValidationError:
        kind = ServerUnavailable if again else ContractError
        media_type = response.headers.get("content-type", "no content type")
        detail = f"HTTP {status} without a problem body: {excerpt(media_type, body)}"
        return Refusal(kind(detail, status=status, retryable=again, call=call, worker=worker), again, after)
    error = BY_CODE.get(problem.code, ControlPlaneError)(
        problem.detail or problem.title,
        code=problem.code,
        status=status,
        retryable=problem.retryable,
        request_id=problem.request_id,
        call=call,
        worker=worker,
        errors=[f"{item.location}: {item.message}" for item in problem.errors],
    )
    return Refusal(error, again and problem.retryable, after)


def excerpt(media_type: str, body: bytes) -> str:
    """The beginning of an unexpected body, printable, with its media type."""
    text = body[:120].decode("utf-8", "replace")
    return f"{media_type}, {len(body)} bytes, {text!r}"


def _retry_after(value: str | None) -> float | None:
    """Seconds of a Retry-After header; its date form is not used by the server and counts as absent."""
    try:
        seconds = float(value or "")
    except ValueError:
        return None
    return min(seconds, MAX_RETRY_AFTER_SECONDS) if seconds >= 0 else None
