"""A real server for the worker library's tests."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from support.server import ServerProcess
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
