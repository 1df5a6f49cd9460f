"""The heartbeat's clockwork, without a clock."""

from __future__ import annotations

from weightcast.client.backoff import Backoff
from weightcast.heartbeat import MAX_SILENCE_SECONDS, Outage, Schedule


def test_late_beats_do_not_shift_the_schedule() -> None:
    schedule = Schedule(1.0, now=100.0)
    assert schedule.delay(100.0) == 1.0
    schedule.beaten(101.3, 1.0)
    assert schedule.next_at == 102.0


def test_missed_beats_are_not_made_up_for() -> None:
    schedule = Schedule(1.0, now=100.0)
    assert schedule.delay(107.5) == 0.0
    schedule.beaten(107.5, 1.0)
    assert schedule.next_at == 108.0


def test_a_new_interval_begins_now() -> None:
    schedule = Schedule(1.0, now=100.0)
    schedule.beaten(101.0, 5.0)
    assert schedule.next_at == 106.0


def test_a_failed_beat_is_tried_again_soon() -> None:
    schedule = Schedule(10.0, now=100.0)
    schedule.again_in(0.5, now=110.0)
    assert schedule.delay(110.0) == 0.5


def test_an_outage_is_logged_at_growing_intervals() -> None:
    outage = Outage()
    logged = [second for second in range(400) if outage.failed(float(second))]
    assert logged[:7] == [0, 1, 3, 7, 15, 31, 63]
    assert logged[7:] == [123, 183, 243, 303, 363]
    assert MAX_SILENCE_SECONDS == 60
    assert outage.ended(401.0) == 401.0
    assert outage.ended(402.0) is None
    assert outage.failed(500.0)


def test_backoff_doubles_with_jitter_up_to_its_cap() -> None:
    backoff = Backoff(first=0.1, cap=1.0)
    for ceiling in (0.1, 0.2, 0.4, 0.8, 1.0, 1.0):
        assert ceiling / 2 <= backoff.next() <= ceiling
    backoff.reset()
    assert backoff.next() <= 0.1
