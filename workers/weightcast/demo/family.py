"""Starts the demo's processes, hears their reports, and leaves none of them behind."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType
from typing import Self

import msgspec

from weightcast.demo.reports import Message, Report, decode_report, encode_line

_STOP_SECONDS = 8.0
_LOG_TAIL = 2000


class DemoError(RuntimeError):
    """The demo cannot go on."""


@dataclass(frozen=True, slots=True)
class Heard:
    """A report, and whose it is."""

    child: str
    report: Report


@dataclass(frozen=True, slots=True)
class Ended:
    """A child will report no more."""

    child: str


@dataclass(frozen=True, slots=True)
class Interrupted:
    """Somebody wants the demo to end."""

    signal_number: int


Event = Heard | Ended | Interrupted
Events = queue.SimpleQueue[Event]


@contextmanager
def signals_as_events(events: Events) -> Iterator[None]:
    """Turn Ctrl-C and the like into an event, so that nothing is interrupted while it is half built or half gone."""

    def note(number: int, _frame: FrameType | None) -> None:
        events.put(Interrupted(number))

    if threading.current_thread() is not threading.main_thread():
        yield  # Only the main thread may set handlers, and only it is interrupted.
        return
    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Child:
    """One process: settings go to its standard input, reports come from its standard output."""

    def __init__(self, name: str, module: str, arguments: Sequence[str], directory: Path, events: Events) -> None:
        self.name = name
        self._log = directory / f"{name}.log"
        self._events = events
        # A shell's settings for some other server are none of the demo's.
        environment = {key: value for key, value in os.environ.items() if not key.startswith("WEIGHTCAST_")}
        # Libraries leave caches in the directory for temporary files (torch does): let that be one that goes.
        environment |= {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", "TMPDIR": str(directory)}
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", module, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment,
                bufsize=0,
                process_group=0,  # Ctrl-C on the terminal reaches the parent alone, which decides what it means.
            )
        threading.Thread(target=self._listen, name=f"hear-{name}", daemon=True).start()

    def _listen(self) -> None:
        assert self.process.stdout is not None  # noqa: S101 (opened as a pipe above)
        with self.process.stdout as stream:
            for line in stream:
                try:
                    self._events.put(Heard(self.name, decode_report(line)))
                except msgspec.DecodeError:
                    break
        self._events.put(Ended(self.name))

    def send(self, message: Message | None = None) -> None:
        """Send the settings, or an empty line: begin."""
        self._write(b"\n" if message is None else encode_line(message))

    def _write(self, line: bytes) -> None:
        assert self.process.stdin is not None  # noqa: S101 (opened as a pipe above)
        try:
            self.process.stdin.write(line)
        except (BrokenPipeError, ValueError):
            return  # It is gone, which `_listen` notices.

    def ask_to_stop(self) -> None:
        """Close its standard input."""
        assert self.process.stdin is not None  # noqa: S101 (opened as a pipe above)
        self.process.stdin.close()

    def wait(self, end: float) -> int:
        """Its exit status; it is killed when it has not ended at ``end`` on the monotonic clock."""
        try:
            return self.process.wait(max(0.0, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()

    def last_words(self) -> str:
        """The end of what it wrote to its log."""
        text = self._log.read_bytes()[-_LOG_TAIL:].decode("utf-8", "replace").strip()
        return f"\n--- {self.name} ---\n{text}" if text else ""


class Family:
    """All children. Leaving the ``with`` block ends them: workers first, the server last."""

    def __init__(self, directory: Path, events: Events) -> None:
        self.events = events
        self.children: dict[str, Child] = {}
        self._directory = directory

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop(list(self.children))

    def start(self, name: str, module: str, *arguments: str) -> Child:
        """Start ``python -m module``; it waits for its settings."""
        child = Child(name, module, arguments, self._directory, self.events)
        self.children[name] = child
        return child

    def stop(self, names: Sequence[str]) -> dict[str, int]:
        """End these children, those started last first, all within some seconds; returns their exit statuses."""
        workers = [self.children[name] for name in names if name != "server"]
        statuses = self._stop_together(workers)
        return statuses | self._stop_together([self.children[name] for name in names if name == "server"])

    @staticmethod
    def _stop_together(children: Sequence[Child]) -> dict[str, int]:
        for child in children:
            child.ask_to_stop()
        end = time.monotonic() + _STOP_SECONDS
        return {child.name: child.wait(end) for child in children}

    def last_words(self) -> str:
        """The ends of all logs, for an error message."""
        return "".join(child.last_words() for child in self.children.values())
