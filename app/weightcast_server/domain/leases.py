"""The clock behind leases and deadlines. In memory: a heartbeat writes nothing."""

from __future__ import annotations

from dataclasses import dataclass

from weightcast_server.domain.keys import ClockKey


@dataclass(slots=True)
class _Running:
    seconds: float
    renewed_at: float
    ends_at: float


class LeaseClock:
    """Counts down leases and deadlines and extends all of them by the time that the server itself was stalled.

    Args:
        interval: seconds between two sweeps. A sweep more than two intervals after the last one means that the server
            did not run (stopped, starved, asleep): heartbeats could not be heard, so nobody is to blame for silence.
    """

    def __init__(self, interval: float) -> None:
        self._interval = interval
        self._running: dict[ClockKey, _Running] = {}
        self._swept_at: float | None = None

    def __len__(self) -> int:
        return len(self._running)

    def __contains__(self, key: ClockKey) -> bool:
        return key in self._running

    def start(self, key: ClockKey, seconds: float, now: float) -> None:
        """Start counting, or start again with other seconds."""
        self._running[key] = _Running(seconds, now, now + seconds)

    def renew(self, key: ClockKey, now: float) -> bool:
        """Start again with the same seconds; False when nothing is counted for the key."""
        entry = self._running.get(key)
        if entry is None:
            return False
        entry.renewed_at = now
        entry.ends_at = now + entry.seconds
        return True

    def stop(self, key: ClockKey) -> None:
        """Count no more for the key; unknown keys are fine."""
        self._running.pop(key, None)

    def clear(self) -> None:
        """Forget everything, for a store that starts anew."""
        self._running.clear()

    def age(self, key: ClockKey, now: float) -> float | None:
        """Seconds since the key was started or renewed."""
        entry = self._running.get(key)
        return None if entry is None else max(0.0, now - entry.renewed_at)

    def sweep(self, now: float) -> list[ClockKey]:
        """The keys that ran out. They are returned again by every sweep until they are stopped or renewed.

        So a store that cannot write the end of a lease now is asked again, and a heartbeat that arrives meanwhile wins.
        """
        stall = self._stall(now)
        self._swept_at = now
        if stall:
            for entry in self._running.values():
                # An entry renewed after the stall needs no extension; none may end later than a fresh one.
                entry.ends_at = min(entry.ends_at + stall, now + entry.seconds)
        return [key for key, entry in self._running.items() if entry.ends_at <= now]

    def _stall(self, now: float) -> float:
        # The whole time since the last sweep, so that no lease ends before its holder can be heard again.
        if self._swept_at is None or now - self._swept_at <= 2 * self._interval:
            return 0.0
        return now - self._swept_at


def heartbeat_seconds(lease: float, workers: int, max_per_second: float) -> float:
    """Interval between heartbeats of one worker: a sixth of its lease, longer when the fleet would be too loud.

    Never so long that two lost heartbeats end the lease.
    """
    return min(max(lease / 6, workers / max_per_second), lease / 3)


def sweep_seconds(lease: float) -> float:
    """Interval between two sweeps for a lease of this length; deadlines of versions and pulls go by it as well."""
    return min(max(0.05, lease / 5), 1.0)
