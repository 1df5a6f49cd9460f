"""Whether the server may get traffic: asked by everyone, looked at once a second at most."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final

from weightcast_server.store.protocol import StoreUnavailable

KEPT_SECONDS: Final = 1.0
"""How long an outcome is given again: the probe needs no token, and each look writes to the database."""


class Readiness:
    """Shares one look at the store among all who ask at about the same time."""

    def __init__(self, ping: Callable[[], Awaitable[None]]) -> None:
        self._ping = ping
        self._look: asyncio.Task[None] | None = None
        self._began = 0.0

    async def check(self, sweeper: asyncio.Task[None] | None) -> None:
        """Return when the store takes writes and ``sweeper``, once started, runs.

        Raises:
            StoreUnavailable: not ready, and why.
        """
        if sweeper is not None and sweeper.done():
            raise StoreUnavailable("leases are not ended any more: see the log, restart the server")
        now = time.monotonic()
        if self._look is None or (self._look.done() and now - self._began >= KEPT_SECONDS):
            self._began = now
            self._look = asyncio.create_task(self._run())
        await asyncio.shield(self._look)

    async def _run(self) -> None:
        await self._ping()
