"""What the tests of worker sessions share."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from support.server import ServerProcess
from weightcast.contract.names import Role
from weightcast.contract.workers import RegisterWorker

LEASE = 1.0
ROOTS = [str(Path(__file__).parents[2] / root) for root in ("workers", "tests")]


def trainer(model: str, run: str = "run-1", **facts: Any) -> Callable[[int], RegisterWorker]:
    """A body builder for trainer rank 0."""

    def build(previous_epoch: int) -> RegisterWorker:
        return RegisterWorker(
            model=model,
            role=Role.TRAINER,
            rank=0,
            world_size=1,
            run=run,
            incarnation="0" * 32,
            previous_epoch=previous_epoch,
            **facts,
        )

    return build


def eventually(check: Callable[[], bool], timeout: float = 10.0) -> None:
    """Wait until the check holds."""
    deadline = time.monotonic() + timeout
    while not check():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.02)


class Member:
    """A worker in a process of its own (see support.member)."""

    def __init__(self, server: ServerProcess, model: str, spinners: int = 0) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "support.member", server.url, model, str(spinners)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(ROOTS)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def next(self, timeout: float = 15.0) -> dict[str, Any]:
        """The next change that it reports."""
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], timeout)
        assert ready, "the member said nothing"
        state: dict[str, Any] = json.loads(self.process.stdout.readline())
        return state

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def finish(self) -> str:
        """Let it leave; what it said since, and that it ended well."""
        out, err = self.process.communicate(timeout=20)
        assert self.process.returncode == 0, err.decode()
        return out.decode()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate(timeout=10)
