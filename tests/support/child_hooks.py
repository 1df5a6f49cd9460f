"""Points inside the library at which a worker process can be made to wait, so that faults hit the middle of a refit."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from weightcast.engines import fetch as fetch_module
from weightcast.engines import peers as peers_module
from weightcast.engines.source import WrittenSlot
from weightcast.trainer import Trainer

_ARRIVED = fetch_module.Fetch._arrived
_REQUEST_NBYTES = peers_module.REQUEST_NBYTES


class Gate:
    """Makes some of those who arrive wait until it is opened."""

    def __init__(self) -> None:
        self._opened = threading.Event()
        self._after = self._times = self._count = 0
        self._visitor: object = None
        self.waiting = False

    def close(self, after: int = 1, times: int = 1) -> None:
        """Stop a visitor at its ``after``-th arrival, and then as many others until ``times`` have been stopped."""
        self._visitor, self._after, self._times = None, after, times

    def open(self) -> None:
        """Let the one who waits go on; when nobody does, stop nobody any more."""
        if not self.waiting:
            self._times = 0
        self._opened.set()

    def arrive(self, visitor: object, given_up: Callable[[], bool]) -> None:
        """Wait here if it is closed for this visitor."""
        if not self._times:
            return
        if visitor is not self._visitor:
            self._visitor, self._count = visitor, 0
        self._count += 1
        if self._count != self._after:
            return
        self._times -= 1
        self._opened.clear()
        self.waiting = True
        while not self._opened.wait(0.01) and not given_up():
            pass
        self.waiting = False


def patched_requests(gate: Gate, request_nbytes: int) -> None:
    """Make every READ that has arrived pass a gate, and READs smaller so that there are several of them."""

    def arrived(self: fetch_module.Fetch, *arguments: Any) -> None:
        gate.arrive(self, self._control.stopped.is_set)
        _ARRIVED(self, *arguments)

    fetch_module.Fetch._arrived = arrived  # type: ignore[method-assign, assignment]
    peers_module.REQUEST_NBYTES = request_nbytes or _REQUEST_NBYTES


def gated_write(trainer: Trainer, gate: Gate) -> None:
    """Make every publish pass a gate after its bytes are in the slot."""
    source = trainer._source
    write = source.write

    def gated(*arguments: Any) -> WrittenSlot:
        written = write(*arguments)
        gate.arrive(written, lambda: False)
        return written

    source.write = gated  # type: ignore[method-assign, assignment]


def restore() -> None:
    """Undo it."""
    fetch_module.Fetch._arrived = _ARRIVED  # type: ignore[method-assign]
    peers_module.REQUEST_NBYTES = _REQUEST_NBYTES
