"""The server as a process: leases, stalls, SIGTERM, SIGKILL, a deleted database, clients that hang up."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from support.rest import Member, Rest, background
from support.server import ServerProcess


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path, lease_seconds=0.6) as process:
        yield process


@pytest.fixture
def rest(server: ServerProcess) -> Iterator[Rest]:
    client = Rest(server.url)
    yield client
    client.close()


def until(condition: Any, seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.03)


def states(rest: Rest) -> dict[str, str]:
    return {item["worker_id"]: item["state"] for item in rest.get("/v1/workers")["items"]}


def test_a_silent_worker_is_lost(rest: Rest) -> None:
    trainer, silent = (rest.trainer("policy", rank, world_size=2) for rank in range(2))
    assert trainer.heartbeat().json()["heartbeat_seconds"] == pytest.approx(0.1)
    number = trainer.open(1, world_size=2).json()["version"]
    silent.publish(number).raise_for_status()
    watch = background(lambda: rest.get(f"/v1/models/policy/versions/{number}", wait_for="ready", wait=20))
    started = time.monotonic()

    def lost() -> bool:
        assert trainer.heartbeat().status_code == 200
        return states(rest)[silent.worker_id] == "lost"

    until(lost)
    assert time.monotonic() - started > 0.4
    assert states(rest)[trainer.worker_id] == "live"
    version = watch.result(5)
    assert (version["state"], version["failure"]) == ("failed", "publisher_lost")
    answer = silent.heartbeat()
    assert (answer.status_code, answer.json()["code"]) == (409, "lease_expired")
    assert rest.gauge('weightcast_lease_expirations_total{role="trainer"}') == 1
    epoch = silent.epoch
    assert silent.register(previous_epoch=silent.epoch).status_code == 201
    assert silent.epoch == epoch + 1
    assert silent.heartbeat().status_code == 200


def test_a_stopped_server_blames_nobody(server: ServerProcess, rest: Rest) -> None:
    trainer = rest.trainer("policy")
    number = trainer.release(1)
    server.signal(signal.SIGSTOP)
    time.sleep(2.0)
    server.signal(signal.SIGCONT)
    assert trainer.heartbeat().status_code == 200
    assert states(rest) == {trainer.worker_id: "live"}
    assert rest.get(f"/v1/models/policy/versions/{number}")["available"] is True


def test_a_version_fails_at_its_deadline(rest: Rest) -> None:
    trainer = rest.trainer("policy")
    number = trainer.open(1, deadline_seconds=0.3).json()["version"]

    def failed() -> bool:
        trainer.heartbeat().raise_for_status()
        return bool(rest.get(f"/v1/models/policy/versions/{number}")["failure"] == "deadline")

    until(failed)


def test_a_pull_without_progress_fails(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, lease_seconds=5, pull_timeout_seconds=0.3) as server:
        rest = Rest(server.url)
        rest.trainer("policy").release(1)
        rollout = rest.rollout("policy")
        pull = rollout.pull().json()["pull"]
        until(lambda: rest.get(f"/v1/pulls/{pull['pull_id']}")["failure"] == "deadline")
        assert rollout.pull().json()["pull"]["attempt"] == pull["attempt"] + 1
        rest.close()


def test_sigterm_answers_parked_calls_and_ends(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path, lease_seconds=30).start()
    rest = Rest(server.url)
    rest.trainer("policy")
    rollouts = [rest.rollout("policy", f"r{i}") for i in range(50)]
    waits = [background(lambda rollout=rollout: rollout.pull(wait=30)) for rollout in rollouts]  # type: ignore[misc]
    until(lambda: rest.gauge("weightcast_parked_requests") == 50)
    ready = server.database.with_name("server.url")
    assert ready.exists()
    started = time.monotonic()
    assert server.stop() == 0
    seconds = time.monotonic() - started
    answers = [wait.result(1) for wait in waits]
    assert {(answer.status_code, answer.json()["code"]) for answer in answers} == {(503, "server_draining")}
    assert {answer.headers["retry-after"] for answer in answers} == {"1"}
    assert seconds < 2
    assert not ready.exists()
    rest.close()


def test_a_client_that_hangs_up_frees_its_waiter(rest: Rest) -> None:
    rest.trainer("policy")
    revision = rest.get("/v1/models/policy/target")["revision"]
    url = rest.client.base_url
    with socket.create_connection((url.host, url.port or 80)) as connection:
        path = f"/v1/models/policy/target?rev={revision}&wait=60"
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: test\r\n\r\n".encode())
        until(lambda: rest.gauge("weightcast_parked_requests") == 1)
    until(lambda: rest.gauge("weightcast_parked_requests") == 0)


def test_waiters_are_bounded(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, max_waiters=1) as server:
        rest = Rest(server.url)
        trainer = rest.trainer("policy")
        first, second = rest.rollout("policy", "a"), rest.rollout("policy", "b")
        parked = background(lambda: first.pull(wait=20))
        until(lambda: rest.gauge("weightcast_parked_requests") == 1)
        refused = second.pull(wait=20)
        assert (refused.status_code, refused.json()["code"]) == (503, "too_many_waiters")
        number = trainer.release(1)
        assert parked.result(5).json()["pull"]["version"] == number
        assert second.pull(wait=20).status_code == 200, "an answer that is there needs no place"
        rest.close()


def test_what_was_acknowledged_survives_kill_9(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path, lease_seconds=1.0).start()
    rest = Rest(server.url)
    trainer = rest.trainer("policy")
    rollout = rest.rollout("policy")
    numbers = [trainer.release(step) for step in range(3)]
    assignment = rollout.pull().json()
    rollout.apply(assignment)
    kept = ("/v1/models", "/v1/models/policy/versions", "/v1/models/policy/pulls", "/v1/models/policy/replicas")
    before = [rest.get(path) for path in kept]
    server.kill()
    time.sleep(1.2)
    server.start()
    assert states(rest) == {trainer.worker_id: "live", rollout.worker_id: "live"}, "leases start anew"
    assert [rest.get(path) for path in kept] == before
    assert trainer.heartbeat().status_code == 200
    assert trainer.release(9) == max(numbers) + 1
    assert rollout.pull(have=assignment["pull"]["version"]).json()["pull"]["version"] == max(numbers) + 1
    rest.close()
    server.stop()


def test_a_deleted_database_is_a_fresh_start(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path, lease_seconds=30).start()
    rest = Rest(server.url)
    trainer = rest.trainer("policy")
    highest = trainer.release(1)
    server.kill()
    for path in tmp_path.glob("weightcast.db*"):
        path.unlink()
    server.start()
    for answer in (trainer.heartbeat(), trainer.open(2)):
        assert (answer.status_code, answer.json()["code"]) == (404, "unknown_worker")
    registered_again(trainer, highest)
    rest.close()
    server.stop()


def registered_again(trainer: Member, highest: int) -> None:
    epoch = trainer.epoch
    assert trainer.register(previous_epoch=epoch, highest_version=highest).status_code == 201
    assert trainer.epoch > epoch
    trainer.put_layout().raise_for_status()
    assert trainer.release(2) > highest


def test_a_database_deleted_under_the_server_is_noticed(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, lease_seconds=30) as server:
        rest = Rest(server.url)
        trainer = rest.trainer("policy")
        highest = trainer.release(1)
        revision = rest.get("/v1/models/policy/target")["revision"]
        parked = background(lambda: rest.send("GET", "/v1/models/policy/target", params={"rev": revision, "wait": 30}))
        for path in tmp_path.glob("weightcast.db*"):
            if not path.name.endswith(".lock"):
                path.unlink()

        def forgotten() -> bool:
            rest.send("GET", "/readyz")
            return trainer.heartbeat().status_code == 404

        until(forgotten)
        assert parked.result(5).json()["code"] == "unknown_model"
        registered_again(trainer, highest)
        rest.close()


def test_one_server_per_database(server: ServerProcess, tmp_path: Path) -> None:
    second = subprocess.run(
        [sys.executable, "-m", "weightcast_server"],
        env={**server.environment(), "WEIGHTCAST_PORT": "0", "WEIGHTCAST_READY_FILE": str(tmp_path / "second")},
        capture_output=True,
        timeout=20,
        check=False,
    )
    assert second.returncode == 1
    assert b"Traceback" not in second.stderr
    (line,) = second.stderr.decode().splitlines()
    assert json.loads(line)["event"] == "cannot use the database"
    assert httpx.get(server.url + "/readyz", trust_env=False).status_code == 200


def test_a_taken_port_is_named(server: ServerProcess, tmp_path: Path) -> None:
    port = server.url.rsplit(":", 1)[1]
    second = subprocess.run(
        [sys.executable, "-m", "weightcast_server"],
        env={**server.environment(), "WEIGHTCAST_PORT": port, "WEIGHTCAST_DATABASE": str(tmp_path / "second.db")},
        capture_output=True,
        timeout=20,
        check=False,
    )
    assert second.returncode == 1
    assert json.loads(second.stderr)["event"] == "cannot listen"
    assert server.database.with_name("server.url").exists(), "the first server's ready file is not touched"


def test_the_parts_of_the_process(server: ServerProcess, rest: Rest) -> None:
    process = psutil.Process(server.pid)
    assert process.rlimit(psutil.RLIMIT_NOFILE)[0] == process.rlimit(psutil.RLIMIT_NOFILE)[1]
    rest.trainer("policy").heartbeat().raise_for_status()
    before = process.cpu_times()
    time.sleep(1.0)
    after = process.cpu_times()
    assert after.user + after.system - before.user - before.system < 0.1, "an idle server does nothing"
    for line in Path(server.log).read_text().splitlines():
        assert json.loads(line)["event"]
