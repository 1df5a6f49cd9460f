"""Drives trainer and rollout processes (see ``worker_child``) from a test."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Self

_ROOT = Path(__file__).parents[2]
TIMEOUT = 60.0


class ChildError(Exception):
    """The command raised in the child."""

    def __init__(self, error: str, message: str, code: str) -> None:
        super().__init__(f"{error}: {message}")
        self.error, self.message, self.code = error, message, code


class WorkerProcess:
    """One trainer or rollout process. ``call`` sends a command and waits; ``send`` and ``receive`` do it in two steps."""

    def __init__(self, kind: str, url: str, *, env: dict[str, str] | None = None, mib: float = 0.25, **options: Any) -> None:
        paths = [str(_ROOT / root) for root in ("app", "workers", "tests")]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("WEIGHTCAST_")}
        environment |= {
            "PYTHONPATH": os.pathsep.join(paths),
            "WEIGHTCAST_SERVER_URL": url,
            "WEIGHTCAST_CALL_TIMEOUT_SECONDS": "10",
            "WEIGHTCAST_LOG_LEVEL": "warning",
            **(env or {}),
        }
        self._process = subprocess.Popen(
            [sys.executable, "-m", "support.worker_child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            bufsize=0,
        )
        self._buffer = b""
        self._write({"kind": kind, "mib": mib, **options})
        self._started = False

    def ready(self, timeout: float = TIMEOUT) -> Self:
        """Wait until it has registered."""
        if not self._started:
            self.receive(timeout)
            self._started = True
        return self

    def call(self, command: str, *, timeout_: float = TIMEOUT, **arguments: Any) -> Any:
        """Run a command; its result, or ChildError."""
        self.ready()
        self.send(command, **arguments)
        return self.receive(timeout_)

    def send(self, command: str, **arguments: Any) -> None:
        """Start a command."""
        self.ready()
        self._write({"command": command, **arguments})

    def receive(self, timeout: float = TIMEOUT) -> Any:
        """The result of the command that was started."""
        answer = json.loads(self._read_line(timeout))
        if "error" in answer:
            raise ChildError(answer["error"], answer["message"], answer["code"])
        return answer["result"]

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether it lives."""
        return self._process.poll() is None

    def signal(self, number: signal.Signals) -> None:
        """Send a signal."""
        self._process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL."""
        self._process.kill()
        self._process.wait(10)
        self._close_pipes()

    def close(self, timeout: float = 20.0) -> int:
        """End of input: it leaves and exits; returns its exit code."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            code = self._process.wait(timeout)
        finally:
            if self._process.poll() is None:
                self._process.kill()
                self._process.wait(10)
            self._close_pipes()
        return code

    def _close_pipes(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None and not pipe.closed:
                pipe.close()

    def _write(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(message).encode() + b"\n")

    def _read_line(self, timeout: float) -> bytes:
        assert self._process.stdout is not None
        ends = time.monotonic() + timeout
        while b"\n" not in self._buffer:
            remaining = ends - time.monotonic()
            if remaining <= 0 or not select.select([self._process.stdout], [], [], remaining)[0]:
                raise TimeoutError(f"the child did not answer in {timeout:g} s")
            data = self._process.stdout.read(65536)
            if not data:
                raise EOFError(f"the child ended with {self._process.wait(5)}")
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line


class Fleet:
    """Starts workers of one server and ends them all."""

    def __init__(self, url: str, stack: ExitStack) -> None:
        self.url = url
        self._stack = stack

    def trainer(self, **options: Any) -> WorkerProcess:
        """Start a trainer; ``run``, ``rank``, ``world_size``, ``mib``, ``env`` …"""
        return self._start("trainer", {"run": "run-1", **options})

    def rollout(self, **options: Any) -> WorkerProcess:
        """Start a rollout; ``replica``, ``rank``, ``world_size``, ``mib``, ``env`` …"""
        return self._start("rollout", {"replica": "r0", **options})

    def _start(self, kind: str, options: dict[str, Any]) -> WorkerProcess:
        worker = WorkerProcess(kind, self.url, **options)
        self._stack.callback(_end, worker)
        return worker


def _end(worker: WorkerProcess) -> None:
    if worker.running:
        worker.signal(signal.SIGCONT)
        worker.kill()


@contextmanager
def fleet(url: str) -> Iterator[Fleet]:
    """A fleet that is gone when the block ends."""
    with ExitStack() as stack:
        yield Fleet(url, stack)
