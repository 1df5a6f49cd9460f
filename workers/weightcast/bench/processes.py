"""The processes of a benchmark: a control plane and a trainer beside the measuring process, which is the rollout."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

from weightcast.errors import WeightcastError
from weightcast.serving import load_server

_START_SECONDS: Final = 60.0
_ANSWER_SECONDS: Final = 300.0
_spawn = multiprocessing.get_context("spawn")


class BenchmarkError(WeightcastError):
    """A benchmark could not be run, or what it moved was wrong: there is no figure."""


class Peer:
    """A child process that answers requests, one at a time."""

    def __init__(self, target: Callable[..., None], *arguments: Any) -> None:
        self._connection, other = _spawn.Pipe()
        self._process = _spawn.Process(target=target, args=(other, *arguments), daemon=True)
        self._process.start()
        other.close()

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid or 0

    def send(self, request: Any) -> None:
        """Send a request; its answer is to be received later."""
        self._connection.send(request)

    def ask(self, request: Any, timeout: float = _ANSWER_SECONDS) -> Any:
        """Send a request and wait for its answer."""
        self.send(request)
        return self.receive(timeout)

    def receive(self, timeout: float = _ANSWER_SECONDS) -> Any:
        """Wait for an answer."""
        try:
            if self._connection.poll(timeout):
                return self._connection.recv()
        except EOFError:
            raise BenchmarkError(f"a benchmark process ended: exit code {self._process.exitcode}") from None
        raise BenchmarkError(f"a benchmark process did not answer within {timeout:g} s")

    def close(self) -> None:
        """End it: politely, then not."""
        self._connection.close()
        self._process.join(10)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()


@contextmanager
def control_plane() -> Iterator[str]:
    """A server on a free port of the loopback with a database that is thrown away; yields its URL."""
    with tempfile.TemporaryDirectory(prefix="weightcast-bench-") as directory:
        ready = Path(directory) / "server.url"
        process = _spawn.Process(target=_serve, args=(directory, str(ready)), daemon=True)
        process.start()
        try:
            ends = time.monotonic() + _START_SECONDS
            while not (ready.exists() and ready.read_text().strip()):
                if time.monotonic() > ends or not process.is_alive():
                    raise BenchmarkError("the server did not start: is the server extra installed?")
                time.sleep(0.02)
            yield ready.read_text().strip()
        finally:
            process.terminate()
            process.join(10)
            if process.is_alive():
                process.kill()
                process.join()


def requests(connection: Connection) -> Iterator[Any]:
    """What the measuring process asks for, until it hangs up."""
    while True:
        try:
            yield connection.recv()
        except (EOFError, ConnectionResetError):
            return


def _serve(directory: str, ready: str) -> None:
    os.chdir(directory)
    load_server("serve")(
        host="127.0.0.1",
        port=0,
        database=Path(directory) / "weightcast.db",
        ready_file=Path(ready),
        log_level="warning",
    )
