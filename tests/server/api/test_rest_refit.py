"""The whole life of versions over HTTP: publish, pull, apply, drain, and every parked call in between."""

from __future__ import annotations

import time

import httpx
import pytest
from support.rest import LAYOUT, LAYOUT_DIGEST, NBYTES, Rest, background, digest
from weightcast.contract.layout import pack_layout


def code(response: httpx.Response) -> tuple[int, str]:
    assert response.headers["content-type"] == "application/problem+json", response.text
    return response.status_code, response.json()["code"]


def test_one_version_from_open_to_applied(rest: Rest, model: str) -> None:
    trainers = [rest.trainer(model, rank, world_size=2) for rank in range(2)]
    rollouts = [rest.rollout(model, replica) for replica in ("a", "b")]
    first = trainers[0].open(10, world_size=2)
    second = trainers[1].open(10, world_size=2)
    assert (first.status_code, second.status_code) == (201, 200)
    number = first.json()["version"]
    assert second.json()["version"] == number
    assert first.json()["state"] == "staging"
    assert rollouts[0].pull().status_code == 204

    half = trainers[0].publish(number).json()
    assert (half["state"], half["published"], half["available"]) == ("staging", [0], False)
    whole = trainers[1].publish(number).json()
    assert (whole["state"], whole["available"], whole["nbytes"]) == ("ready", True, NBYTES)
    assert trainers[1].publish(number).json()["state"] == "ready", "a lost answer is given again"

    for rollout in rollouts:
        assignment = rollout.pull().json()
        assert assignment["pull"]["version"] == number
        (shard,) = assignment["shards"]
        assert shard["layout_digest"] == LAYOUT_DIGEST
        assert {source["worker_id"] for source in shard["sources"]} == {f"{model}:trainer:0", f"{model}:trainer:1"}
        again = rollout.pull().json()
        assert again["pull"]["pull_id"] == assignment["pull"]["pull_id"]
        rollout.report(assignment["pull"]["pull_id"], "fetching", bytes_done=10).raise_for_status()
        rollout.apply(assignment)

    version = rest.get(f"/v1/models/{model}/versions/{number}", wait_for="applied", wait=5)
    assert (version["applied"], version["live_replicas"]) == (["a", "b"], 2)
    replicas = rest.get(f"/v1/models/{model}/replicas", servable=True, min_version=number)["items"]
    assert [item["replica"] for item in replicas] == ["a", "b"]
    assert all(item["servable"] and item["lag"] == 0 for item in replicas)
    assert rest.get(f"/v1/models/{model}/replicas", servable=True, min_version=number + 1)["items"] == []
    pulls = rest.get(f"/v1/models/{model}/pulls", state="applied")["items"]
    assert {pull["worker_id"] for pull in pulls} == {rollout.worker_id for rollout in rollouts}
    assert rest.get(f"/v1/pulls/{pulls[0]['pull_id']}") == pulls[0]
    target = rest.get(f"/v1/models/{model}/target")
    assert (target["version"], target["step"]) == (number, 10)
    (shown,) = [item for item in rest.get("/v1/models", limit=1000)["items"] if item["model"] == model]
    assert (shown["run"], shown["version"], shown["revision"]) == ("run-1", number, target["revision"])
    worker = rest.get(f"/v1/workers/{trainers[0].worker_id}")
    assert worker["heartbeat_age_seconds"] < 30
    assert "metadata" not in str(worker)


def test_waiting_pulls_wake_on_publish(rest: Rest, model: str) -> None:
    trainer = rest.trainer(model)
    rollouts = [rest.rollout(model, f"r{i}") for i in range(8)]
    parked_before = rest.gauge("weightcast_parked_requests")
    waits = [background(lambda rollout=rollout: rollout.pull(wait=20)) for rollout in rollouts]  # type: ignore[misc]
    target = rest.get(f"/v1/models/{model}/target")
    watch = background(lambda: rest.get(f"/v1/models/{model}/target", rev=target["revision"], wait=20))
    wait_for_gauge(rest, parked_before + 9)
    started = time.monotonic()
    number = trainer.release(1)
    answers = [wait.result(10) for wait in waits]
    assert time.monotonic() - started < 5
    assert {answer.json()["pull"]["version"] for answer in answers} == {number}
    assert watch.result(10)["revision"] > target["revision"]


def wait_for_gauge(rest: Rest, at_least: float) -> None:
    deadline = time.monotonic() + 10
    while rest.gauge("weightcast_parked_requests") < at_least:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_wait_ends_with_nothing(rest: Rest, model: str) -> None:
    rest.trainer(model)
    rollout = rest.rollout(model)
    started = time.monotonic()
    assert rollout.pull(wait=0.3).status_code == 204
    assert 0.25 < time.monotonic() - started < 5
    target = rest.get(f"/v1/models/{model}/target")
    assert rest.get(f"/v1/models/{model}/target", rev=target["revision"], wait=0.1) == target
    assert rest.get(f"/v1/models/{model}/target", rev=target["revision"] + 100, wait=30) == target, "answered at once"


