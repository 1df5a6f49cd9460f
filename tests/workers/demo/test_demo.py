"""The demo as a user starts it, small: server, trainer and rollout in real processes, weights through real NIXL."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

_COMMAND = "import typer; from weightcast.demo.cli import demo; typer.run(demo)"


@contextmanager
def running(tmp_path: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", _COMMAND, "--json", "--trainers", "1", "--rollouts", "1", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def children_of(process: subprocess.Popen[str]) -> list[psutil.Process]:
    children = psutil.Process(process.pid).children(recursive=True)
    assert len(children) == 3
    return children


@pytest.mark.timeout(180)
def test_a_short_run_is_verified_and_leaves_nothing(tmp_path: Path) -> None:
    with running(tmp_path, "--versions", "2") as process:
        out, error = process.communicate(timeout=150)
    assert process.returncode == 0, error
    result = json.loads(out.splitlines()[-1])
    assert result["verified"] is True
    assert (result["versions"], result["trainers"], result["rollouts"]) == (2, 1, 1)
    assert result["applied"] == {"rollout-0": 2}
    assert result["bytes_pulled"] > 2 * 4 * 5_000_000
    assert len(result["refit_seconds"]) == len(result["pause_seconds"]) == 2
    assert result["loss_last"] < result["loss_first"] - 1
    assert " applied replica=" in error
    assert list(tmp_path.iterdir()) == []


@pytest.mark.timeout(180)
def test_an_interrupted_run_leaves_nothing(tmp_path: Path) -> None:
    with running(tmp_path, "--versions", "50") as process:
        assert process.stderr is not None
        for line in process.stderr:
            if " applied " in line:
                break
        children = children_of(process)
        process.send_signal(signal.SIGINT)
        out, error = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGINT, error
    result = json.loads(out)
    assert result["verified"] is False
    assert result["error"] == "interrupted by SIGINT"
    assert not any(child.is_running() for child in children)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.timeout(180)
def test_a_killed_run_leaves_nothing(tmp_path: Path) -> None:
    with running(tmp_path, "--versions", "50") as process:
        assert process.stderr is not None
        assert "process=server" in process.stderr.readline()
        children = children_of(process)
        process.kill()
        process.wait()
    _gone, alive = psutil.wait_procs(children, timeout=20)
    assert [child for child in alive if child.status() != psutil.STATUS_ZOMBIE] == []
    assert list(tmp_path.iterdir()) == []
