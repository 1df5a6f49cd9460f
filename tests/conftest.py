"""What end-to-end and fault tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.fleet import Pool


@pytest.fixture(scope="session")
def pool() -> Iterator[Pool]:
    """Worker processes for all tests of the session: importing torch in each test would take most of its time."""
    processes = Pool()
    yield processes
    processes.close()