def test_both_ranks_of_a_replica_apply_together(rest: Rest, model: str) -> None:
    trainer = rest.trainer(model)
    ranks = [rest.rollout(model, "tp", rank, world_size=2) for rank in range(2)]
    number = trainer.release(1)
    pulls = [rank.pull().json()["pull"] for rank in ranks]
    assert [pull["version"] for pull in pulls] == [number, number]
    ranks[0].report(pulls[0]["pull_id"], "staged").raise_for_status()
    assert ranks[0].report(pulls[0]["pull_id"], "applying").json()["state"] == "staged", "the sibling has not staged"
    parked = background(lambda: ranks[0].report(pulls[0]["pull_id"], "applying", wait=20))
    time.sleep(0.1)
    assert not parked.done()
    ranks[1].report(pulls[1]["pull_id"], "staged").raise_for_status()
    assert parked.result(10).json()["state"] == "applying"
    assert ranks[1].report(pulls[1]["pull_id"], "applying").json()["state"] == "applying"
    ranks[0].report(pulls[0]["pull_id"], "applied").raise_for_status()
    assert rest.get(f"/v1/models/{model}/replicas")["items"][0]["servable"] is False
    ranks[1].report(pulls[1]["pull_id"], "applied").raise_for_status()
    assert rest.get(f"/v1/models/{model}/replicas")["items"][0]["servable"] is True


def test_drain_waits_for_readers(rest: Rest, model: str) -> None:
    trainer = rest.trainer(model)
    rollout = rest.rollout(model)
    number = trainer.release(1)
    pull = rollout.pull().json()["pull"]
    rollout.report(pull["pull_id"], "fetching", bytes_done=1).raise_for_status()
    where = f"/v1/models/{model}/versions/{number}/holdings/{trainer.worker_id}"
    parked = background(lambda: trainer.send("DELETE", where, params={"wait": 20}))
    time.sleep(0.1)
    assert not parked.done()
    late = rest.rollout(model, "late")
    assert late.pull().status_code == 204, "a draining holding is not assigned"
    rollout.report(pull["pull_id"], "staged").raise_for_status()
    assert parked.result(10).json() == {"drained": True, "readers": 0}
    assert trainer.send("DELETE", where).json() == {"drained": True, "readers": 0}, "idempotent"
    assert rest.get(f"/v1/models/{model}/versions/{number}")["available"] is False


def test_drain_leaves_readers_behind_at_the_end_of_the_wait(rest: Rest, model: str) -> None:
    trainer = rest.trainer(model)
    rollout = rest.rollout(model)
    number = trainer.release(1)
    assert rollout.pull().status_code == 200
    where = f"/v1/models/{model}/versions/{number}/holdings/{trainer.worker_id}"
    assert trainer.send("DELETE", where, params={"wait": 0.2}).json() == {"drained": False, "readers": 1}
    assert code(rollout.send("DELETE", where)) == (403, "forbidden")
    assert rest.send("DELETE", where).json()["drained"] is True, "an operator needs no worker headers"


def test_wait_for_applied_counts_replicas(rest: Rest, model: str) -> None:
    trainer = rest.trainer(model)
    rollouts = [rest.rollout(model, name) for name in ("a", "b")]
    number = trainer.release(1)
    where = f"/v1/models/{model}/versions/{number}"
    one = background(lambda: rest.get(where, wait_for="applied", wait=20, replicas=1))
    both = background(lambda: rest.get(where, wait_for="applied", wait=20))
    rollouts[0].apply(rollouts[0].pull().json())
    assert one.result(10)["applied"] == ["a"]
    assert not both.done()
    assert rest.get(where, wait_for="applied", wait=0.1)["applied"] == ["a"], "the end of the wait is no error"
    rollouts[1].apply(rollouts[1].pull().json())
    assert both.result(10)["applied"] == ["a", "b"]
    assert rest.gauge("weightcast_version_applied_seconds_count") >= 1


def test_failed_ends_every_wait(rest: Rest, model: str) -> None:
    trainer = rest.trainer(model)
    number = trainer.open(1).json()["version"]
    where = f"/v1/models/{model}/versions/{number}"
    waits = [background(lambda goal=goal: rest.get(where, wait_for=goal, wait=20)) for goal in ("ready", "applied")]  # type: ignore[misc]
    time.sleep(0.1)
    aborted = trainer.send("POST", where + "/abort", json={"reason": "loss is nan"}).json()
    assert (aborted["state"], aborted["failure"]) == ("failed", "aborted")
    assert [wait.result(10)["state"] for wait in waits] == ["failed", "failed"]
    assert code(trainer.publish(number)) == (409, "version_state")


