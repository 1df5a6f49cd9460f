"""A process that is a trainer or a rollout and does what it is told: one JSON command per line, one answer each.

It can be one after the other many times (``start``, ``reset``), because importing torch takes seconds. ``begin`` runs a
command in a thread, so that others are answered while a fetch is held in its middle; ``finish`` brings its result.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from support.child_hooks import restore
from support.child_rollout import RolloutChild
from support.child_trainer import TrainerChild
from support.child_usage import spin, usage
from weightcast.errors import WeightcastError
from weightcast.settings import WorkerSettings


class Child:
    """What the process is now, and the command that runs beside."""

    def __init__(self) -> None:
        self._part: TrainerChild | RolloutChild | None = None
        self._answer: dict[str, Any] | None = None
        self._thread: threading.Thread | None = None

    def run(self, command: str, **arguments: Any) -> Any:
        """Run a command of this process or of its trainer or rollout."""
        if command == "identity":
            return self._part.identity if self._part is not None else None
        own: dict[str, Callable[..., Any]] = {
            "start": self._start,
            "begin": self._begin,
            "finish": self._finish,
            "reset": self.reset,
            "spin": spin,
            "usage": usage,
        }
        return own[command](**arguments) if command in own else getattr(self._part, command)(**arguments)

    def reset(self) -> None:
        """Close, and forget everything that was changed in the library."""
        part, self._part = self._part, None
        if part is not None:
            part.close()
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join(5)
            assert not thread.is_alive(), "a command still runs"
        restore()
        gc.collect()

    def _start(self, role: str, url: str, call_seconds: float = 10.0, **options: Any) -> None:
        self.reset()
        settings = WorkerSettings(server_url=url, call_timeout_seconds=call_seconds, log_level="warning")
        self._part = (TrainerChild if role == "trainer" else RolloutChild)(settings, **options)

    def _begin(self, inner: dict[str, Any]) -> None:
        assert self._thread is None, "another command runs"
        self._thread = threading.Thread(target=self._run_inner, args=(inner,), daemon=True)
        self._thread.start()

    def _run_inner(self, inner: dict[str, Any]) -> None:
        self._answer = answer(self, inner)

    def _finish(self, timeout: float) -> Any:
        assert self._thread is not None, "no command runs"
        self._thread.join(timeout)
        if self._thread.is_alive():
            raise TimeoutError("the command still runs")
        self._thread = None
        return self._answer


def answer(child: Child, request: dict[str, Any]) -> dict[str, Any]:
    """Run one request."""
    try:
        return {"result": child.run(**request)}
    except WeightcastError as error:
        code = next((found for name in ("code", "failure", "reason") if (found := getattr(error, name, None))), "")
        differences = list(getattr(error, "differences", []))
        return _error(error, str(error)) | {"code": str(code), "differences": differences}
    except Exception as error:
        return _error(error, repr(error))


def _error(error: Exception, message: str) -> dict[str, Any]:
    return {"error": type(error).__name__, "message": message, "code": "", "differences": []}


def _requests() -> Iterator[dict[str, Any]]:
    for line in sys.stdin:
        yield json.loads(line)


def main() -> None:
    """Answer until the end of input."""
    torch.set_num_threads(1)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever libraries print goes to stderr
    child = Child()
    for request in _requests():
        answers.write(json.dumps(answer(child, request)) + "\n")
        answers.flush()
    child.reset()


if __name__ == "__main__":
    main()
