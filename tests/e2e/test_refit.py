"""The main job: publish, pull over NIXL, verify, apply, report."""

from __future__ import annotations

from support.fleet import Fleet
from support.weights import make_weights, sha256


def test_every_dtype_arrives_bit_for_bit_and_is_reported(fleet: Fleet) -> None:
    trainer, rollouts = fleet.trainer(), [fleet.rollout(replica=name) for name in ("r0", "r1")]
    version = fleet.publish(trainer, step=7, seed=1)
    assert fleet.published[version] == sha256(make_weights(1))
    for rollout in rollouts:
        refit = fleet.refit(rollout, version)
        assert refit["step"] == 7
        assert refit["transport"] in {"cma", "tcp"}
    assert trainer.call("wait_applied", version=version, replicas=2) == ["r0", "r1"]
    found = fleet.version(version)
    assert (found.step, found.available, found.live_replicas) == (7, True, 2)
    assert [pull.state for pull in fleet.pulls()] == ["applied", "applied"]
    for replica in (fleet.replica("r0"), fleet.replica("r1")):
        assert (replica.servable, replica.serving_version, replica.lag) == (True, version, 0)


def test_a_late_joiner_gets_the_version_that_is_current(fleet: Fleet) -> None:
    trainer = fleet.trainer().ready()
    for step in range(3):
        newest = fleet.publish(trainer, step=step, seed=step)
    assert fleet.refit(fleet.rollout(), newest)["step"] == 2
    assert [pull.version for pull in fleet.pulls()] == [newest], "older versions are never pulled"


def test_nothing_newer_is_none_and_not_an_error(fleet: Fleet) -> None:
    trainer, rollout = fleet.trainer(), fleet.rollout()
    rollout.ready()
    assert rollout.call("stage", timeout=0.2) is None
    version = fleet.publish(trainer, step=1, seed=1)
    fleet.refit(rollout, version)
    assert rollout.call("stage", timeout=0.2) is None
