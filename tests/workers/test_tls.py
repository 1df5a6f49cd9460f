"""Client and heartbeats over TLS, with a private CA and without."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.server import ServerProcess
from weightcast.client import ControlPlane
from weightcast.contract.names import Role, WorkerState
from weightcast.contract.workers import RegisterWorker
from weightcast.errors import ServerUnavailable
from weightcast.session import WorkerSession

REQUEST = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost"


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ServerProcess, Path]]:
    directory = tmp_path_factory.mktemp("tls")
    key, certificate = directory / "key.pem", directory / "cert.pem"
    names = "subjectAltName=IP:127.0.0.1"
    command = ["openssl", *REQUEST.split(), "-addext", names, "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(command, check=True, capture_output=True, timeout=30)
    with ServerProcess(directory, lease_seconds=1.0, ssl_certfile=certificate, ssl_keyfile=key) as server:
        yield server, certificate


def test_a_session_over_tls(secure: tuple[ServerProcess, Path]) -> None:
    server, certificate = secure
    assert server.url.startswith("https://")
    body = RegisterWorker(model="m", role=Role.TRAINER, rank=0, world_size=1, run="r", incarnation="0" * 32)
    with ControlPlane(server.url, ca_file=certificate) as control, WorkerSession(control, lambda _: body) as session:
        session.start()
        pulse = control.pulse()
        assert [pulse.beat(session.identity, 2.0).lease_seconds for _ in range(3)] == [1.0] * 3
        pulse.close()
        assert control.worker("m:trainer:0").state is WorkerState.LIVE


def test_an_untrusted_certificate_is_not_tried_again(secure: tuple[ServerProcess, Path]) -> None:
    server, _ = secure
    with ControlPlane(server.url) as control, pytest.raises(ServerUnavailable, match=r"not trusted.*ca_file"):
        control.models(deadline=20)
