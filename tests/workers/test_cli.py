"""The command line against the real server: tables for people, JSON for programs, exit codes for scripts."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.puppets import PuppetRollout, PuppetTrainer
from support.server import ServerProcess
from weightcast.cli.main import main
from weightcast.client import ControlPlane

COMMAND = [sys.executable, "-m", "weightcast.cli.main"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One model with a version applied by r0, a version being read by r1, and one that was aborted."""
    with ServerProcess(tmp_path_factory.mktemp("server"), lease_seconds=60) as running:
        with ControlPlane(running.url) as control:
            trainer, rollout = PuppetTrainer(control), PuppetRollout(control)
            trainer.publish(step=10)
            rollout.pull()
            trainer.publish(step=20)
            slow = PuppetRollout(control, "r1").ask()
            assert slow is not None
            control.abort_version(trainer.me, "policy", trainer.open(step=30).version, "loss was [nan]")
        yield running


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("WEIGHTCAST_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("TERM", "xterm")


class Cli:
    """Runs a command in this process."""

    def __init__(
        self, server: ServerProcess, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        self._server = server
        self._monkeypatch = monkeypatch
        self._capsys = capsys

    def __call__(self, *arguments: str, code: int = 0, server: str | None = None) -> tuple[str, str]:
        if server is None:
            server = self._server.url
        argv = ["weightcast", *arguments, *(["--server", server] if server else [])]
        self._monkeypatch.setattr("sys.argv", argv)
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = self._capsys.readouterr()
        assert ended.value.code == code, err
        return out, err

    def document(self, *arguments: str) -> dict[str, Any]:
        out, err = self(*arguments, "--json")
        assert err == ""
        document: dict[str, Any] = json.loads(out)
        return document


@pytest.fixture
def cli(server: ServerProcess, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    return Cli(server, monkeypatch, capsys)


def test_status(cli: Cli, server: ServerProcess) -> None:
    document = cli.document("status")
    assert document["server"] == server.url
    (model,) = document["models"]
    assert model["target"]["version"] == 2
    assert model["newest"]["failure"] == "aborted"
    assert model["workers"]["rollout"] == {"live": 2, "lost": 0, "left": 0}
    assert {replica["replica"]: replica["serving_version"] for replica in model["replicas"]} == {"r0": 1, "r1": None}
    out, _ = cli("status", "--model", "policy")
    assert "target version 2 (step 20" in out
    assert "newest version 3 is failed: aborted loss was [nan]" in out


def test_versions(cli: Cli) -> None:
    assert [version["version"] for version in cli.document("versions")["versions"]] == [3, 2, 1]
    assert [version["version"] for version in cli.document("versions", "--state", "ready", "-n", "1")["versions"]] == [
        2
    ]
    out, _ = cli("versions")
    assert "aborted loss was [nan]" in out
    assert "4.0 KiB" in out


def test_workers(cli: Cli) -> None:
    found = [worker["worker_id"] for worker in cli.document("workers", "--role", "rollout")["workers"]]
    assert found == ["policy:rollout:r0:0", "policy:rollout:r1:0"]
    out, _ = cli("workers")
    assert "policy:trainer:0" in out


def test_pulls(cli: Cli) -> None:
    assert [pull["state"] for pull in cli.document("pulls")["pulls"]] == ["assigned", "applied"]
    assert [pull["state"] for pull in cli.document("pulls", "--state", "applied")["pulls"]] == ["applied"]
    out, _ = cli("pulls")
    assert "0 B of 4.0 KiB" in out
    assert "20 ms" in out


def test_errors_go_to_stderr_with_code_1(cli: Cli) -> None:
    out, err = cli("versions", "--model", "nowhere", "--json", code=1)
    assert out == ""
    assert err.startswith("error: GET /v1/models/nowhere/versions:")
    assert err.count("\n") == 1


def test_wrong_usage_is_code_2(cli: Cli) -> None:
    assert "No such option" in cli("status", "--loud", code=2)[1]
    assert "server_url" in cli("status", server="nonsense", code=2)[1]
    assert "No such command" in cli("dance", server="", code=2)[1]
    cli("pulls", "--limit", "0", code=2)
    cli("status", "--watch", "--interval", "nan", code=2)


def test_no_server_is_told(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weightcast.cli.options.CALL_SECONDS", 0.3)
    out, err = cli("status", "--json", server="http://127.0.0.1:1", code=1)
    assert out == ""
    assert "127.0.0.1:1 cannot be reached" in err


def test_server_and_token_come_from_the_environment(
    cli: Cli, server: ServerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEIGHTCAST_SERVER_URL", server.url)
    monkeypatch.setenv("WEIGHTCAST_TOKEN", "any")
    assert "policy" in cli("status", server="")[0]


def test_version_and_help(cli: Cli) -> None:
    assert cli("--version", server="")[0].startswith("weightcast 0.")
    out, _ = cli("--help", server="")
    assert all(command in out for command in ("serve", "status", "versions", "workers", "pulls"))


def test_serving_needs_the_server(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weightcast.serving.entry_points", lambda **_: ())
    assert "pip install 'weightcast[server]'" in cli("serve", server="", code=1)[1]


def test_serve_serves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ready = tmp_path / "url"
    monkeypatch.setenv("WEIGHTCAST_READY_FILE", str(ready))
    command = [*COMMAND, "serve", "--port", "0", "--database", str(tmp_path / "w.db")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        deadline = time.monotonic() + 20
        while not ready.exists():
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.02)
        with ControlPlane(ready.read_text().strip()) as control:
            assert control.models().items == []
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=10)
        assert process.returncode == 0


def test_a_watched_status_is_a_json_line_per_change(server: ServerProcess) -> None:
    command = [*COMMAND, "status", "--watch", "--json", "--interval", "0.1", "--server", server.url]
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process,
        ControlPlane(server.url) as control,
    ):
        assert process.stdout is not None
        first = json.loads(process.stdout.readline())
        assert [model["model"] for model in first["models"]] == ["policy"]
        PuppetTrainer(control, "watched")
        second = json.loads(process.stdout.readline())
        assert [model["model"] for model in second["models"]] == ["policy", "watched"]
        time.sleep(0.4)
        process.send_signal(signal.SIGINT)
        rest, errors = process.communicate(timeout=10)
        assert (rest, errors, process.returncode) == (b"", b"", 0)


@pytest.mark.parametrize("as_json", [True, False])
def test_watched_pulls_are_lines_in_a_pipe(server: ServerProcess, as_json: bool) -> None:
    model = f"piped-{as_json}"
    command = [*COMMAND, "pulls", "--watch", "--interval", "0.1", "--model", model, "--server", server.url]
    with ControlPlane(server.url) as control:
        trainer, rollout = PuppetTrainer(control, model), PuppetRollout(control, "r7", model)
        trainer.publish(step=1)
        rollout.pull()
        command += ["--json"] if as_json else []
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            lines = [process.stdout.readline()]
            trainer.publish(step=2)
            assert rollout.ask(wait=5) is not None
            lines.append(process.stdout.readline())
            process.send_signal(signal.SIGINT)
            rest, errors = process.communicate(timeout=10)
            assert (rest, errors, process.returncode) == ("", "", 0)
    states = [json.loads(line)["state"] if as_json else line.split("  ")[4] for line in lines]
    assert states == ["applied", "assigned"]


def on_a_terminal(arguments: list[str], until: str, meanwhile: Any = None) -> str:
    """Run a command on a pseudo terminal until a text has appeared, then press Ctrl-C; what it has shown."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen([*COMMAND, *arguments], stdout=theirs, stderr=theirs, stdin=theirs)
    os.close(theirs)
    shown = b""
    deadline = time.monotonic() + 15
    try:
        while until.encode() not in shown:
            assert time.monotonic() < deadline, shown.decode(errors="replace")
            if select.select([ours], [], [], 0.1)[0]:
                shown += os.read(ours, 65_536)
            if meanwhile is not None and shown:
                meanwhile()
                meanwhile = None
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 0
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        os.close(ours)
    return shown.decode(errors="replace")


def test_a_watched_status_is_live_on_a_terminal(server: ServerProcess) -> None:
    on_a_terminal(["status", "--watch", "--interval", "0.2", "--server", server.url], until="servable")


def test_watched_pulls_are_bars_on_a_terminal(server: ServerProcess) -> None:
    with ControlPlane(server.url) as control:
        trainer, rollout = PuppetTrainer(control, "bars"), PuppetRollout(control, "r7", "bars")

        def refit() -> None:
            trainer.publish(step=1)
            assignment = rollout.ask()
            assert assignment is not None
            rollout.tell(assignment.pull.pull_id, "fetching", bytes_done=2048)
            time.sleep(0.5)
            rollout.tell(assignment.pull.pull_id, "staged", fetch_seconds=0.1)
            rollout.tell(assignment.pull.pull_id, "applying")
            rollout.tell(assignment.pull.pull_id, "applied")

        arguments = ["pulls", "--watch", "--interval", "0.1", "--server", server.url]
        shown = on_a_terminal(arguments, until="bars:rollout:r7:0  applied", meanwhile=refit)
    assert "2.0/4.1 kB" in shown or "2.0/4.0 KiB" in shown
