"""Trainer and rollout processes (see ``worker_child``) in the hands of a test."""

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
from typing import Any, Self

_ROOT = Path(__file__).parents[2]
TIMEOUT = 60.0


class ChildError(Exception):
    """The command raised in the child."""

    def __init__(self, answer: dict[str, Any]) -> None:
        super().__init__(f"{answer['error']}: {answer['message']}")
        self.error: str = answer["error"]
        self.message: str = answer["message"]
        self.code: str = answer["code"]
        self.differences: list[str] = answer["differences"]


class WorkerProcess:
    """One process. ``call`` sends a command and waits for its answer; ``begin`` and ``finish`` do it in two steps."""

    def __init__(self, env: dict[str, str] | None = None) -> None:
        self.env = dict(env or {})
        paths = [str(_ROOT / root) for root in ("app", "workers", "tests")]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("WEIGHTCAST_")}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "support.worker_child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**environment, "PYTHONPATH": os.pathsep.join(paths), **self.env},
            bufsize=0,
        )
        self._buffer = b""
        self._starting = False
        self._owed = 0

    def start(self, role: str, url: str, *, mib: float = 0.25, **options: Any) -> Self:
        """Become a trainer or a rollout; returns at once, `ready` waits for it."""
        self._write({"command": "start", "role": role, "url": url, "mib": mib, **options})
        self._starting = True
        return self

    def ready(self, timeout: float = TIMEOUT) -> Self:
        """Wait until it has registered."""
        if self._starting:
            self._starting = False
            self.receive(timeout)
        return self

    def call(self, command: str, *, timeout_: float = TIMEOUT, **arguments: Any) -> Any:
        """Run a command; its result, or ChildError."""
        self.send(command, **arguments)
        return self.receive(timeout_)

    def send(self, command: str, **arguments: Any) -> None:
        """Ask for a command; `receive` brings its answer, and until then no other is run."""
        self.ready()
        self._write({"command": command, **arguments})

    def begin(self, command: str, **arguments: Any) -> None:
        """Start a command; the process goes on answering others."""
        self.call("begin", inner={"command": command, **arguments})

    def finish(self, timeout: float = TIMEOUT) -> Any:
        """The result of the command that was begun, or ChildError."""
        return _result(self.call("finish", timeout=timeout, timeout_=timeout + 10))

    def receive(self, timeout: float = TIMEOUT) -> Any:
        """The answer that is owed, or ChildError."""
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
        self._owed -= 1
        return _result(json.loads(line))

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether it lives."""
        return self._process.poll() is None

    @property
    def idle(self) -> bool:
        """Whether it lives and owes no answer."""
        return self.running and not self._owed

    def stop(self) -> None:
        """SIGSTOP; returns when every thread of it stands still."""
        self._process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOWAIT)

    def cont(self) -> None:
        """SIGCONT."""
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL, and everything it held is gone."""
        self._process.kill()
        self._process.wait(10)
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()

    def _write(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(message).encode() + b"\n")
        self._owed += 1


def _result(answer: dict[str, Any]) -> Any:
    if "error" in answer:
        raise ChildError(answer)
    return answer["result"]


def until(what: str, condition: Callable[[], Any], timeout: float = 30.0) -> Any:
    """The first true answer of ``condition``; an AssertionError that says ``what`` did not come within ``timeout``."""
    ends = time.monotonic() + timeout
    while not (found := condition()):
        assert time.monotonic() < ends, f"not within {timeout:g} s: {what}; last answer {found!r}"
        time.sleep(0.03)
    return found
