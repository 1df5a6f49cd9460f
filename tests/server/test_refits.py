"""The measure of refits: READY until every rank of that moment has applied it."""

from __future__ import annotations

from weightcast.contract.names import PullState, Role, VersionState, WorkerState
from weightcast.contract.pulls import Pull
from weightcast_server.refits import RefitClock
from weightcast_server.store.protocol import Changes, VersionFact, WorkerFact


def rollout(name: str, state: WorkerState = WorkerState.LIVE) -> Changes:
    return Changes(workers=(WorkerFact(f"m:rollout:{name}:0", "m", Role.ROLLOUT, name, 1, 1, state),))


def ready(version: int) -> Changes:
    return Changes(versions=(VersionFact("m", version, VersionState.READY, None, 0, 0),))


def applied(name: str, version: int) -> Changes:
    return Changes(
        pulls=(
            Pull(
                pull_id="0" * 32,
                model="m",
                version=version,
                step=0,
                worker_id=f"m:rollout:{name}:0",
                epoch=1,
                replica=name,
                rank=0,
                attempt=0,
                state=PullState.APPLIED,
                nbytes=1,
                assigned_at=0,
                updated_at=0,
            ),
        )
    )


def test_a_refit_ends_with_its_last_member() -> None:
    clock = RefitClock()
    for changes in (rollout("a"), rollout("b"), ready(1), rollout("late")):
        assert clock.apply(changes, 10.0) == []
    assert clock.apply(applied("late", 1), 10.5) == []
    assert clock.apply(applied("a", 1), 11.0) == []
    assert clock.apply(applied("b", 1), 12.5) == [2.5]
    assert clock.apply(applied("b", 1), 13.0) == []


def test_a_newer_version_completes_the_ones_before() -> None:
    clock = RefitClock()
    for changes, now in ((rollout("a"), 0.0), (ready(1), 1.0), (ready(2), 2.0)):
        clock.apply(changes, now)
    assert sorted(clock.apply(applied("a", 2), 5.0)) == [3.0, 4.0]


def test_members_that_die_are_not_waited_for_and_nobody_is_no_refit() -> None:
    clock = RefitClock()
    clock.apply(ready(1), 0.0)
    clock.apply(rollout("a"), 0.0)
    clock.apply(rollout("b"), 0.0)
    assert clock.apply(applied("a", 1), 1.0) == [], "nobody was there when it became READY"
    clock.apply(ready(2), 2.0)
    clock.apply(rollout("b", WorkerState.LOST), 3.0)
    assert clock.apply(applied("a", 2), 4.0) == [2.0]
    clock.apply(ready(3), 5.0)
    clock.apply(rollout("a", WorkerState.LEFT), 6.0)
    clock.apply(rollout("a"), 7.0)
    assert clock.apply(applied("a", 3), 8.0) == []
    clock.apply(ready(4), 9.0)
    clock.apply(Changes(reset=True), 9.0)
    assert clock.apply(applied("a", 4), 10.0) == []


def test_versions_that_nobody_applies_are_forgotten() -> None:
    clock = RefitClock()
    clock.apply(rollout("a"), 0.0)
    for version in range(1, 201):
        clock.apply(ready(version), float(version))
    assert len(clock.apply(applied("a", 200), 300.0)) == 64
