"""Points inside the library at which a worker process can be made to wait, so that faults hit the middle of a refit."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from weightcast.engines import fetch as fetch_module
from weightcast.engines import peers as peers_module

_ARRIVED = fetch_module.Fetch._arrived
_REQUEST_NBYTES = peers_module.MIN_REQUEST_NBYTES


class Gate:
    """Lets a number of arrivals pass, then makes them wait until it is opened."""

    def __init__(self, *, closed: bool = False) -> None:
        self._opened = threading.Event()
        self._passes = 0
        self.waiting = False
        if not closed:
            self._opened.set()

    def close(self, after: int) -> None:
        """Stop the ``after``-th arrival from now, and every one behind it."""
        self._passes = after
        self._opened.clear()

    def open(self) -> None:
        """Let everything pass."""
        self._opened.set()

    def arrive(self, given_up: Callable[[], bool]) -> None:
        """Wait here while closed."""
        if self._opened.is_set():
            return
        self._passes -= 1
        if self._passes > 0:
            return
        self.waiting = True
        while not self._opened.wait(0.01) and not given_up():
            pass
        self.waiting = False


def patched_requests(gate: Gate, request_nbytes: int) -> None:
    """Make every READ that has arrived pass a gate, and READs smaller so that there are several of them."""

    def arrived(self: fetch_module.Fetch, *arguments: Any) -> None:
        gate.arrive(self._control.stopped.is_set)
        _ARRIVED(self, *arguments)

    fetch_module.Fetch._arrived = arrived  # type: ignore[method-assign]
    peers_module.MIN_REQUEST_NBYTES = request_nbytes or _REQUEST_NBYTES


def restore() -> None:
    """Undo it."""
    fetch_module.Fetch._arrived = _ARRIVED  # type: ignore[method-assign]
    peers_module.MIN_REQUEST_NBYTES = _REQUEST_NBYTES
