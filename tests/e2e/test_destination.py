"""Live weights of every kind: moved, strided, tied, unfit, and broken while they are loaded."""

from __future__ import annotations

import pytest
from support.fleet import Fleet
from support.workers import ChildError


def test_weights_may_be_allocated_anew_between_refits(fleet: Fleet) -> None:
    trainer, rollout = fleet.trainer(), fleet.rollout()
    for step in range(1, 4):
        version = fleet.publish(trainer, step=step, seed=step)
        assert rollout.call("stage")["version"] == version
        rollout.call("reallocate")  # after it was staged, before it is applied
        assert rollout.call("apply")["sha256"] == fleet.published[version]


@pytest.mark.parametrize("kind", ["strided", "tied"])
def test_non_contiguous_and_tied_destinations(fleet: Fleet, kind: str) -> None:
    trainer, rollout = fleet.trainer(), fleet.rollout(kind=kind)
    for step in range(1, 4):
        fleet.refit(rollout, fleet.publish(trainer, step=step, seed=step))


def test_every_mismatch_is_listed_in_one_error_and_nothing_is_touched(fleet: Fleet) -> None:
    trainer, rollout = fleet.trainer(), fleet.rollout()
    good = fleet.publish(trainer, step=1, seed=1)
    fleet.refit(rollout, good)

    trainer.call("reset")
    changes = {
        "big.1": None,
        "more": ([2, 3], "float32"),
        "big.2": ([7, 256], "float32"),
        "big.3": ([64, 256], "int32"),
    }
    trainer.start("trainer", fleet.url, model=fleet.model, run="run-2", changes=changes)
    bad = fleet.publish(trainer, step=2, seed=2)
    with pytest.raises(ChildError) as refused:
        rollout.call("refit")
    assert (refused.value.error, refused.value.code) == ("LayoutMismatch", "layout_mismatch")
    assert len(refused.value.differences) == 4
    for name, said in [("big.1", "not published"), ("more", "no such"), ("big.2", "shape"), ("big.3", "int32")]:
        assert any(name in line and said in line for line in refused.value.differences)
    state = rollout.call("state")
    assert (state["serving"], state["tainted"], state["sha256"]) == (good, False, fleet.published[good])
    assert (fleet.replica().serving_version, fleet.replica().servable) == (good, True)
    (pull,) = [pull for pull in fleet.pulls() if pull.version == bad]
    assert (pull.state, pull.failure, pull.bytes_done) == ("failed", "layout_mismatch", 0)

    trainer.call("reset")
    trainer.start("trainer", fleet.url, model=fleet.model, run="run-3")
    newest = fleet.publish(trainer, step=3, seed=3)
    assert newest > bad
    fleet.refit(rollout, newest)


def test_weights_that_changed_after_staging_are_refused_before_the_first_byte(fleet: Fleet) -> None:
    trainer, rollout = fleet.trainer(), fleet.rollout()
    fleet.refit(rollout, fleet.publish(trainer, step=1, seed=1))
    old = fleet.publish(trainer, step=2, seed=2)
    assert rollout.call("stage")["version"] == old
    rollout.call("change", changes={"big.0": ([3], "float32")})
    changed = rollout.call("state")["sha256"]
    with pytest.raises(ChildError, match=r"big\.0") as refused:
        rollout.call("apply")
    assert refused.value.error == "LayoutMismatch"
    assert rollout.call("state")["sha256"] == changed, "no byte was written"
    assert not rollout.call("state")["tainted"]
    rollout.call("change", changes={"big.0": ([64, 256], "float32")})
    fleet.refit(rollout, fleet.publish(trainer, step=3, seed=3))


def test_failing_post_load_hook_taints_until_the_next_version_heals(fleet: Fleet) -> None:
    trainer, rollout = fleet.trainer(), fleet.rollout()
    fleet.refit(rollout, fleet.publish(trainer, step=1, seed=1))
    broken = fleet.publish(trainer, step=2, seed=2)
    rollout.call("fail_load", fail=True)
    with pytest.raises(ChildError, match="post-load processing failed") as told:
        rollout.call("refit")
    assert told.value.error == "Tainted"
    state = rollout.call("state")
    assert (state["serving"], state["tainted"]) == (None, True)
    replica = fleet.replica()
    assert (replica.tainted, replica.servable, replica.serving_version) == (True, False, None)
    (pull,) = [pull for pull in fleet.pulls() if pull.version == broken]
    assert (pull.state, pull.failure) == ("failed", "apply_failed")

    rollout.call("fail_load", fail=False)
    healed = fleet.publish(trainer, step=3, seed=3)
    fleet.refit(rollout, healed)
    replica = fleet.replica()
    assert (replica.tainted, replica.servable, replica.serving_version) == (False, True, healed)


def test_a_tainted_rank_may_be_healed_by_the_same_version(fleet: Fleet) -> None:
    trainer, rollout = fleet.trainer(), fleet.rollout()
    version = fleet.publish(trainer, step=1, seed=1)
    rollout.call("fail_load", fail=True)
    with pytest.raises(ChildError, match="Tainted"):
        rollout.call("refit")
    rollout.call("fail_load", fail=False)
    fleet.refit(rollout, version)