def test_versions_and_pulls_come_in_pages(rest: Rest, model: str) -> None:
    trainer = rest.trainer(model)
    numbers = [trainer.release(step) for step in range(5)]
    seen: list[int] = []
    cursor: str | None = None
    while True:
        page = rest.get(f"/v1/models/{model}/versions", limit=2, **({"cursor": cursor} if cursor else {}))
        seen += [item["version"] for item in page["items"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert seen == sorted(numbers, reverse=True)
    assert len(rest.get("/v1/workers", model=model, role="trainer", state="live")["items"]) == 1


def test_layouts_are_immutable(rest: Rest, model: str) -> None:
    trainer = rest.trainer(model)
    where = f"/v1/models/{model}/layouts/{LAYOUT_DIGEST}"
    assert trainer.put_layout().status_code == 200, "uploaded at registration"
    got = rest.send("GET", where)
    assert got.content == pack_layout(LAYOUT)
    assert "immutable" in got.headers["cache-control"]
    assert rest.send("GET", where, headers={"If-None-Match": got.headers["etag"]}).status_code == 304
    assert code(rest.send("GET", where.replace(LAYOUT_DIGEST, digest("other")))) == (404, "unknown_layout")


@pytest.mark.parametrize("blob", [b"", b"not zstd", b"\x28\xb5\x2f\xfd" + b"\0" * 40, pack_layout(LAYOUT)])
def test_a_bad_layout_is_refused(rest: Rest, model: str, blob: bytes) -> None:
    trainer = rest.trainer(model)
    answer = trainer.rest.send(
        "PUT",
        f"/v1/models/{model}/layouts/{digest('something else')}",
        content=blob,
        headers={**trainer.headers, "Content-Type": "application/vnd.weightcast.layout+zstd"},
    )
    assert code(answer) == (422, "layout_invalid")
    assert answer.json()["errors"]


def test_registration_fences_the_process_before(rest: Rest, model: str) -> None:
    old = rest.trainer(model)
    for previous in (0, old.epoch):
        replay = old.register(previous_epoch=previous)
        assert (replay.status_code, replay.json()["epoch"]) == (200, old.epoch), "the same process may repeat itself"
    stale = rest.gauge("weightcast_stale_epoch_rejections_total")
    epoch = old.epoch
    new = rest.trainer(model)
    assert new.epoch > epoch
    assert code(old.heartbeat()) == (409, "stale_epoch")
    assert code(old.open(1)) == (409, "stale_epoch")
    assert rest.gauge("weightcast_stale_epoch_rejections_total") == stale + 2
    assert new.heartbeat().json()["lease_seconds"] == 60
    new.epoch += 5
    assert code(new.heartbeat()) == (404, "unknown_worker"), "an epoch that this store never gave"
    assert code(new.open(1)) == (404, "unknown_worker")


def test_leaving_ends_everything(rest: Rest, model: str) -> None:
    trainer = rest.trainer(model)
    number = trainer.release(1)
    where = f"/v1/workers/{trainer.worker_id}"
    assert trainer.send("DELETE", where).status_code == 204
    assert trainer.send("DELETE", where).status_code == 204
    assert code(trainer.heartbeat()) == (409, "lease_expired")
    assert rest.get(where)["state"] == "left"
    assert rest.get(f"/v1/models/{model}/versions/{number}")["available"] is False
    assert rest.get(f"/v1/models/{model}/target")["version"] is None


def test_a_worker_acts_for_itself_only(rest: Rest, model: str) -> None:
    one, two = (rest.trainer(model, rank, world_size=2) for rank in range(2))
    assert code(one.send("POST", f"/v1/workers/{two.worker_id}/heartbeat")) == (403, "forbidden")
    assert code(one.send("DELETE", f"/v1/workers/{two.worker_id}")) == (403, "forbidden")


def test_memory_can_be_replaced(rest: Rest, model: str) -> None:
    trainer = rest.trainer(model)
    body = {"agents": [{**trainer.body["agents"][0], "name": "other"}], "memory": trainer.body["memory"]}
    answer = trainer.send("PUT", f"/v1/workers/{trainer.worker_id}/memory", json=body)
    assert answer.json()["agents"] == ["other"]
    assert answer.json()["heartbeat_age_seconds"] is not None


def test_a_newer_contract_is_refused(rest: Rest, model: str) -> None:
    trainer = rest.trainer(model)
    assert code(trainer.register(contract_version=2)) == (409, "contract_unsupported")
