"""Sessions beside servers that are killed, wiped and stopped."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.server import ServerProcess
from support.sessions import LEASE, eventually, trainer
from weightcast.client import ControlPlane
from weightcast.contract.names import WorkerState
from weightcast.contract.workers import Registration
from weightcast.session import WorkerSession


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    """A server to be killed, stopped and wiped."""
    with ServerProcess(tmp_path, lease_seconds=LEASE) as running:
        yield running


@pytest.fixture
def control(server: ServerProcess) -> Iterator[ControlPlane]:
    with ControlPlane(server.url, deadline_seconds=10) as client:
        yield client


def test_a_restarted_server_keeps_its_worker_and_epoch(server: ServerProcess, control: ControlPlane) -> None:
    with WorkerSession(control, trainer("policy")) as session:
        session.start()
        server.kill()
        time.sleep(1.5 * LEASE)
        started = time.monotonic()
        assert session.identity.epoch == 1  # Nobody waits for a server that is away.
        assert time.monotonic() - started < 0.1
        server.start()
        time.sleep(1.5 * LEASE)
        assert control.worker("policy:trainer:0").state is WorkerState.LIVE
        assert session.identity.epoch == 1


def test_a_wiped_server_gets_its_worker_back(server: ServerProcess, control: ControlPlane) -> None:
    again: list[Registration] = []
    session = WorkerSession(control, trainer("policy", highest_version=41), on_registered=[again.append])
    with session:
        first = session.start()
        server.kill()
        for file in server.database.parent.glob(server.database.name + "*"):
            file.unlink()
        server.start()
        eventually(lambda: bool(again))
        assert again[0].epoch > first.epoch
        assert session.identity.epoch == again[0].epoch
        assert control.worker("policy:trainer:0").state is WorkerState.LIVE


def test_a_database_deleted_under_the_server_is_survived(server: ServerProcess, control: ControlPlane) -> None:
    with WorkerSession(control, trainer("policy")) as session:
        session.start()
        for file in server.database.parent.glob(server.database.name + "*"):
            if not file.name.endswith(".lock"):
                file.unlink()
        eventually(lambda: session.identity.epoch > 1)
        assert server.running
        assert control.worker("policy:trainer:0").epoch == session.identity.epoch


def test_closing_is_bounded_when_the_server_hangs(server: ServerProcess, control: ControlPlane) -> None:
    session = WorkerSession(control, trainer("policy"))
    session.start()
    server.signal(signal.SIGSTOP)
    time.sleep(0.3)
    started = time.monotonic()
    session.close(timeout=1.0)
    assert time.monotonic() - started < 1.5
