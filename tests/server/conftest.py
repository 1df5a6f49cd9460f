"""Fixtures of the server's tests: one real server process for all that need no server of their own."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator

import pytest
import structlog
from support.rest import Rest
from support.server import ServerProcess

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server that many tests use, each with a model of its own."""
    with ServerProcess(tmp_path_factory.mktemp("server"), lease_seconds=60) as server:
        yield server


@pytest.fixture
def kept_logging() -> Iterator[None]:
    """Whoever configures logs in this process leaves no trace."""
    root, uvicorn = logging.getLogger(), logging.getLogger("uvicorn")
    before = root.handlers[:], root.level, uvicorn.level
    yield
    root.handlers[:] = before[0]
    root.setLevel(before[1])
    uvicorn.setLevel(before[2])
    structlog.reset_defaults()


@pytest.fixture
def rest(shared_server: ServerProcess) -> Iterator[Rest]:
    """A client of the shared server."""
    client = Rest(shared_server.url)
    yield client
    client.close()


@pytest.fixture
def model() -> str:
    """A model name that no other test uses."""
    return f"m{next(_numbers)}"
