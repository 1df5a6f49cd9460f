"""Who a caller is: its token against its role, and what ends its parked calls."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import httpx
import pytest
from support.rest import Member, Rest, background
from support.server import ServerProcess


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    tokens: dict[str, Any] = {f"{role}_tokens": f"of-{role}" for role in ("trainer", "rollout", "operator")}
    with ServerProcess(tmp_path_factory.mktemp("callers"), lease_seconds=60, **tokens) as process:
        yield process


def test_a_rollouts_token_moves_nothing_of_a_trainer(guarded: ServerProcess) -> None:
    as_trainer, as_rollout = Rest(guarded.url, "of-trainer"), Rest(guarded.url, "of-rollout")
    trainer = as_trainer.trainer("policy")
    number = trainer.release(1)
    holding = f"/v1/models/policy/versions/{number}/holdings/{trainer.worker_id}"
    assert as_rollout.send("DELETE", holding, headers=trainer.headers).status_code == 403
    trainer.rest = as_rollout
    assert trainer.put_layout().status_code == 403
    assert as_trainer.get(f"/v1/models/policy/versions/{number}")["available"] is True
    for client in (as_trainer, as_rollout):
        client.close()


def test_a_replica_may_be_called_trainer(guarded: ServerProcess) -> None:
    as_trainer, as_rollout = Rest(guarded.url, "of-trainer"), Rest(guarded.url, "of-rollout")
    rollout = as_rollout.rollout("policy", "trainer")
    assert rollout.heartbeat().status_code == 200
    rollout.rest = as_trainer
    assert rollout.heartbeat().status_code == 403
    for client in (as_trainer, as_rollout):
        client.close()


def test_a_layout_is_unpacked_only_for_a_live_worker(rest: Rest, model: str) -> None:
    trainer = rest.trainer(model)
    path = f"/v1/models/{model}/layouts/{'0' * 64}"
    kind = {"Content-Type": "application/vnd.weightcast.layout+zstd"}
    assert rest.send("PUT", path, content=b"x", headers={**trainer.headers, **kind}).status_code == 422
    stranger = {**trainer.headers, **kind, "Weightcast-Epoch": "9"}
    answer = rest.send("PUT", path, content=b"x", headers=stranger)
    assert (answer.status_code, answer.json()["code"]) == (404, "unknown_worker")


def leave(rollout: Member) -> None:
    rollout.send("DELETE", f"/v1/workers/{rollout.worker_id}").raise_for_status()


def replace(rollout: Member) -> None:
    body = {**rollout.body, "incarnation": "0" * 32}
    rollout.rest.send("POST", "/v1/workers", json=body).raise_for_status()


@pytest.mark.parametrize(("act", "code"), [(leave, "lease_expired"), (replace, "stale_epoch")])
def test_a_parked_pull_ends_with_its_worker(rest: Rest, model: str, act: Callable[[Member], None], code: str) -> None:
    rest.trainer(model)
    rollout = rest.rollout(model)
    waiting = parked(rest, lambda: rollout.pull(wait=25))
    act(rollout)
    answer = waiting.result(5)
    assert (answer.status_code, answer.json()["code"]) == (409, code)


def test_a_parked_pull_sees_the_end_of_applying(rest: Rest, model: str) -> None:
    trainer = rest.trainer(model)
    trainer.release(1)
    rollout = rest.rollout(model)
    pull_id = rollout.pull().json()["pull"]["pull_id"]
    rollout.report(pull_id, "staged", bytes_done=1024, fetch_seconds=0.01, transport="test").raise_for_status()
    assert rollout.report(pull_id, "applying").json()["state"] == "applying"
    trainer.release(2)
    waiting = parked(rest, lambda: rollout.pull(have=1, wait=25))
    rollout.report(pull_id, "applied", pause_seconds=0.001).raise_for_status()
    assert waiting.result(5).json()["pull"]["version"] == 2


def parked(rest: Rest, call: Callable[[], httpx.Response]) -> Future[httpx.Response]:
    before = rest.gauge("weightcast_parked_requests")
    waiting = background(call)
    deadline = time.monotonic() + 5
    while rest.gauge("weightcast_parked_requests") <= before:
        assert time.monotonic() < deadline, "it did not park"
        time.sleep(0.02)
    return waiting
