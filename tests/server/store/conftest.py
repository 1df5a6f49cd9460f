"""Stores for the behavioural suite: every test in it runs against each of them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from support.stores import Clock, Fleet, Recorder
from weightcast_server.store.protocol import Store
from weightcast_server.store.sqlite import SQLiteStore


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture(params=["sqlite"])
async def store(
    request: pytest.FixtureRequest, tmp_path: Path, clock: Clock, recorder: Recorder
) -> AsyncIterator[Store]:
    stores = {"sqlite": lambda: SQLiteStore(tmp_path / "weightcast.db", clock=clock)}
    opened: Store = stores[request.param]()
    await opened.start(recorder)
    yield opened
    await opened.close()


@pytest.fixture
def fleet(store: Store) -> Fleet:
    return Fleet(store)
