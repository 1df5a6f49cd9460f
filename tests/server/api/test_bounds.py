"""What the API takes no part of: many keys, loose numbers, a rank that forgot its pull."""

from __future__ import annotations

import json

import httpx
import pytest
from support.rest import Rest


def register(rest: Rest, content: bytes) -> httpx.Response:
    return rest.send("POST", "/v1/workers", content=content, headers={"Content-Type": "application/json"})


@pytest.mark.parametrize("where", ["body", "nested", "list"])
def test_a_body_of_unknown_keys_is_refused_at_once(rest: Rest, where: str) -> None:
    keys: object = {f"k{number}": 0 for number in range(200_000)}
    body = {"body": keys, "nested": {"memory": keys}, "list": {"agents": [{"a": 1}] * 100_000}}[where]
    content = json.dumps(body).encode()
    answer = register(rest, content)
    assert (answer.status_code, answer.json()["code"]) == (422, "validation_failed")
    assert answer.json()["errors"] == [], "nobody looked for each of them"


@pytest.mark.parametrize("text", ["1_0", "1.0", "%201", "1%20", "%2B1", "01", "\u0661"])
def test_numbers_have_one_spelling(rest: Rest, model: str, text: str) -> None:
    trainer = rest.trainer(model)
    trainer.release(1)
    for path in (f"versions/{text}", f"versions?limit={text}", f"target?rev={text}", f"replicas?min_version={text}"):
        assert rest.send("GET", f"/v1/models/{model}/{path}").status_code == 422, path
    assert rest.send("GET", f"/v1/models/{model}/versions/1?limit=1").status_code == 422, "unknown here"
    assert rest.send("GET", f"/v1/models/{model}/versions/1").status_code == 200
    headers = {**trainer.headers, "Weightcast-Epoch": "1.0"}
    assert rest.send("POST", f"/v1/workers/{trainer.worker_id}/heartbeat", headers=headers).status_code == 422


def test_a_rank_that_forgot_its_pull_is_told(rest: Rest, model: str) -> None:
    trainer = rest.trainer(model)
    trainer.release(1)
    rollout = rest.rollout(model)
    pull_id = rollout.pull().json()["pull"]["pull_id"]
    rollout.report(pull_id, "staged", bytes_done=1024, fetch_seconds=0.01, transport="test").raise_for_status()
    assert rollout.report(pull_id, "applying").json()["state"] == "applying"
    for wait in (0.0, 0.2):
        answer = rollout.pull(wait=wait)
        assert (answer.status_code, answer.json()["code"]) == (409, "pull_state")
        assert pull_id in answer.json()["detail"]
    assert rollout.pull(have=1).status_code == 204, "it has not forgotten, it asks ahead"
    rollout.report(pull_id, "failed", failure="cancelled", tainted=False).raise_for_status()
    assert rollout.pull().status_code == 200
