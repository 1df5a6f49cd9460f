"""Bytes that are not the published ones, in the source's own memory: found by digest, never applied."""

from __future__ import annotations

import re

import pytest
from support.fleet import Fleet
from support.server import ServerProcess
from support.workers import ChildError

BUCKET = 65536


@pytest.fixture
def lease_seconds() -> float:
    return 10.0


def test_the_other_trainer_is_read(fleet: Fleet) -> None:
    trainers = [fleet.trainer(rank=rank, world_size=2, bucket_nbytes=BUCKET) for rank in range(2)]
    rollouts = [fleet.rollout(replica=name) for name in ("r0", "r1")]
    version = fleet.publish(*trainers, step=1, seed=1)
    trainers[0].call("corrupt")
    for rollout in rollouts:
        assert fleet.refit(rollout, version)["sources"] == ["policy:trainer:1"]
    failures = [(pull.failure, pull.failed_source) for pull in fleet.pulls() if pull.state == "failed"]
    assert failures, "one of the two was sent to the corrupt one first"
    assert set(failures) == {("digest_mismatch", "policy:trainer:0")}
    fleet.refit(rollouts[0], fleet.publish(*trainers, step=2, seed=2))


def test_the_only_trainer_is_named_with_version_and_bucket_and_nothing_is_applied(fleet: Fleet) -> None:
    trainer, rollout = fleet.trainer(bucket_nbytes=BUCKET), fleet.rollout()
    old = fleet.publish(trainer, step=1, seed=1)
    fleet.refit(rollout, old)
    bad = trainer.call("publish", step=2, seed=2, corrupt=True)["version"]
    with pytest.raises(ChildError) as told:
        rollout.call("refit")
    assert (told.value.error, told.value.code) == ("TransferError", "digest_mismatch")
    assert re.search(rf"version {bad}, from policy:trainer:0, bucket \d+", told.value.message)
    state = rollout.call("state")
    assert (state["serving"], state["sha256"], state["tainted"]) == (old, fleet.published[old], False)
    assert (fleet.replica().serving_version, fleet.replica().servable) == (old, True)
    fleet.refit(rollout, fleet.publish(trainer, step=3, seed=3))


def test_a_holding_that_enough_readers_report_is_dropped(fleet: Fleet, server: ServerProcess) -> None:
    server.restart(broken_reports=2)
    trainer = fleet.trainer(bucket_nbytes=BUCKET)
    rollouts = [fleet.rollout(replica=name) for name in ("r0", "r1")]
    bad = trainer.call("publish", step=1, seed=1, corrupt=True)["version"]
    for rollout in rollouts:
        assert fleet.version(bad).available
        with pytest.raises(ChildError, match="digest_mismatch"):
            rollout.call("refit")
    assert not fleet.version(bad).available
    assert rollouts[0].call("stage", timeout=0.2) is None
    good = fleet.publish(trainer, step=2, seed=2)
    for rollout in rollouts:
        fleet.refit(rollout, good)
