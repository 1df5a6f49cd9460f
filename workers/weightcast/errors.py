# ruff: noqa: N818  - errors are named for what happened, as a reader of `except Fenced:` expects
"""Every error that Weightcast raises on purpose. A message says what happened, to whom, and what to do.

Branch on the class (and on ``code``, ``failure`` or ``reason``), never on the text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weightcast.contract.names import PullFailure, VersionFailure
from weightcast.contract.problems import CATALOGUE, Code, ProblemKind

_KINDS: dict[str, ProblemKind] = dict(CATALOGUE.items())


def _rebuild(kind: type[WeightcastError], args: tuple[Any, ...], state: dict[str, Any]) -> WeightcastError:
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(state)
    return error


class WeightcastError(Exception):
    """Base of all errors below. They survive pickling, so that a child process can hand one to its parent."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.args, self.__dict__)


class InvalidArgument(WeightcastError, ValueError):
    """A value given to the library makes no sense (NaN, negative, unknown); nothing was sent."""


class ForkUnsupported(WeightcastError):
    """The object was made in another process: connections, threads and NIXL agents do not survive ``fork``."""

    def __init__(self, what: str, created_in: int, used_in: int) -> None:
        super().__init__(
            f"{what} was created in process {created_in} and used in its forked child {used_in}. "
            "Create it in the process that uses it, or start children with the 'spawn' method."
        )


class SessionClosed(WeightcastError):
    """The worker has left the control plane (or never joined); it makes no more calls."""


class DeadlineExceeded(WeightcastError, TimeoutError):
    """Something did not happen within the time given; nothing is broken by that, and it may be asked for again."""

    def __init__(
        self, what: str, seconds: float, hint: str = "Allow more time, or look at `weightcast status`."
    ) -> None:
        self.what = what
        self.seconds = seconds
        super().__init__(f"{what} did not happen within {seconds:g} s. {hint}")


class VersionFailed(WeightcastError):
    """A version ended as FAILED: nobody will ever be assigned it, and the versions around it are untouched."""

    def __init__(self, version: int, failure: VersionFailure | None, reason: str | None, model: str = "") -> None:
        self.version = version
        self.failure = failure
        self.reason = reason
        self.model = model
        name = f"Version {version} of {model}" if model else f"Version {version}"
        why = f" ({failure.value})" if failure else ""
        said = f": {reason.rstrip('.')}" if reason else ""
        super().__init__(f"{name} failed{why}{said}. Publish a new version; replicas go on serving the one they have.")


class TransferError(WeightcastError):
    """Bytes could not be read, or were not the right ones. ``reason`` is what is reported for the pull."""

    def __init__(
        self,
        detail: str,
        *,
        reason: PullFailure = PullFailure.INTERNAL,
        peer: str | None = None,
        version: int | None = None,
        bucket: int | None = None,
        remedy: str = "The pull moves to another source or is asked for again.",
    ) -> None:
        self.detail = detail
        self.reason = reason
        self.peer = peer
        self.version = version
        self.bucket = bucket
        where = [f"version {version}" if version is not None else "", f"from {peer}" if peer else ""]
        where.append(f"bucket {bucket}" if bucket is not None else "")
        place = ", ".join(part for part in where if part)
        prefix = f"Transfer of {place}" if place else "Transfer"
        separator = "\n" if "\n" in detail else ". "
        super().__init__(f"{prefix} failed ({reason.value}): {detail.rstrip('.')}{separator}{remedy}")


class LayoutMismatch(TransferError):
    """What was published does not fit where it should go; ``differences`` lists every tensor that does not."""

    def __init__(self, differences: Sequence[str], *, peer: str | None = None, version: int | None = None) -> None:
        self.differences = list(differences)
        listed = "".join(f"\n  - {difference}" for difference in self.differences)
        count = len(self.differences)
        super().__init__(
            f"{count} {'difference' if count == 1 else 'differences'} between source and destination:{listed}",
            reason=PullFailure.LAYOUT_MISMATCH,
            peer=peer,
            version=version,
            remedy="Trainer and rollout must declare the same names, dtypes and shapes.",
        )


