"""How long to wait before trying again, and durations that make sense."""

from __future__ import annotations

import math
import random
from typing import Final

from weightcast.errors import InvalidArgument

MAX_SECONDS: Final = 31_536_000.0
"""Longest duration accepted anywhere: a year."""


def check_seconds(name: str, value: float) -> float:
    """``value`` as a finite, non-negative float.

    Raises:
        InvalidArgument: NaN, infinite, negative, over a year, or not a number.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidArgument(f"{name} is {value!r}; give a number of seconds.")
    if not (math.isfinite(value) and 0 <= value <= MAX_SECONDS):
        raise InvalidArgument(f"{name} is {value!r}; give a finite number of seconds between 0 and {MAX_SECONDS:g}.")
    return float(value)


class Backoff:
    """Delays that double up to a cap, each drawn at random below it so that a fleet does not come back in step."""

    def __init__(self, first: float = 0.05, cap: float = 2.0) -> None:
        self._first = first
        self._cap = cap
        self._ceiling = first

    def next(self) -> float:
        """The next delay in seconds: between half and all of the current ceiling."""
        delay = self._ceiling * random.uniform(0.5, 1.0)  # noqa: S311 - spreads load, keeps no secret
        self._ceiling = min(self._ceiling * 2, self._cap)
        return delay

    def reset(self) -> None:
        """Start again from the shortest delay."""
        self._ceiling = self._first
