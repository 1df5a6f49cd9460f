"""Several trainer ranks: replicas of one shard, and disjoint shards."""

from __future__ import annotations

from functools import partial

import pytest
from support.fleet import Fleet
from support.workers import ChildError, until


def test_readers_spread_over_data_parallel_trainers(fleet: Fleet) -> None:
    trainers = [fleet.trainer(rank=rank, world_size=2) for rank in range(2)]
    rollouts = [fleet.rollout(replica=name).ready() for name in ("r0", "r1")]
    read: set[str] = set()
    for step in range(1, 5):
        version = fleet.publish(*trainers, step=step, seed=step)
        at_once = set()
        for rollout in rollouts:
            rollout.call("hold")
            rollout.begin("refit")
            # Both are held in the middle of their reading, so the second finds the first one's source busy.
            until("a reader in the middle", partial(rollout.call, "held"))
        for rollout in rollouts:
            rollout.call("release")
        for rollout in rollouts:
            found = rollout.finish()
            assert (found["version"], found["sha256"]) == (version, fleet.published[version])
            at_once.update(found["sources"])
        assert len(at_once) == 2, "the second reader takes the source that nobody reads"
        read |= at_once
    assert read == {f"{fleet.model}:trainer:0", f"{fleet.model}:trainer:1"}


def test_replicas_that_differ_fail_the_version_for_all_ranks_and_the_next_one_works(fleet: Fleet) -> None:
    one, other = (fleet.trainer(rank=rank, world_size=2) for rank in range(2))
    rollout = fleet.rollout()
    good = fleet.publish(one, other, step=1, seed=1)
    fleet.refit(rollout, good)

    bad = one.call("publish", step=2, seed=2)["version"]
    with pytest.raises(ChildError) as told:
        other.call("publish", step=2, seed=3)
    assert (told.value.error, told.value.code) == ("VersionFailed", "replica_digest_mismatch")
    assert "0" in told.value.message
    assert "1" in told.value.message
    with pytest.raises(ChildError) as told:
        one.call("wait_ready", version=bad)
    assert (told.value.error, told.value.code) == ("VersionFailed", "replica_digest_mismatch")
    assert not fleet.version(bad).holdings
    assert rollout.call("stage", timeout=0.2) is None, "a failed version is assigned to nobody"

    newest = fleet.publish(one, other, step=3, seed=4)
    assert newest > bad
    fleet.refit(rollout, newest)


def test_a_rank_that_did_not_wait_is_told_at_its_next_publish(fleet: Fleet) -> None:
    one, other = (fleet.trainer(rank=rank, world_size=2) for rank in range(2))
    one.call("publish", step=2, seed=2)
    with pytest.raises(ChildError, match="VersionFailed"):
        other.call("publish", step=2, seed=3)
    with pytest.raises(ChildError) as told:
        one.call("publish", step=2, seed=2)
    assert (told.value.error, told.value.code) == ("VersionFailed", "replica_digest_mismatch")
    version = fleet.publish(one, other, step=2, seed=2)
    fleet.refit(fleet.rollout(), version)


def test_disjoint_shards_are_pulled_as_one_version(fleet: Fleet) -> None:
    trainers = [fleet.trainer(rank=rank, world_size=2, shards=2, part=[rank, 2]) for rank in range(2)]
    rollout = fleet.rollout()
    for step in range(1, 4):
        version = fleet.publish_parts(*trainers, step=step, seed=step)
        found = fleet.refit(rollout, version)
        assert sorted(found["sources"]) == [f"{fleet.model}:trainer:{rank}" for rank in range(2)]
    assert fleet.version(version).shards == 2


def test_a_version_is_not_ready_before_every_rank_has_published(fleet: Fleet) -> None:
    one, other = (fleet.trainer(rank=rank, world_size=2) for rank in range(2))
    rollout = fleet.rollout().ready()
    first = one.call("publish", step=1, seed=1)
    assert fleet.version(first["version"]).state == "staging"
    assert rollout.call("stage", timeout=0.3) is None
    assert other.call("publish", step=1, seed=1)["version"] == first["version"]
    assert one.call("wait_ready", version=first["version"]) == "ready"
    found = rollout.call("refit")
    assert (found["version"], found["sha256"]) == (first["version"], first["sha256"])
    fleet.published[found["version"]] = found["sha256"]
