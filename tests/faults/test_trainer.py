"""A trainer that is killed or stopped in the middle of a refit, alone and with another that holds the same."""

from __future__ import annotations

from functools import partial

import pytest
from support.fleet import Fleet
from support.workers import ChildError, WorkerProcess, until

BUCKET = 65536


def pair(fleet: Fleet) -> list[WorkerProcess]:
    """Two data-parallel trainers."""
    return [fleet.trainer(rank=rank, world_size=2, bucket_nbytes=BUCKET) for rank in range(2)]


def hold_refit(reader: WorkerProcess, **options: float) -> None:
    """Begin a refit and stop it in the middle of its fetch."""
    reader.call("hold")
    reader.begin("refit", **options)
    until("a reader in the middle", partial(reader.call, "held"))


def connect(fleet: Fleet, reader: WorkerProcess, *trainers: WorkerProcess) -> None:
    """Let the reader read every trainer once: connections are made at the first READ."""
    for step, left in enumerate(trainers):
        version = fleet.publish(*trainers, step=step, seed=step)
        for other in trainers:
            if other is not left:
                assert other.call("wait_drained", version=version)
        fleet.refit(reader, version)


def source_of(fleet: Fleet) -> int:
    """Rank that the newest pull reads."""
    return int(fleet.pulls()[0].sources[0].rpartition(":")[2])


def test_killed_while_it_is_read_the_other_is_read(fleet: Fleet) -> None:
    trainers = pair(fleet)
    reader = fleet.rollout(request_nbytes=BUCKET).ready()
    version = fleet.publish(*trainers, step=1, seed=1)
    hold_refit(reader)
    rank = source_of(fleet)
    trainers[rank].kill()
    reader.call("release")
    found = reader.finish()
    assert (found["version"], found["sha256"]) == (version, fleet.published[version])
    assert found["sources"] == [f"policy:trainer:{1 - rank}"]
    assert f"policy:trainer:{rank}" in {pull.failed_source for pull in fleet.pulls()}

    trainers[rank] = fleet.trainer(rank=rank, world_size=2, bucket_nbytes=BUCKET)
    fleet.refit(reader, fleet.publish(*trainers, step=2, seed=2))


def test_the_only_one_killed_while_it_is_read_the_old_version_is_served_on(fleet: Fleet) -> None:
    trainer = fleet.trainer(bucket_nbytes=BUCKET)
    reader = fleet.rollout(request_nbytes=BUCKET).ready()
    old = fleet.publish(trainer, step=1, seed=1)
    fleet.refit(reader, old)
    lost = fleet.publish(trainer, step=2, seed=2)
    hold_refit(reader)
    trainer.kill()
    reader.call("release")
    with pytest.raises(ChildError) as told:
        reader.finish()
    assert (told.value.error, told.value.code) == ("TransferError", "source_unreachable")
    assert "policy:trainer:0" in told.value.message
    assert f"version {lost}" in told.value.message
    state = reader.call("state")
    assert (state["serving"], state["sha256"], state["tainted"]) == (old, fleet.published[old], False)
    assert (fleet.replica().servable, fleet.replica().serving_version) == (True, old)
    until("its holdings gone", lambda: not fleet.version(lost).available)
    assert reader.call("stage", timeout=0.3) is None, "nobody holds it"

    again = fleet.trainer()
    newest = fleet.publish(again, step=2, seed=3)
    assert newest > lost
    fleet.refit(reader, newest)


@pytest.mark.parametrize("count", [1, 2])
def test_stopped_while_it_is_read_over_shared_memory(fleet: Fleet, count: int) -> None:
    """Once connected, shared memory is read without its owner's help: what it wrote may be applied, lease or not."""
    trainers = pair(fleet) if count == 2 else [fleet.trainer(bucket_nbytes=BUCKET)]
    reader = fleet.rollout(request_nbytes=BUCKET).ready()
    connect(fleet, reader, *trainers)
    version = fleet.publish(*trainers, step=1, seed=1)
    hold_refit(reader)
    rank = source_of(fleet)
    trainers[rank].stop()
    until("it is lost", lambda: fleet.worker_state(f"trainer:{rank}") == "lost")
    reader.call("release")
    found = reader.finish()
    assert (found["version"], found["sha256"]) == (version, fleet.published[version])
    trainers[rank].cont()
    fleet.refit(reader, fleet.publish(*trainers, step=2, seed=2))
    assert fleet.epoch(f"trainer:{rank}") == 2, "it registered again by itself"


