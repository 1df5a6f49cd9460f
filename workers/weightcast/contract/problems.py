"""The catalogue of problem codes (RFC 9457 problem+json). One entry per code: the docs page is generated from it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from pydantic import Field

from weightcast.contract.base import ResponseModel

PROBLEM_MEDIA_TYPE: Final = "application/problem+json"
TYPE_PREFIX: Final = "urn:weightcast:problem:"


class Code(StrEnum):
    """Stable problem codes; clients branch on these, never on texts."""

    BAD_REQUEST = "bad_request"
    VALIDATION_FAILED = "validation_failed"
    UNAUTHORIZED = "unauthorized"
    FORBIDDEN = "forbidden"
    NOT_FOUND = "not_found"
    METHOD_NOT_ALLOWED = "method_not_allowed"
    PAYLOAD_TOO_LARGE = "payload_too_large"
    UNSUPPORTED_MEDIA_TYPE = "unsupported_media_type"
    UNKNOWN_WORKER = "unknown_worker"
    UNKNOWN_MODEL = "unknown_model"
    UNKNOWN_VERSION = "unknown_version"
    UNKNOWN_PULL = "unknown_pull"
    UNKNOWN_LAYOUT = "unknown_layout"
    STALE_EPOCH = "stale_epoch"
    LEASE_EXPIRED = "lease_expired"
    CONTRACT_UNSUPPORTED = "contract_unsupported"
    MODEL_OWNED = "model_owned"
    VERSION_STATE = "version_state"
    VERSION_CONFLICT = "version_conflict"
    SHARD_CONFLICT = "shard_conflict"
    LAYOUT_INVALID = "layout_invalid"
    PULL_STATE = "pull_state"
    PULL_SUPERSEDED = "pull_superseded"
    REPLICA_CONFLICT = "replica_conflict"
    STORE_UNAVAILABLE = "store_unavailable"
    SERVER_DRAINING = "server_draining"
    TOO_MANY_WAITERS = "too_many_waiters"
    INTERNAL = "internal"


@dataclass(frozen=True, slots=True)
class ProblemKind:
    """What a code means: HTTP status, whether the same call may succeed later, and what to do."""

    status: int
    title: str
    retryable: bool
    remedy: str


CATALOGUE: Final[dict[Code, ProblemKind]] = {
    Code.BAD_REQUEST: ProblemKind(400, "The request cannot be parsed", False, "Send well-formed JSON as documented."),
    Code.VALIDATION_FAILED: ProblemKind(422, "The request does not match the contract", False, "See errors[]."),
    Code.UNAUTHORIZED: ProblemKind(401, "No valid bearer token", False, "Send Authorization: Bearer <token>."),
    Code.FORBIDDEN: ProblemKind(403, "The token's role does not permit this", False, "Use a token of the named role."),
    Code.NOT_FOUND: ProblemKind(404, "No such resource", False, "Check the path against /docs."),
    Code.METHOD_NOT_ALLOWED: ProblemKind(405, "Method not allowed here", False, "See the Allow header."),
    Code.PAYLOAD_TOO_LARGE: ProblemKind(413, "The body is too large", False, "Send less, or raise the server's limit."),
    Code.UNSUPPORTED_MEDIA_TYPE: ProblemKind(415, "Unsupported media type", False, "Send the documented content type."),
    Code.UNKNOWN_WORKER: ProblemKind(
        404, "The server does not know this worker", False, "Register again with the highest version seen."
    ),
    Code.UNKNOWN_MODEL: ProblemKind(404, "No such model", False, "A model appears when its first worker registers."),
    Code.UNKNOWN_VERSION: ProblemKind(404, "No such version", False, "List the model's versions."),
    Code.UNKNOWN_PULL: ProblemKind(404, "No such pull", False, "Ask for a new assignment."),
    Code.UNKNOWN_LAYOUT: ProblemKind(404, "No such layout", False, "Upload the layout first."),
    Code.STALE_EPOCH: ProblemKind(
        409, "A newer process has taken this rank", False, "Stop: this process was replaced and may not act any more."
    ),
    Code.LEASE_EXPIRED: ProblemKind(409, "The worker's lease has ended", False, "Register again, then repeat."),
    Code.CONTRACT_UNSUPPORTED: ProblemKind(
        409, "The contract version is not supported", False, "Upgrade the server first, then the workers."
    ),
    Code.MODEL_OWNED: ProblemKind(
        409, "Another run publishes this model", True, "Wait until its trainers are gone, or use another model name."
    ),
    Code.VERSION_STATE: ProblemKind(409, "The version's state does not permit this", False, "Open a new version."),
    Code.VERSION_CONFLICT: ProblemKind(
        409, "Opened before with other parameters", False, "All ranks must open a version with the same parameters."
    ),
    Code.SHARD_CONFLICT: ProblemKind(409, "Slot published before with other content", False, "Open a new version."),
    Code.LAYOUT_INVALID: ProblemKind(422, "The layout is not valid", False, "See errors[]."),
    Code.PULL_STATE: ProblemKind(409, "The pull's state does not permit this", False, "Ask for a new assignment."),
    Code.PULL_SUPERSEDED: ProblemKind(
        409, "The replica has moved to another version", False, "Drop what was staged and ask for a new assignment."
    ),
    Code.REPLICA_CONFLICT: ProblemKind(
        409, "The replica is registered with another world size", False, "All ranks of a replica must agree."
    ),
    Code.STORE_UNAVAILABLE: ProblemKind(503, "The store cannot answer now", True, "Retry after the given time."),
    Code.SERVER_DRAINING: ProblemKind(503, "The server is shutting down", True, "Retry after the given time."),
    Code.TOO_MANY_WAITERS: ProblemKind(503, "Too many parked requests", True, "Retry later, or raise the limit."),
    Code.INTERNAL: ProblemKind(500, "Internal error", True, "Report it with the request id."),
}


class ProblemError(ResponseModel):
    """One thing that is wrong with a request."""

    location: str
    message: str


class Problem(ResponseModel):
    """A problem+json body."""

    type: str
    title: str
    status: int
    detail: str
    instance: str = ""
    code: str
    retryable: bool
    request_id: str = ""
    errors: list[ProblemError] = Field(default_factory=list)
