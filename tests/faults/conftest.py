"""A server of its own for every test, because most of them hurt it, and workers with short leases."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.fleet import Fleet, Pool
from support.server import ServerProcess


@pytest.fixture
def lease_seconds() -> float:
    """Leases of this test's server; modules and tests choose others."""
    return 2.0


@pytest.fixture
def server(tmp_path: Path, lease_seconds: float) -> Iterator[ServerProcess]:
    """The control plane."""
    with ServerProcess(tmp_path, lease_seconds=lease_seconds) as running:
        yield running


@pytest.fixture
def environment() -> dict[str, str]:
    """Variables of this test's workers."""
    return {}


@pytest.fixture
def fleet(pool: Pool, server: ServerProcess, environment: dict[str, str]) -> Iterator[Fleet]:
    """Workers of this test; at its end nobody may have served anything but whole versions."""
    with Fleet(pool, server.url, env=environment) as workers:
        yield workers
