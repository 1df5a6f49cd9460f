"""Leases lost by standing still, and leases not lost by being busy."""

from __future__ import annotations

import time

from support.fleet import Fleet
from support.workers import until

LEASE_SECONDS = 2.0


def test_trainer_that_slept_offers_its_versions_again(fleet: Fleet) -> None:
    trainer = fleet.trainer().ready()
    for step in range(1, 3):
        version = fleet.publish(trainer, step=step, seed=step)
    trainer.stop()
    until("it is lost", lambda: fleet.worker_state("trainer:0") == "lost")
    assert not fleet.version(version).available
    late = fleet.rollout().ready()
    assert late.call("stage", timeout=0.3) is None, "nobody may be sent to it"

    trainer.cont()
    until("it offers the version again", lambda: fleet.version(version).available)
    fleet.refit(late, version)
    assert fleet.epoch("trainer:0") == 2
    assert [holding.epoch for holding in fleet.version(version - 1).holdings] == [2], "both slots are"
    fleet.refit(late, fleet.publish(trainer, step=3, seed=3))


def test_rollout_that_slept_says_what_it_serves_and_pulls_nothing_again(fleet: Fleet) -> None:
    trainer, rollout = fleet.trainer(), fleet.rollout()
    version = fleet.publish(trainer, step=1, seed=1)
    fleet.refit(rollout, version)
    generation = fleet.replica().generation
    rollout.stop()
    until("it is lost", lambda: fleet.worker_state("rollout:r0:0") == "lost")
    assert not fleet.replica().servable
    rollout.cont()
    until("it is servable", lambda: fleet.replica().servable)
    assert (fleet.replica().serving_version, fleet.replica().generation) == (version, generation + 1)
    assert rollout.call("stage", timeout=0.3) is None
    assert len(fleet.pulls()) == 1
    fleet.refit(rollout, fleet.publish(trainer, step=2, seed=2))


def test_all_sleep_and_wake_together(fleet: Fleet) -> None:
    trainers = [fleet.trainer(rank=rank, world_size=2) for rank in range(2)]
    rollouts = [fleet.rollout(replica=name) for name in ("r0", "r1")]
    for rollout in rollouts:
        rollout.call("follow")
    fleet.settled(fleet.publish(*trainers, step=1, seed=1), *rollouts)
    everybody = [*trainers, *rollouts]
    for worker in everybody:
        worker.stop()
    until("all are lost", lambda: {str(one.state) for one in fleet.control.workers("policy").items} == {"lost"})
    for worker in everybody:
        worker.cont()
    fleet.settled(fleet.publish(*trainers, step=2, seed=2), *rollouts)


def test_busy_interpreter_keeps_its_lease_and_serves(fleet: Fleet) -> None:
    trainer, rollout = fleet.trainer(mib=4), fleet.rollout(mib=4)
    version = fleet.publish(trainer, step=1, seed=1)
    fleet.refit(rollout, version)
    started = time.monotonic()
    trainer.begin("spin", seconds=4 * LEASE_SECONDS)
    pulled = 0
    while time.monotonic() < started + 3 * LEASE_SECONDS:
        rollout.call("reset")
        rollout.start("rollout", fleet.url, model=fleet.model, replica="r0", mib=4)
        fleet.refit(rollout, version)
        pulled += 1
        assert fleet.worker_state("trainer:0") == "live"
    trainer.finish()
    assert pulled > 1
    assert trainer.call("identity")[1] == 1, "the lease was never lost"
    fleet.refit(rollout, fleet.publish(trainer, step=2, seed=2))
