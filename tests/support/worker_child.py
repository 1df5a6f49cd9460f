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
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from support.child_hooks import Gate, patched_requests, restore
from support.child_usage import spin, usage
from support.weights import Changes, blank_weights, change, make_weights, part_of, sha256
from weightcast.errors import WeightcastError
from weightcast.rollout import Rollout
from weightcast.settings import WorkerSettings
from weightcast.trainer import Trainer
from weightcast.update import Hooks, Update


class TrainerChild:
    """Commands of a trainer. ``part`` publishes only every n-th tensor, ``changes`` other ones than rollouts have."""

    def __init__(
        self, url: str, mib: float, part: list[int] | None = None, changes: Changes | None = None, **options: Any
    ) -> None:
        self._mib, self._part, self._changes = mib, part, changes
        self.weights = self._make(0)
        self.trainer = Trainer(lambda: self.weights, settings=_settings(url), **options)
        self._published: dict[int, Any] = {}

    def publish(self, step: int, seed: int, corrupt: bool = False) -> dict[str, Any]:
        self.weights = self._make(seed)
        published = self.trainer.publish(step=step)
        self._published[published.version] = published
        if corrupt:
            self.corrupt()
        return {
            "version": published.version,
            "step": published.step,
            "sha256": sha256(self.weights),
            "seconds": published.seconds,
            "copy_seconds": published.copy_seconds,
        }

    def corrupt(self) -> None:
        """Flip one bit of every slot behind the library's back."""
        for slot in self.trainer._source._slots:
            slot.bytes[len(slot.bytes) // 2] ^= 1

    def wait_ready(self, version: int, timeout: float = 30.0) -> str:
        return str(self._published[version].wait_ready(timeout).state)

    def wait_applied(self, version: int, replicas: int | None = None, timeout: float = 30.0) -> list[str]:
        return list(self._published[version].wait_applied(replicas, timeout).applied)

    def wait_drained(self, version: int, timeout: float = 10.0) -> bool:
        return bool(self._published[version].wait_drained(timeout))

    def abort(self, version: int) -> str:
        return str(self._published[version].abort("told to").state)

    def state(self) -> dict[str, Any]:
        source = self.trainer._source
        return {
            "fenced": self.trainer._session.fenced,
            "metadata": len(source._serve.call(lambda agent: agent.metadata(), 10, "metadata")),
            "slots": [source.held(slot).version for slot in range(source.slots)],
            "valid": [source.held(slot).valid for slot in range(source.slots)],
        }

    def close(self) -> None:
        self.trainer.close()

    @property
    def identity(self) -> list[Any]:
        return list(self.trainer._session.identity)

    def _make(self, seed: int) -> dict[str, torch.Tensor]:
        return change(part_of(make_weights(seed, self._mib), self._part), self._changes)


class RolloutChild:
    """Commands of a rollout. ``kind`` is how its tensors lie in memory, see `blank_weights`."""

    def __init__(self, url: str, mib: float, kind: str = "plain", request_nbytes: int = 0, **options: Any) -> None:
        self.weights = blank_weights(mib, kind)
        self.updates: list[Update] = []
        self.served: list[tuple[int, str]] = []
        self.fetching, self.loading = Gate(), Gate(closed=False)
        self._fail_load = False
        self._stop = threading.Event()
        self._follower: threading.Thread | None = None
        patched_requests(self.fetching, request_nbytes)
        hooks = Hooks(after_load=self._after_load)
        self.rollout = Rollout(lambda: self.weights, settings=_settings(url), hooks=hooks, **options)

    def _after_load(self) -> None:
        self.loading.arrive(self._stop.is_set)
        if self._fail_load:
            raise RuntimeError("post-load processing failed")

    def fail_load(self, fail: bool) -> None:
        self._fail_load = fail

    def hold_load(self) -> None:
        """Let the next apply wait after every byte is copied, until `release`."""
        self.loading.close(1)

    def hold(self, after: int = 1) -> None:
        """Let fetches wait when this many more READs have arrived, until `release`."""
        self.fetching.close(after)

    def held(self) -> bool:
        """Whether a fetch or an apply waits now."""
        return self.fetching.waiting or self.loading.waiting

    def release(self) -> None:
        self.fetching.open()
        self.loading.open()

    def stage(self, timeout: float = 20.0) -> dict[str, Any] | None:
        update = self.rollout.stage(timeout)
        if update is None:
            return None
        self.updates.append(update)
        return {
            "version": update.version,
            "step": update.step,
            "transport": update.transport,
            "seconds": update.seconds,
            "nbytes": update.nbytes,
            "sources": update.sources,
        }

    def apply(self, timeout: float = 20.0, index: int = -1) -> dict[str, Any]:
        update = self.updates[index]
        update.apply(timeout)
        return {"version": self.rollout.serving_version, "pause_seconds": update.pause_seconds, **self._note(update)}

    def refit(self, timeout: float = 20.0) -> dict[str, Any] | None:
        staged = self.stage(timeout)
        return None if staged is None else staged | self.apply(timeout)

    def follow(self) -> None:
        self._follower = threading.Thread(target=self._follow, daemon=True)
        self._follower.start()

    def _follow(self) -> None:
        self.rollout.follow(self._stop, on_update=self._note)

    def _note(self, update: Update) -> dict[str, str]:
        """Keep what this rank says that it serves, and what its live weights are at that moment."""
        digest = sha256(self.weights)
        self.served.append((update.version, digest))
        return {"sha256": digest}

    def state(self) -> dict[str, Any]:
        serving = digest = None
        while True:  # a follower may be applying: what is reported belongs together
            serving, digest = self.rollout.serving_version, sha256(self.weights)
            if serving == self.rollout.serving_version:
                break
        reader = self.rollout._reader
        agent = reader._fetch.agent
        return {
            "serving": serving,
            "tainted": self.rollout.tainted,
            "sha256": digest,
            "served": self.served,
            "following": self._follower is not None and self._follower.is_alive(),
            "fenced": self.rollout._session.fenced,
            "quarantined": reader.quarantined_nbytes,
            "agent": agent.name if agent is not None else "",
        }

    def nixl(self) -> dict[str, int]:
        """What the fetching agent holds."""
        workspace = self.rollout._reader._workspace
        return self.rollout._reader.call(
            lambda agent: {
                "peers": len(workspace.peers),
                "handles": len(agent._handles),
                "metadata": len(agent.metadata()),
            },
            10,
            "looking at the agent",
        )

    def change(self, changes: Changes) -> None:
        """Make the live tensors others than those published."""
        self.weights = change(self.weights, changes)

    def reallocate(self) -> None:
        """Move every weight to a new address, and leave garbage at the old one."""
        old = self.weights
        self.weights = {name: tensor.clone() for name, tensor in old.items()}
        for tensor in old.values():
            tensor.zero_()

    def close(self) -> None:
        self._stop.set()
        self.release()
        self.rollout.close()
        if self._follower is not None:
            self._follower.join(10)

    @property
    def identity(self) -> list[Any]:
        return list(self.rollout._session.identity)


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
        restore()
        gc.collect()

    def _start(self, role: str, **options: Any) -> None:
        self.reset()
        self._part = (TrainerChild if role == "trainer" else RolloutChild)(**options)

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
        code = getattr(error, "code", getattr(error, "reason", getattr(error, "failure", "")))
        differences = list(getattr(error, "differences", []))
        return _error(error, str(error)) | {"code": str(code or ""), "differences": differences}
    except Exception as error:
        return _error(error, repr(error))


def _error(error: Exception, message: str) -> dict[str, Any]:
    return {"error": type(error).__name__, "message": message, "code": "", "differences": []}


def _settings(url: str) -> WorkerSettings:
    return WorkerSettings(server_url=url, call_timeout_seconds=10, log_level="warning")


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
        started = time.monotonic()
        said = answer(child, request)
        answers.write(json.dumps(said | {"took": time.monotonic() - started}) + "\n")
        answers.flush()
    child.reset()


if __name__ == "__main__":
    main()
