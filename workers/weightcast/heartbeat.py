"""When to beat, and how loudly to complain while nobody answers. Pure: the caller brings the clock."""

from __future__ import annotations

import math
from typing import Final

MAX_SILENCE_SECONDS: Final = 60.0


class Schedule:
    """Beats at absolute times: a late beat does not shift those after it, and missed ones are not made up for."""

    def __init__(self, interval: float, now: float) -> None:
        self.interval = interval
        self.next_at = now + interval

    def delay(self, now: float) -> float:
        """Seconds until the next beat; 0 when it is overdue."""
        return max(0.0, self.next_at - now)

    def beaten(self, now: float, interval: float) -> None:
        """A beat was answered; the server wants the next one ``interval`` after this one was due."""
        if interval != self.interval:
            self.interval = interval
            self.next_at = now + interval
            return
        missed = max(0, math.floor((now - self.next_at) / interval))
        self.next_at += (missed + 1) * interval

    def again_in(self, seconds: float, now: float) -> None:
        """A beat failed; try again after ``seconds``."""
        self.next_at = now + seconds


class Outage:
    """Decides which of many equal failures are worth a log line: the first, then after 1, 2, 4, … up to 60 s more."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._speak_at = 0.0
        self._silence = 1.0

    def failed(self, now: float) -> bool:
        """Note a failure; True when it should be logged."""
        if self._since is None:
            self._since = now
            self._silence = 1.0
        elif now < self._speak_at:
            return False
        self._speak_at = now + self._silence
        self._silence = min(self._silence * 2, MAX_SILENCE_SECONDS)
        return True

    def ended(self, now: float) -> float | None:
        """Note a success; how long the outage was, or None when there was none."""
        since, self._since = self._since, None
        return None if since is None else now - since
