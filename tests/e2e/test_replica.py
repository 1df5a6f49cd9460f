"""A replica of two ranks: it is one version or the other, never half of each."""

from __future__ import annotations

import pytest
from support.fleet import Fleet
from support.workers import ChildError, until


def test_no_rank_applies_before_both_have_staged(fleet: Fleet) -> None:
    trainer = fleet.trainer()
    one, other = (fleet.rollout(rank=rank, world_size=2) for rank in range(2))
    other.ready()
    old = fleet.publish(trainer, step=1, seed=1)
    for rank in (one, other):
        rank.begin("refit")
    for rank in (one, other):
        assert rank.finish()["sha256"] == fleet.published[old]

    new = fleet.publish(trainer, step=2, seed=2)
    other.call("hold")
    other.begin("refit")
    until("the second rank is in the middle of its fetch", lambda: other.call("held"))
    assert one.call("stage")["version"] == new
    one.begin("apply", timeout=30)
    # The permit is refused as long as the sibling reads: ask the server, which is who grants it.
    until("the first rank asks to apply", lambda: [pull for pull in fleet.pulls() if pull.state == "staged"])
    state = one.call("state")
    assert (state["serving"], state["sha256"]) == (old, fleet.published[old])
    assert fleet.replica().serving_version == old
    assert fleet.replica().servable

    other.call("release")
    for rank in (one, other):
        assert rank.finish()["sha256"] == fleet.published[new]
    until("reported", lambda: fleet.replica().serving_version == new and fleet.replica().servable)


def test_a_permit_that_does_not_come_in_time_changes_nothing(fleet: Fleet) -> None:
    trainer = fleet.trainer()
    one, other = (fleet.rollout(rank=rank, world_size=2) for rank in range(2))
    other.ready()
    version = fleet.publish(trainer, step=1, seed=1)
    staged = one.call("stage")
    assert staged["version"] == version
    with pytest.raises(ChildError, match="DeadlineExceeded"):
        one.call("apply", timeout=0.5)
    assert one.call("state")["serving"] is None
    other.begin("refit")
    assert one.call("apply")["sha256"] == fleet.published[version], "it may be tried again"
    assert other.finish()["sha256"] == fleet.published[version]


def test_ranks_meet_at_one_version_while_the_trainer_runs_ahead(fleet: Fleet) -> None:
    trainer = fleet.trainer()
    ranks = [fleet.rollout(rank=rank, world_size=2).ready() for rank in range(2)]
    for rank in ranks:
        rank.call("follow")
    for step in range(12):
        newest = fleet.publish(trainer, step=step, seed=step)
    until(
        "both ranks serve the newest version",
        lambda: all(rank.call("state")["serving"] == newest for rank in ranks),
        timeout=40,
    )
    until("reported", lambda: fleet.replica().servable and fleet.replica().serving_version == newest)
    pulls = fleet.pulls()
    for applied in [pull for pull in pulls if pull.state == "applied"]:
        (other,) = [pull for pull in pulls if pull.version == applied.version and pull.rank != applied.rank]
        assert other.bytes_done == other.nbytes, "neither applied what the other had not staged"
