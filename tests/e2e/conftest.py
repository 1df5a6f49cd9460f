"""A real server and real worker processes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.server import ServerProcess
from support.workers import Fleet, fleet


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path, lease_seconds=5.0) as running:
        yield running


@pytest.fixture
def workers(server: ServerProcess) -> Iterator[Fleet]:
    with fleet(server.url) as running:
        yield running