class Tainted(WeightcastError):
    """The live weights are of no single version; the replica may not generate until a version is applied whole."""

    def __init__(self, worker_id: str, version: int | None, detail: str) -> None:
        self.worker_id = worker_id
        self.version = version
        during = f" while version {version} was being applied" if version is not None else ""
        super().__init__(
            f"The live weights of {worker_id} are tainted: {detail.rstrip('.')}{during}. "
            "Do not generate with them; stage and apply a version to become whole again."
        )


class ControlPlaneError(WeightcastError):
    """The control plane refused a call or did not answer it.

    Attributes:
        code: stable problem code (see the catalogue), or ``unreachable`` / ``bad_answer`` when there was no problem.
        status: HTTP status, 0 when there was no answer.
        detail: what the server said.
        retryable: whether the same call may succeed later.
        request_id: name of the request in the server's log.
    """

    default_code: str = Code.INTERNAL
    default_status: int = 500
    default_remedy: str = ""

    def __init__(
        self,
        detail: str,
        *,
        code: str = "",
        status: int | None = None,
        retryable: bool | None = None,
        request_id: str = "",
        call: str = "",
        worker: str = "",
        errors: Sequence[str] = (),
        remedy: str | None = None,
    ) -> None:
        self.code = str(code or self.default_code)
        kind = _KINDS.get(self.code)
        self.status = status if status is not None else (kind.status if kind else self.default_status)
        self.detail = detail
        self.retryable = retryable if retryable is not None else (kind.retryable if kind else False)
        self.request_id = request_id
        self.call = call
        self.worker = worker
        self.errors = list(errors)
        if remedy is None:
            remedy = kind.remedy if kind else self.default_remedy
        who = f" by {worker}" if worker else ""
        prefix = f"{call}{who}: " if call else ""
        listed = "".join(f"\n  - {error}" for error in self.errors)
        separator = "\n" if listed else " "
        tail = f" [{self.code}" + (f", request {request_id}]" if request_id else "]")
        said = detail.rstrip(".") or (kind.title if kind else "refused")
        super().__init__(f"{prefix}{said}.{listed}{separator}{remedy}{tail}")


class ServerUnavailable(ControlPlaneError):
    """No answer within the deadline: not reachable, overloaded, draining, or its store is out of order."""

    default_code = "unreachable"
    default_status = 0
    default_remedy = "Check the server's address and that it runs (`weightcast status`); the call may be repeated."


class ContractError(ControlPlaneError):
    """The answer is not what the contract says: another service, a proxy's page, or an incompatible server."""

    default_code = "bad_answer"
    default_status = 0
    default_remedy = "Check that the address is a Weightcast server's, and that it is not older than this worker."


class ContractUnsupported(ContractError):
    """Server and worker speak different versions of the contract."""

    default_code = Code.CONTRACT_UNSUPPORTED


class Unauthorized(ControlPlaneError):
    """No token, a wrong one, or one whose role does not permit the call."""

    default_code = Code.UNAUTHORIZED


class RequestRefused(ControlPlaneError):
    """The server found the request itself wrong; ``errors`` lists what."""

    default_code = Code.VALIDATION_FAILED


class NotFound(ControlPlaneError):
    """The model, version, pull or layout does not exist."""

    default_code = Code.NOT_FOUND


class Fenced(ControlPlaneError):
    """Fatal: a newer process has taken this worker's rank. This one must stop and may not register again."""

    default_code = Code.STALE_EPOCH


class LeaseExpired(ControlPlaneError):
    """The worker was not heard of for too long. Its session registers again by itself."""

    default_code = Code.LEASE_EXPIRED


class UnknownWorker(ControlPlaneError):
    """The server does not know this worker (its store was wiped). Its session registers again by itself."""

    default_code = Code.UNKNOWN_WORKER


class ModelOwned(ControlPlaneError):
    """Trainers of another run are publishing this model."""

    default_code = Code.MODEL_OWNED


class ReplicaConflict(ControlPlaneError):
    """The ranks of one replica do not agree on their number."""

    default_code = Code.REPLICA_CONFLICT


class VersionConflict(ControlPlaneError):
    """The version does not permit the call: other parameters or content than before, or it is READY or FAILED."""

    default_code = Code.VERSION_STATE


class PullConflict(ControlPlaneError):
    """The pull is in a state that does not permit the call."""

    default_code = Code.PULL_STATE


class PullSuperseded(PullConflict):
    """The replica has moved to another version; what was staged is dropped and a new assignment asked for."""

    default_code = Code.PULL_SUPERSEDED
