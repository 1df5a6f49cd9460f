"""A real server process on loopback with a database file of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

_START_SECONDS = 30.0
_ROOTS = [str(Path(__file__).parents[2] / root) for root in ("app", "workers")]


class ServerProcess:
    """Starts ``python -m weightcast_server``; after the first start it keeps its port and database over restarts.

    ``settings`` are fields of the server's Settings by name (``lease_seconds=0.5``), ``env`` further variables.
    """

    def __init__(self, directory: Path, *, env: Mapping[str, str] | None = None, **settings: object) -> None:
        self.database = directory / "weightcast.db"
        self.log = directory / "server.log"
        self._ready = directory / "server.url"
        self._settings: dict[str, object] = {"host": "127.0.0.1", "port": 0, "log_format": "json", **settings}
        self._env = dict(env or {})
        self._process: subprocess.Popen[bytes] | None = None
        self._url: str | None = None

    @property
    def url(self) -> str:
        """``http://127.0.0.1:<port>``."""
        assert self._url is not None, "not started"
        return self._url

    @property
    def pid(self) -> int:
        """Process id."""
        assert self._process is not None, "not started"
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the process lives."""
        return self._process is not None and self._process.poll() is None

    def start(self, **settings: object) -> Self:
        """Start, and wait until the server answers. ``settings`` change what was given before."""
        assert not self.running, "already started"
        self._settings.update(settings)
        self._ready.unlink(missing_ok=True)
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "weightcast_server"],
                env=self.environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.database.parent,
            )
        deadline = time.monotonic() + _START_SECONDS
        while not self._ready.exists():
            if self._process.poll() is not None:
                raise RuntimeError(f"the server exited with {self._process.returncode}:\n{self.tail()}")
            if time.monotonic() > deadline:
                self.kill()
                raise RuntimeError(f"the server was not ready in {_START_SECONDS:g} s:\n{self.tail()}")
            time.sleep(0.02)
        self._url = self._ready.read_text().strip()
        self._settings["port"] = int(self._url.rsplit(":", 1)[1])
        return self

    def environment(self) -> dict[str, str]:
        """Variables that the process is started with."""
        env = {name: value for name, value in os.environ.items() if not name.startswith("WEIGHTCAST_")}
        env["PYTHONPATH"] = os.pathsep.join([*_ROOTS, env.get("PYTHONPATH", "")]).rstrip(os.pathsep)
        settings = {**self._settings, "database": self.database, "ready_file": self._ready}
        env.update({f"WEIGHTCAST_{name.upper()}": str(value) for name, value in settings.items()})
        return env | self._env

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, for example SIGSTOP."""
        os.kill(self.pid, number)

    def kill(self) -> None:
        """SIGKILL, as the kernel or an impatient human would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(10)

    def stop(self, timeout: float = 10.0) -> int:
        """SIGTERM; returns the exit code. A server that does not end in time is killed, which is an error."""
        assert self._process is not None, "not started"
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(timeout)
            except subprocess.TimeoutExpired:
                self.kill()
                raise RuntimeError(f"the server did not stop in {timeout:g} s:\n{self.tail()}") from None
        return self._process.returncode

    def restart(self, **settings: object) -> Self:
        """Kill, then start again on the same port and database."""
        self.kill()
        return self.start(**settings)

    def wait(self, timeout: float = 10.0) -> int:
        """Wait for the process to end by itself; returns the exit code."""
        assert self._process is not None, "not started"
        return self._process.wait(timeout)

    def tail(self, nbytes: int = 8000) -> str:
        """The end of its log."""
        return self.log.read_bytes()[-nbytes:].decode(errors="replace") if self.log.exists() else ""

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self.running:
            # A stopped process handles no SIGTERM.
            self.signal(signal.SIGCONT)
            self.kill() if error is not None else self.stop()
