"""The lease clock: silence ends a lease, a stall of the server does not."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given
from weightcast_server.domain.keys import ClockKey, PullKey, VersionKey, WorkerKey
from weightcast_server.domain.leases import LeaseClock, heartbeat_seconds, sweep_seconds

A = WorkerKey("a", 1)
B = VersionKey("m", 1)


def test_a_lease_runs_out_and_says_so_until_it_is_stopped() -> None:
    clock = LeaseClock(1.0)
    clock.start(A, 3.0, 0.0)
    assert [clock.sweep(now) for now in (1.0, 2.0, 2.9)] == [[], [], []]
    assert clock.sweep(3.0) == [A]
    assert clock.sweep(4.0) == [A], "the store may not have been able to write it"
    clock.stop(A)
    clock.stop(A)
    assert clock.sweep(5.0) == []
    assert (len(clock), A in clock) == (0, False)


def test_a_heartbeat_renews_and_also_rescues() -> None:
    clock = LeaseClock(1.0)
    clock.start(A, 3.0, 0.0)
    assert clock.renew(A, 2.0)
    assert [clock.sweep(now) for now in (1.0, 2.0, 3.0, 4.0)] == [[], [], [], []]
    assert clock.sweep(5.0) == [A]
    assert clock.renew(A, 5.5)
    assert clock.sweep(6.0) == []
    assert clock.age(A, 6.0) == 0.5
    assert not clock.renew(B, 6.0)
    assert clock.age(B, 6.0) is None
    clock.clear()
    assert clock.sweep(60.0) == []


def test_a_stall_is_nobodys_fault() -> None:
    clock = LeaseClock(1.0)
    clock.sweep(0.0)
    clock.start(A, 3.0, 0.0)
    clock.start(B, 100.0, 0.0)
    assert clock.sweep(1.0) == []
    assert clock.sweep(61.0) == [], "the server slept for a minute"
    assert clock.sweep(62.0) == []
    assert clock.sweep(62.9) == []
    assert clock.sweep(63.0) == [A], "60 s were added to the 3"
    clock.stop(A)
    assert clock.sweep(64.0) == []


def test_a_stall_lengthens_no_lease_beyond_a_fresh_one() -> None:
    clock = LeaseClock(1.0)
    clock.sweep(0.0)
    clock.start(A, 3.0, 0.0)
    clock.renew(A, 60.0)
    clock.sweep(61.0)
    assert [clock.sweep(now) for now in (62.0, 63.0)] == [[], []]
    assert clock.sweep(64.0) == [A]


keys = st.sampled_from([A, WorkerKey("a", 2), B, PullKey("p")])
events = st.lists(
    st.tuples(st.floats(0.0, 1.0), st.one_of(st.none(), st.tuples(keys, st.booleans(), st.floats(0.5, 20.0)))),
    max_size=60,
)


@given(events)
def test_without_stalls_exactly_the_silent_ones_run_out(
    history: list[tuple[float, tuple[ClockKey, bool, float] | None]],
) -> None:
    clock = LeaseClock(1.0)
    expected: dict[ClockKey, tuple[float, float]] = {}
    now = 0.0
    for delay, event in history:
        now += delay
        if event is not None:
            key, starts, seconds = event
            if starts:
                clock.start(key, seconds, now)
                expected[key] = (now + seconds, seconds)
            elif key in expected:
                assert clock.renew(key, now)
                expected[key] = (now + expected[key][1], expected[key][1])
        assert set(clock.sweep(now)) == {key for key, (ends_at, _) in expected.items() if ends_at <= now}


@given(st.lists(st.floats(0.0, 50.0), min_size=1, max_size=30), st.floats(4.0, 20.0))
def test_nothing_runs_out_faster_than_the_server_can_listen(delays: list[float], lease: float) -> None:
    clock = LeaseClock(1.0)
    clock.sweep(0.0)
    clock.start(A, lease, 0.0)
    now = heard = 0.0
    for delay in delays:
        now += delay
        heard += delay if delay <= 2.0 else 0.0
        if heard < lease - 1e-6:
            assert clock.sweep(now) == []
        else:
            clock.sweep(now)


@given(st.floats(0.3, 600.0), st.integers(0, 1_000_000), st.floats(1.0, 100_000.0))
def test_heartbeats_scale_with_the_fleet(lease: float, workers: int, rate: float) -> None:
    interval = heartbeat_seconds(lease, workers, rate)
    assert lease / 6 <= interval <= lease / 3
    if interval < lease / 3:
        assert workers / interval <= rate * (1 + 1e-9)
    assert 0.05 <= sweep_seconds(lease) <= max(0.05, lease / 5)
