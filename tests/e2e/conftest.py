"""A real server, and real worker processes of one model per test."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from support.fleet import Fleet, Pool
from support.server import ServerProcess

_numbers = itertools.count(1)


@pytest.fixture(scope="package")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server for all tests that do not hurt it, each with a model of its own."""
    with ServerProcess(tmp_path_factory.mktemp("e2e"), lease_seconds=10.0) as running:
        yield running


@pytest.fixture
def fleet(pool: Pool, shared_server: ServerProcess) -> Iterator[Fleet]:
    """Workers of this test; at its end nobody may have served anything but whole versions."""
    with Fleet(pool, shared_server.url, f"m{next(_numbers)}") as workers:
        yield workers
