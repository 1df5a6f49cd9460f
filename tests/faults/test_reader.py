"""A reader that is killed or stopped in the middle of a refit."""

from __future__ import annotations

from functools import partial

from support.fleet import Fleet
from support.workers import WorkerProcess, until


def held_reader(fleet: Fleet, version: int, command: str = "hold") -> WorkerProcess:
    """Replica r0 in the middle of fetching (``hold``) or of loading (``hold_load``) a version."""
    reader = fleet.rollout(replica="r0", request_nbytes=65536).ready()
    reader.call(command)
    reader.begin("refit")
    until("r0 in the middle", partial(reader.call, "held"))
    assert [pull.version for pull in fleet.pulls() if pull.replica == "r0"] == [version]
    return reader


def test_killed_while_it_reads_is_merely_gone(fleet: Fleet) -> None:
    trainer, other = fleet.trainer(bucket_nbytes=65536), fleet.rollout(replica="r1")
    other.call("follow")
    version = fleet.publish(trainer, step=1, seed=1)
    reader = held_reader(fleet, version)
    reader.kill()
    until("r0 lost", lambda: fleet.worker_state("rollout:r0:0") == "lost")
    (pull,) = [pull for pull in fleet.pulls() if pull.replica == "r0"]
    assert (pull.state, pull.failure) == ("failed", "worker_lost")
    assert not fleet.replica("r0").tainted
    assert fleet.version(version).holdings[0].readers == 0, "the dead are not waited for"

    again = fleet.rollout(replica="r0")
    again.call("follow")
    fleet.settled(version, again, other)
    assert fleet.epoch("rollout:r0:0") == 2
    fleet.settled(fleet.publish(trainer, step=2, seed=2), again, other)


def test_killed_while_it_applies_is_tainted_until_a_new_process_has_applied(fleet: Fleet) -> None:
    trainer = fleet.trainer(bucket_nbytes=65536)
    version = fleet.publish(trainer, step=1, seed=1)
    reader = held_reader(fleet, version, "hold_load")
    reader.kill()
    until("r0 tainted", lambda: fleet.replica("r0").tainted)
    assert not fleet.replica("r0").servable
    (pull,) = fleet.pulls()
    assert (pull.state, pull.failure) == ("failed", "worker_lost")

    again = fleet.rollout(replica="r0").ready()
    assert not fleet.replica("r0").servable, "it has applied nothing yet"
    again.call("follow")
    fleet.settled(version, again)


def test_rank_of_a_replica_killed_before_it_has_staged_keeps_the_other_from_applying(fleet: Fleet) -> None:
    trainer = fleet.trainer(bucket_nbytes=65536)
    one, other = (fleet.rollout(rank=rank, world_size=2, request_nbytes=65536) for rank in range(2))
    other.ready()
    old = fleet.publish(trainer, step=1, seed=1)
    for rank in (one, other):
        rank.begin("refit")
    for rank in (one, other):
        assert rank.finish()["version"] == old
    new = fleet.publish(trainer, step=2, seed=2)
    other.call("hold")
    other.begin("refit")
    until("rank 1 in the middle", partial(other.call, "held"))
    assert one.call("stage")["version"] == new
    one.begin("apply", timeout=60)
    other.kill()
    until("rank 1 lost", lambda: fleet.worker_state("rollout:r0:1") == "lost")
    assert one.call("state")["serving"] == old
    assert not fleet.replica().servable

    again = fleet.rollout(rank=1, world_size=2)
    again.begin("refit")
    for rank in (one, again):
        assert rank.finish()["sha256"] == fleet.published[new]
    until("servable again", lambda: fleet.replica().servable)
    assert fleet.replica().serving_version == new


def test_stopped_past_its_lease_while_it_reads_comes_back_to_the_newest(fleet: Fleet) -> None:
    """Both slots are overwritten while it stands still: nothing of what it had may be applied."""
    trainer, other = fleet.trainer(bucket_nbytes=65536, drain_timeout=0.5), fleet.rollout(replica="r1")
    other.call("follow")
    reader = held_reader(fleet, fleet.publish(trainer, step=1, seed=1))
    reader.stop()
    until("r0 lost", lambda: fleet.worker_state("rollout:r0:0") == "lost")
    for step in range(2, 5):
        newest = fleet.publish(trainer, step=step, seed=step)
    fleet.settled(newest, other)
    reader.cont()
    reader.call("release")
    found = reader.finish()
    assert (found["version"], found["sha256"]) == (newest, fleet.published[newest])
    fleet.settled(newest, reader, other)
    assert fleet.epoch("rollout:r0:0") == 2


def test_stopped_past_its_lease_while_it_applies_reports_what_it_serves(fleet: Fleet) -> None:
    trainer = fleet.trainer(bucket_nbytes=65536)
    version = fleet.publish(trainer, step=1, seed=1)
    reader = held_reader(fleet, version, "hold_load")
    reader.stop()
    until("r0 tainted", lambda: fleet.replica("r0").tainted)
    reader.cont()
    reader.call("release")
    assert reader.finish()["sha256"] == fleet.published[version]
    newest = fleet.publish(trainer, step=2, seed=2)
    reader.call("follow")
    fleet.settled(newest, reader)