def test_stopped_while_readers_connect_the_other_is_read(fleet: Fleet) -> None:
    """The first READs of a connection need the source's help, over shared memory too."""
    trainers = pair(fleet)
    reader = fleet.rollout(request_nbytes=BUCKET, stall_seconds=1).ready()
    version = fleet.publish(*trainers, step=1, seed=1)
    trainers[0].stop()
    trainers[1].stop()
    reader.begin("refit")
    until("a stalled source was reported", lambda: [pull for pull in fleet.pulls() if pull.failed_source])
    first = int(str(fleet.pulls()[-1].failed_source).rpartition(":")[2])
    trainers[1 - first].cont()
    found = reader.finish()
    assert (found["version"], found["sha256"]) == (version, fleet.published[version])
    trainers[first].cont()
    until("its late bytes have landed", lambda: not reader.call("state")["quarantined"])
    assert reader.call("state")["sha256"] == fleet.published[version]
    fleet.refit(reader, fleet.publish(*trainers, step=2, seed=2))


def test_one_of_two_shards_is_gone(fleet: Fleet) -> None:
    """The other shard's source is well, but there is none for this one: that is said, not tried for ever."""
    trainers = [
        fleet.trainer(rank=rank, world_size=2, shards=2, part=[rank, 2], bucket_nbytes=BUCKET) for rank in range(2)
    ]
    reader = fleet.rollout(request_nbytes=BUCKET).ready()
    old = fleet.publish_parts(*trainers, step=1, seed=1)
    fleet.refit(reader, old)
    fleet.publish_parts(*trainers, step=2, seed=2)
    hold_refit(reader, timeout=40)
    trainers[1].kill()
    reader.call("release")
    with pytest.raises(ChildError) as told:
        reader.finish()
    assert (told.value.error, told.value.code) == ("TransferError", "source_unreachable")
    assert "policy:trainer:1" in told.value.message
    assert reader.call("state")["sha256"] == fleet.published[old]
    trainers[1] = fleet.trainer(rank=1, world_size=2, shards=2, part=[1, 2], bucket_nbytes=BUCKET)
    fleet.refit(reader, fleet.publish_parts(*trainers, step=3, seed=3))


def test_killed_between_its_shard_and_the_last_fails_the_version(fleet: Fleet) -> None:
    trainers = pair(fleet)
    reader = fleet.rollout(request_nbytes=BUCKET)
    old = fleet.publish(*trainers, step=1, seed=1)
    fleet.refit(reader, old)
    broken = trainers[0].call("publish", step=2, seed=2)["version"]
    trainers[0].kill()
    until("the version failed", lambda: fleet.version(broken).state == "failed")
    assert fleet.version(broken).failure == "publisher_lost"
    with pytest.raises(ChildError) as told:
        trainers[1].call("publish", step=2, seed=2)
    assert (told.value.error, told.value.code) == ("VersionFailed", "publisher_lost")
    assert reader.call("state")["serving"] == old

    trainers[0] = fleet.trainer(rank=0, world_size=2, bucket_nbytes=BUCKET)
    newest = fleet.publish(*trainers, step=2, seed=2)
    assert newest > broken
    fleet.refit(reader, newest)


def test_killed_before_its_shard_its_successor_completes_the_version(fleet: Fleet) -> None:
    trainers = pair(fleet)
    trainers[1].ready()
    opened = trainers[0].call("publish", step=1, seed=1)
    trainers[1].call("hold")
    trainers[1].begin("publish", step=1, seed=1)
    until("the second in the middle of publishing", partial(trainers[1].call, "held"))
    trainers[1].kill()
    until("it is lost", lambda: fleet.worker_state("trainer:1") == "lost")
    assert fleet.version(opened["version"]).state == "staging"
    trainers[1] = fleet.trainer(rank=1, world_size=2, bucket_nbytes=BUCKET)
    assert trainers[1].call("publish", step=1, seed=1)["version"] == opened["version"]
    fleet.published[opened["version"]] = opened["sha256"]
    fleet.refit(fleet.rollout(), opened["version"])


def test_stopped_in_the_middle_of_publishing_goes_on_when_it_wakes(fleet: Fleet) -> None:
    trainers = pair(fleet)
    reader = fleet.rollout(request_nbytes=BUCKET)
    reader.call("follow")
    fleet.settled(fleet.publish(*trainers, step=1, seed=1), reader)
    trainers[1].call("hold")
    trainers[1].begin("publish", step=2, seed=2)
    until("the second in the middle of publishing", partial(trainers[1].call, "held"))
    trainers[1].stop()
    half = trainers[0].call("publish", step=2, seed=2)
    until("the second is lost", lambda: fleet.worker_state("trainer:1") == "lost")
    assert fleet.version(half["version"]).state == "staging"
    trainers[1].cont()
    trainers[1].call("release")
    assert trainers[1].finish()["version"] == half["version"]
    fleet.published[half["version"]] = half["sha256"]
    fleet.settled(half["version"], reader)
