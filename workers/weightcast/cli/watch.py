"""The loop behind every ``--watch``: look, show, until Ctrl-C. A server that does not answer is shown, not fatal."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from weightcast.errors import ServerUnavailable

T = TypeVar("T")


def watch(look: Callable[[], T], show: Callable[[T], None], lost: Callable[[str], None], interval: float) -> None:
    """Call ``show(look())`` every ``interval`` seconds; ``lost(why)`` when the server does not answer."""
    due = time.monotonic()
    try:
        while True:
            try:
                seen = look()
            except ServerUnavailable as error:
                lost(str(error))
            else:
                show(seen)
            due = max(due + interval, time.monotonic())
            time.sleep(max(0.0, due - time.monotonic()))
    except KeyboardInterrupt:
        return
