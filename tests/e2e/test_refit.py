"""The main job: publish, pull over NIXL, verify, apply, report."""

from __future__ import annotations

import pytest

from support.weights import make_weights, sha256
from support.workers import ChildError, Fleet
from weightcast.client import ControlPlane


def test_every_dtype_arrives_bit_for_bit_and_is_reported(workers: Fleet) -> None:
    trainer, rollouts = workers.trainer(), [workers.rollout(replica=name) for name in ("r0", "r1")]
    published = trainer.call("publish", step=7, seed=1)
    assert published["sha256"] == sha256(make_weights(1))
    for rollout in rollouts:
        refit = rollout.call("refit")
        assert refit["version"] == published["version"]
        assert refit["sha256"] == published["sha256"]
        assert refit["transport"] in {"cma", "tcp"}
    assert trainer.call("wait_applied", version=published["version"], replicas=2) == ["r0", "r1"]
    with ControlPlane(workers.url) as control:
        version = control.version("policy", published["version"])
        assert (version.step, version.available, version.live_replicas) == (7, True, 2)
        assert [pull.state for pull in control.pulls(model="policy").items] == ["applied", "applied"]
        replicas = control.replicas("policy").items
        assert [(r.replica, r.servable, r.serving_version, r.lag) for r in replicas] == [
            ("r0", True, published["version"], 0),
            ("r1", True, published["version"], 0),
        ]
