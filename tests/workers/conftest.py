"""A real server for the worker library's tests."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from support.server import ServerProcess
from support.sessions import LEASE
from weightcast.client import ControlPlane
from weightcast.settings import WorkerSettings

_numbers = itertools.count()


@pytest.fixture(scope="module")
def live_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("server"), lease_seconds=5.0) as running:
        yield running


@pytest.fixture
def worker_settings(live_server: ServerProcess) -> WorkerSettings:
    return WorkerSettings(server_url=live_server.url, log_level="error")


@pytest.fixture
def model() -> str:
    """A model name that no other test uses."""
    return f"model-{next(_numbers)}"


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server with so short a lease that losing it can be waited for."""
    with ServerProcess(tmp_path_factory.mktemp("server"), lease_seconds=LEASE) as running:
        yield running


@pytest.fixture
def control(shared: ServerProcess) -> Iterator[ControlPlane]:
    with ControlPlane(shared.url, deadline_seconds=10) as client:
        yield client
