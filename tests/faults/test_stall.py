"""Over TCP a READ from a stopped process neither ends nor can be cancelled, and its bytes may land much later."""

from __future__ import annotations

from functools import partial

import pytest
from support.fleet import Fleet
from support.workers import ChildError, WorkerProcess, until

MIB = 48.0
BUCKET = 2 * 2**20
REQUEST = 6 * 2**20
"""Four READs are in flight: with one of them done, more is missing than the kernel's buffers hold."""

STALL_SECONDS = 1.0


@pytest.fixture
def lease_seconds() -> float:
    return 60.0


@pytest.fixture
def environment() -> dict[str, str]:
    return {"UCX_TLS": "tcp"}


class Scene:
    """Two trainers that hold the same version, and a reader that is connected to both."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.start_trainers()
        self.reader = fleet.rollout(mib=MIB, request_nbytes=REQUEST, stall_seconds=STALL_SECONDS).ready()
        self.step = 0
        for left in self.trainers:
            version = self.publish()
            (other,) = [trainer for trainer in self.trainers if trainer is not left]
            assert other.call("wait_drained", version=version)
            assert self.fleet.refit(self.reader, version)["transport"] == "tcp"

    def start_trainers(self) -> None:
        """Both ranks, as new processes."""
        self.trainers = [
            self.fleet.trainer(rank=rank, world_size=2, mib=MIB, bucket_nbytes=BUCKET) for rank in range(2)
        ]

    def publish(self) -> int:
        """One more version by both."""
        self.step += 1
        return self.fleet.publish(*self.trainers, step=self.step, seed=self.step)

    def stop_source(self) -> WorkerProcess:
        """Stop the trainer that is read, in the middle of it."""
        until("a reader in the middle", partial(self.reader.call, "held"))
        rank = int(self.fleet.pulls()[0].sources[0].rpartition(":")[2])
        self.trainers[rank].stop()
        return self.trainers[rank]

    def landed(self) -> None:
        """Wait until nothing is in flight any more."""
        until("late bytes have landed", lambda: not self.reader.call("state")["quarantined"])


def test_stopped_source_is_given_up_and_its_late_bytes_hurt_nothing(fleet: Fleet) -> None:
    scene = Scene(fleet)
    version = scene.publish()
    scene.reader.call("hold")
    scene.reader.begin("stage", timeout=40)
    stopped = scene.stop_source()
    scene.reader.call("release")
    staged = scene.reader.finish()
    other = scene.trainers[1 - scene.trainers.index(stopped)]
    assert staged["sources"] == [f"policy:trainer:{scene.trainers.index(other)}"]
    (failed,) = [pull for pull in fleet.pulls() if pull.version == version and pull.state == "failed"]
    assert failed.failure == "source_stalled"
    assert scene.reader.call("state")["quarantined"] > MIB * 2**20

    stopped.cont()  # what it still sends arrives in the quarantined memory, beside what was staged and verified
    scene.landed()
    assert scene.reader.call("apply")["sha256"] == fleet.published[version]
    for _ in range(2):
        fleet.refit(scene.reader, scene.publish())


def test_second_stall_rebuilds_the_agent_and_the_memory_is_free_again(fleet: Fleet) -> None:
    """Both trainers hang for good: UCX aborts one that wakes up when the reader it was sending to is gone."""
    scene = Scene(fleet)
    old = scene.reader.call("state")
    scene.publish()
    scene.reader.call("hold", fetches=2)
    scene.reader.begin("refit", timeout=40)
    first = scene.stop_source()
    scene.reader.call("release")
    until("the first is given up", lambda: scene.reader.call("state")["quarantined"])
    second = scene.stop_source()
    assert second is not first
    scene.reader.call("release")
    with pytest.raises(ChildError) as told:
        scene.reader.finish()
    assert (told.value.error, told.value.code) == ("TransferError", "source_stalled")
    state = scene.reader.call("state")
    assert state["quarantined"] == 0
    assert state["agent"] != old["agent"], "only destroying an agent ends its READs"
    assert (state["serving"], state["sha256"]) == (old["serving"], old["sha256"])

    first.kill()
    second.kill()
    scene.start_trainers()
    for _ in range(2):
        fleet.refit(scene.reader, scene.publish())


def test_the_only_source_stopped_leaves_the_old_version_and_heals(fleet: Fleet) -> None:
    scene = Scene(fleet)
    old = scene.reader.call("state")
    version = scene.publish()
    gone, stays = scene.trainers
    assert gone.call("wait_drained", version=version)
    scene.reader.call("hold")
    scene.reader.begin("refit", timeout=40)
    assert scene.stop_source() is stays
    scene.reader.call("release")
    with pytest.raises(ChildError) as told:
        scene.reader.finish()
    assert (told.value.error, told.value.code) == ("TransferError", "source_stalled")
    assert scene.reader.call("state")["sha256"] == old["sha256"]
    stays.cont()
    fleet.refit(scene.reader, version)
    scene.landed()
    assert scene.reader.call("state")["sha256"] == fleet.published[version]
