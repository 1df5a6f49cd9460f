"""Readiness: one look for all who ask, kept for a second, and no without a sweep."""

from __future__ import annotations

import asyncio

import pytest
from weightcast_server import readiness
from weightcast_server.readiness import Readiness
from weightcast_server.store.protocol import StoreUnavailable


def test_looks_are_shared_and_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = 0
    full = False

    async def ping() -> None:
        nonlocal looks
        looks += 1
        await asyncio.sleep(0)
        if full:
            raise StoreUnavailable("disk full")

    async def main() -> None:
        nonlocal full
        ready = Readiness(ping)
        await asyncio.gather(*(ready.check(None) for _ in range(20)))
        await ready.check(None)
        assert looks == 1
        full = True
        monkeypatch.setattr(readiness, "KEPT_SECONDS", 0.0)
        for _ in range(2):
            with pytest.raises(StoreUnavailable, match="disk full"):
                await ready.check(None)
        full = False
        await ready.check(None)
        assert looks == 4

    asyncio.run(main())


def test_a_server_that_ends_no_leases_is_not_ready() -> None:
    async def ping() -> None:
        """A store that can be written."""

    async def main() -> None:
        ready = Readiness(ping)
        sweeper: asyncio.Task[None] = asyncio.create_task(asyncio.sleep(10))
        await ready.check(sweeper)
        sweeper.cancel()
        await asyncio.wait([sweeper])
        with pytest.raises(StoreUnavailable, match="leases"):
            await ready.check(sweeper)

    asyncio.run(main())
