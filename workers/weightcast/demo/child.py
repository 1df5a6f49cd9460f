"""The frame of every process that the demo starts: settings in, reports out, and never outliving the parent."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from io import FileIO
from typing import TypeVar

import msgspec

from weightcast.demo.reports import Failed, Message, Reporter

_Settings = TypeVar("_Settings", bound=Message)

_GRACE_SECONDS = 6.0
_PR_SET_PDEATHSIG = 1


class Lifeline:
    """The parent's end of this process's standard input.

    A line says "begin"; its end, also when the parent was killed, says "stop". Whoever has not stopped by himself some
    seconds later is ended.
    """

    def __init__(self, parent: FileIO, on_stop: Callable[[], None] | None = None) -> None:
        self.begin = threading.Event()
        self.stop = threading.Event()
        self._parent = parent
        self._on_stop = on_stop
        self._done = threading.Event()
        threading.Thread(target=self._watch, name="lifeline", daemon=True).start()

    def _watch(self) -> None:
        while self._parent.readline():
            self.begin.set()
        self.stop.set()
        self.begin.set()
        if self._on_stop is not None:
            self._on_stop()
        if not self._done.wait(_GRACE_SECONDS):
            os._exit(70)

    def release(self) -> None:
        """The process is about to end by itself."""
        self._done.set()


def _open_input() -> FileIO:
    # Unbuffered: a thread that waits in the lock of `sys.stdin` makes Python abort at its exit.
    return FileIO(sys.stdin.fileno(), closefd=False)


def run_child(
    settings_type: type[_Settings],
    work: Callable[[_Settings, Reporter, Lifeline], None],
    *,
    on_stop: Callable[[], None] | None = None,
    outlives: bool = False,
) -> int:
    """Read the settings, do the work, report what goes wrong; returns the exit status.

    ``outlives`` is for the one child that, when the parent is killed, stays to clean up after it.
    """
    if not outlives:
        # The lifeline alone is not enough: its thread cannot run while some library holds the interpreter's lock.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # Native libraries print where they like; reports keep the original standard output for themselves.
    reporter = Reporter(os.dup(1))
    os.dup2(2, 1)
    parent = _open_input()
    line = parent.readline()
    if not line:
        return 0
    settings = msgspec.json.decode(line, type=settings_type)
    lifeline = Lifeline(parent, on_stop)
    try:
        work(settings, reporter, lifeline)
    except Exception as error:
        if lifeline.stop.is_set():
            return 0  # Neighbours that stop at the same time break connections: not worth a report.
        traceback.print_exc()
        reporter.send(Failed(message=f"{type(error).__name__}: {error}"))
        return 1
    finally:
        lifeline.release()
    return 0
