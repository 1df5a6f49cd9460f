"""A process restarted under the same rank: the old one is fenced, also when it was asleep while that happened."""

from __future__ import annotations

from functools import partial

import pytest
from support.fleet import Fleet
from support.workers import ChildError, WorkerProcess, until

BUCKET = 65536


def assert_fenced(worker: WorkerProcess, command: str, **arguments: int) -> None:
    """The command is refused, and every later one too."""
    for _ in range(2):
        with pytest.raises(ChildError) as refused:
            worker.call(command, **arguments)
        assert (refused.value.error, refused.value.code) == ("Fenced", "stale_epoch")


@pytest.mark.parametrize("asleep", [True, False], ids=["asleep", "awake"])
def test_old_trainer_publishes_nothing_any_more(fleet: Fleet, asleep: bool) -> None:
    old, reader = fleet.trainer(), fleet.rollout()
    reader.call("follow")
    fleet.settled(fleet.publish(old, step=1, seed=1), reader)
    if asleep:
        old.stop()
    new = fleet.trainer()
    version = fleet.publish(new, step=2, seed=2)
    fleet.settled(version, reader)
    old.cont()
    assert_fenced(old, "publish", step=3, seed=3)
    assert old.call("state")["fenced"]
    versions = fleet.control.versions("policy").items
    assert [found.version for found in versions] == [version, version - 1], "it has not even opened one"
    newest = fleet.publish(new, step=4, seed=4)
    fleet.settled(newest, reader)
    assert fleet.epoch("trainer:0") == 2


def test_old_trainer_wakes_in_the_middle_of_publishing(fleet: Fleet) -> None:
    """It had opened the version and written its slot: its successor completes that version, with its own bytes."""
    old, reader = fleet.trainer(), fleet.rollout()
    reader.call("follow")
    fleet.settled(fleet.publish(old, step=1, seed=1), reader)
    old.call("hold")
    old.begin("publish", step=2, seed=99)
    until("in the middle of publishing", partial(old.call, "held"))
    old.stop()
    new = fleet.trainer()
    version = fleet.publish(new, step=2, seed=2)
    fleet.settled(version, reader)
    old.cont()
    old.call("release")
    with pytest.raises(ChildError) as refused:
        old.finish()
    assert refused.value.error == "Fenced"
    (holding,) = fleet.version(version).holdings
    assert holding.epoch == 2
    fleet.refit(fleet.rollout(replica="r1"), version)


def test_old_rollout_neither_reads_nor_reports_any_more(fleet: Fleet) -> None:
    trainer = fleet.trainer(bucket_nbytes=BUCKET)
    old = fleet.rollout(request_nbytes=BUCKET)
    first = fleet.publish(trainer, step=1, seed=1)
    fleet.refit(old, first)
    second = fleet.publish(trainer, step=2, seed=2)
    old.call("hold")
    old.begin("refit")
    until("a reader in the middle", partial(old.call, "held"))
    old.stop()
    new = fleet.rollout().ready()
    assert not fleet.replica().servable, "the new process has applied nothing"
    fleet.refit(new, second)
    old.cont()
    old.call("release")
    with pytest.raises(ChildError) as refused:
        old.finish()
    assert refused.value.error == "Fenced"
    assert old.call("state")["serving"] == first, "its own weights are whole"
    assert_fenced(old, "stage")
    assert (fleet.replica().serving_version, fleet.replica().servable) == (second, True)
    fleet.refit(new, fleet.publish(trainer, step=3, seed=3))


def test_old_rollout_wakes_while_it_applies(fleet: Fleet) -> None:
    trainer, old = fleet.trainer(), fleet.rollout()
    version = fleet.publish(trainer, step=1, seed=1)
    old.call("hold_load")
    old.begin("refit")
    until("in the middle of applying", partial(old.call, "held"))
    old.stop()
    new = fleet.rollout().ready()
    old.cont()
    old.call("release")
    with pytest.raises(ChildError) as refused:
        old.finish()
    assert refused.value.error == "Fenced"
    assert fleet.replica().serving_version is None, "that it applied is the old process's affair"
    fleet.refit(new, version)
    assert fleet.replica().servable


def test_a_follower_that_is_fenced_ends(fleet: Fleet) -> None:
    trainer, old = fleet.trainer(), fleet.rollout()
    old.call("follow")
    fleet.settled(fleet.publish(trainer, step=1, seed=1), old)
    new = fleet.rollout()
    new.call("follow")
    until("the old one has noticed", lambda: not old.call("state")["following"])
    newest = fleet.publish(trainer, step=2, seed=2)
    fleet.settled(newest, new)
    assert old.call("state")["serving"] != newest
