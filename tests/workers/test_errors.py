"""Errors: what they say, and that they survive the way to another process."""

from __future__ import annotations

import inspect
import pickle

import pytest
from weightcast import errors
from weightcast.client.problems import BY_CODE
from weightcast.contract.names import PullFailure, VersionFailure
from weightcast.contract.problems import Code
from weightcast.errors import (
    ControlPlaneError,
    DeadlineExceeded,
    Fenced,
    ForkUnsupported,
    LayoutMismatch,
    RequestRefused,
    ServerUnavailable,
    Tainted,
    TransferError,
    VersionFailed,
    WeightcastError,
)

EXAMPLES: list[WeightcastError] = [
    Fenced("epoch 3 is older than 4", call="POST /v1/x", worker="policy:trainer:0", request_id="r1"),
    RequestRefused("two fields", errors=["body.rank: too large", "body.run: missing"]),
    ServerUnavailable("http://h:1 cannot be reached", call="GET /v1/models"),
    VersionFailed(7, VersionFailure.DEADLINE, "rank 1 did not publish", "policy"),
    VersionFailed(7, None, None),
    TransferError(
        "header changed", reason=PullFailure.SOURCE_OVERWRITTEN, peer="policy:trainer:1", version=7, bucket=3
    ),
    LayoutMismatch(["a: float32 here, bfloat16 there", "b: missing"], peer="policy:trainer:1", version=7),
    DeadlineExceeded("version 7 of policy applied by 2 replicas", 1.5),
    Tainted("policy:rollout:r0:0", 7, "the hook after_load raised"),
    ForkUnsupported("The session", 10, 11),
]


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_errors_survive_pickling(error: WeightcastError) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert again.__dict__ == error.__dict__


def test_messages_name_version_worker_peer_and_remedy() -> None:
    said = [str(error) for error in EXAMPLES]
    assert said[0] == (
        "POST /v1/x by policy:trainer:0: epoch 3 is older than 4. "
        "Stop: this process was replaced and may not act any more. [stale_epoch, request r1]"
    )
    assert "\n  - body.rank: too large\n  - body.run: missing\n" in said[1]
    assert said[3].startswith("Version 7 of policy failed (deadline): rank 1 did not publish. Publish a new version")
    assert said[5].startswith(
        "Transfer of version 7, from policy:trainer:1, bucket 3 failed (source_overwritten): header"
    )
    assert "2 differences" in said[6]
    assert "\n  - b: missing\n" in said[6]
    assert "policy:rollout:r0:0" in said[8]
    assert all(text.count("..") == 0 for text in said)


def test_every_code_of_the_catalogue_is_mapped_but_the_two_without_a_remedy() -> None:
    assert set(Code) - set(BY_CODE) == {Code.INTERNAL, Code.METHOD_NOT_ALLOWED}


def test_every_error_is_one_of_ours() -> None:
    kinds = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if kind.__module__ == errors.__name__]
    assert len(kinds) > 20
    assert all(issubclass(kind, WeightcastError) and kind.__doc__ for kind in kinds)


def test_defaults_come_from_the_catalogue() -> None:
    error = ControlPlaneError("boom")
    assert (error.code, error.status, error.retryable) == ("internal", 500, True)
    assert ServerUnavailable("gone").status == 0
    assert issubclass(DeadlineExceeded, TimeoutError)
