"""Versions from a trainer's point of view: repeated and lower steps, drain, abort, and readers slower than training."""

from __future__ import annotations

import pytest
from support.fleet import Fleet
from support.workers import ChildError, until


def test_publishing_a_step_again_makes_another_version(fleet: Fleet) -> None:
    trainer, rollout = fleet.trainer(), fleet.rollout()
    first = fleet.publish(trainer, step=5, seed=1)
    fleet.refit(rollout, first)
    second = fleet.publish(trainer, step=5, seed=2)
    assert second > first
    assert fleet.version(second).step == fleet.version(first).step == 5
    assert (fleet.version(first).attempt, fleet.version(second).attempt) == (0, 1)
    fleet.refit(rollout, second)


def test_a_step_that_goes_back_is_a_newer_version(fleet: Fleet) -> None:
    trainer, rollout = fleet.trainer(), fleet.rollout()
    ahead = fleet.publish(trainer, step=100, seed=1)
    fleet.refit(rollout, ahead)
    resumed = fleet.publish(trainer, step=40, seed=2)
    assert resumed > ahead
    assert fleet.refit(rollout, resumed)["step"] == 40


def test_drained_when_the_last_reader_is_done_and_not_before(fleet: Fleet) -> None:
    trainer = fleet.trainer(bucket_nbytes=65536)
    rollout = fleet.rollout(request_nbytes=65536).ready()
    version = fleet.publish(trainer, step=1, seed=1)
    rollout.call("hold")
    rollout.begin("refit")
    until("a reader in the middle", lambda: rollout.call("held"))
    trainer.begin("wait_drained", version=version, timeout=30)
    until("draining", lambda: [one for one in fleet.version(version).holdings if one.state == "draining"])
    assert fleet.version(version).holdings[0].readers == 1
    rollout.call("release")
    assert rollout.finish()["sha256"] == fleet.published[version]
    assert trainer.finish() is True
    found = fleet.version(version)
    assert (found.state, found.available, found.holdings) == ("ready", False, [])
    assert trainer.call("state")["valid"] == [False, False]


def test_a_reader_that_is_not_done_in_time_is_cut_off_and_applies_nothing(fleet: Fleet) -> None:
    trainer = fleet.trainer(bucket_nbytes=65536)
    rollout = fleet.rollout(request_nbytes=65536).ready()
    version = fleet.publish(trainer, step=1, seed=1)
    rollout.call("hold")
    rollout.begin("refit", timeout=4)
    until("a reader in the middle", lambda: rollout.call("held"))
    assert trainer.call("wait_drained", version=version, timeout=0.2) is False
    rollout.call("release")
    assert rollout.finish() is None, "the version is not to be had any more, and there is no other"
    assert rollout.call("state")["serving"] is None
    fleet.refit(rollout, fleet.publish(trainer, step=2, seed=2))


def test_aborted_version_fails_for_every_rank_and_a_ready_one_cannot_be(fleet: Fleet) -> None:
    one, other = (fleet.trainer(rank=rank, world_size=2) for rank in range(2))
    other.ready()
    given_up = one.call("publish", step=1, seed=1)["version"]
    assert one.call("abort", version=given_up) == "failed"
    assert one.call("abort", version=given_up) == "failed", "idempotent"
    with pytest.raises(ChildError) as told:
        other.call("publish", step=1, seed=1)
    assert (told.value.error, told.value.code) == ("VersionFailed", "aborted")

    ready = fleet.publish(one, other, step=2, seed=2)
    with pytest.raises(ChildError) as refused:
        one.call("abort", version=ready)
    assert (refused.value.error, refused.value.code) == ("VersionConflict", "version_state")
    fleet.refit(fleet.rollout(), ready)


def test_a_slow_reader_never_applies_what_the_trainer_overwrites(fleet: Fleet) -> None:
    """It reads N while N+2 is written over it: two slots, so that is the slot it reads."""
    trainer = fleet.trainer(mib=1, bucket_nbytes=65536, drain_timeout=0.2)
    rollout = fleet.rollout(mib=1, request_nbytes=65536).ready()
    first = fleet.publish(trainer, step=1, seed=1)
    for held_after in (1, 5, 16):  # at the first READ, in the middle, at the last
        rollout.call("hold", after=held_after)
        rollout.begin("refit")
        until("a reader in the middle", lambda: rollout.call("held"))
        newest = [fleet.publish(trainer, step=first + ahead, seed=10 * held_after + ahead) for ahead in range(2)][-1]
        rollout.call("release")
        found = rollout.finish()
        assert (found["version"], found["sha256"]) == (newest, fleet.published[newest])
        overwritten = [pull for pull in fleet.pulls() if pull.failure == "source_overwritten"]
        assert overwritten, "the header said so"
        assert all(pull.version < newest for pull in overwritten)
        fleet.publish(trainer, step=50, seed=50 + held_after)


def test_a_follower_slower_than_the_trainer_skips_versions(fleet: Fleet) -> None:
    trainer = fleet.trainer(mib=1, bucket_nbytes=65536, drain_timeout=0.05)
    rollout = fleet.rollout(mib=1, request_nbytes=65536)
    rollout.call("follow")
    for step in range(30):
        newest = fleet.publish(trainer, step=step, seed=step)
    fleet.settled(newest, rollout)
