"""A trainer or rollout process that does what it is told: one JSON command per line on stdin, one answer on stdout."""

from __future__ import annotations

import json
import os
import resource
import sys
import threading
import time
from typing import Any

import torch

from support.weights import blank_weights, make_weights, sha256
from weightcast.engines import fetch as fetch_module
from weightcast.errors import WeightcastError
from weightcast.rollout import Rollout
from weightcast.settings import WorkerSettings
from weightcast.trainer import Trainer
from weightcast.update import Hooks, Update


class TrainerChild:
    """Commands of a trainer."""

    def __init__(self, mib: float, **options: Any) -> None:
        self._mib = mib
        self.weights = make_weights(0, mib)
        self.trainer = Trainer(lambda: self.weights, settings=_settings(), **options)
        self._published: dict[int, Any] = {}

    def publish(self, step: int, seed: int, corrupt: bool = False) -> dict[str, Any]:
        self.weights = make_weights(seed, self._mib)
        published = self.trainer.publish(step=step)
        self._published[published.version] = published
        if corrupt:
            self.corrupt()
        return {
            "version": published.version,
            "sha256": sha256(self.weights),
            "seconds": published.seconds,
            "copy_seconds": published.copy_seconds,
        }

    def corrupt(self) -> None:
        """Flip one bit of every slot behind the library's back."""
        for slot in self.trainer._source._slots:
            slot.bytes[len(slot.bytes) // 2] ^= 1

    def wait_applied(self, version: int, replicas: int | None = None, timeout: float = 30.0) -> list[str]:
        return self._published[version].wait_applied(replicas, timeout).applied

    def wait_drained(self, version: int, timeout: float = 10.0) -> bool:
        return bool(self._published[version].wait_drained(timeout))

    def close(self) -> None:
        self.trainer.close()

    @property
    def identity(self) -> tuple[str, int]:
        return tuple(self.trainer._session.identity)  # type: ignore[return-value]


class RolloutChild:
    """Commands of a rollout."""

    def __init__(self, mib: float, **options: Any) -> None:
        self.weights = blank_weights(mib)
        self.updates: list[Update] = []
        self.rollout = Rollout(
            lambda: self.weights, settings=_settings(), hooks=Hooks(after_load=self._after_load), **options
        )
        self._fail_load = False
        self._stop = threading.Event()

    def _after_load(self) -> None:
        if self._fail_load:
            raise RuntimeError("post-load processing failed")

    def fail_load(self, fail: bool) -> None:
        self._fail_load = fail

    def stage(self, timeout: float = 20.0) -> dict[str, Any] | None:
        update = self.rollout.stage(timeout)
        if update is None:
            return None
        self.updates.append(update)
        return {
            "version": update.version,
            "transport": update.transport,
            "seconds": update.seconds,
            "nbytes": update.nbytes,
            "sources": update.sources,
        }

    def apply(self, timeout: float = 20.0) -> dict[str, Any]:
        update = self.updates[-1]
        update.apply(timeout)
        return {"version": self.rollout.serving_version, "pause_seconds": update.pause_seconds}

    def refit(self, timeout: float = 20.0) -> dict[str, Any] | None:
        staged = self.stage(timeout)
        return None if staged is None else staged | self.apply(timeout) | {"sha256": sha256(self.weights)}

    def follow(self) -> None:
        threading.Thread(target=self._follow, daemon=True).start()

    def _follow(self) -> None:
        self.rollout.follow(self._stop, on_update=self.updates.append)

    def state(self) -> dict[str, Any]:
        serving = self.rollout.serving_version
        return {
            "serving": serving,
            "tainted": self.rollout.tainted,
            "sha256": sha256(self.weights),
            "quarantined": self.rollout._reader.quarantined_nbytes,
        }

    def slow(self, seconds: float) -> None:
        """Sleep after every READ request, as a slow machine or network would."""
        original = fetch_module.Fetch._arrived

        def arrived(self: fetch_module.Fetch, *args: Any) -> None:
            original(self, *args)
            time.sleep(seconds)

        fetch_module.Fetch._arrived = arrived  # type: ignore[method-assign]

    def reshape(self, changes: dict[str, list[int] | None]) -> None:
        """Give tensors other shapes, or remove them (null)."""
        for name, shape in changes.items():
            if shape is None:
                self.weights.pop(name)
            else:
                self.weights[name] = torch.zeros(shape)

    def reallocate(self) -> None:
        """Move every weight to a new address."""
        self.weights = {name: tensor.clone() for name, tensor in self.weights.items()}

    def close(self) -> None:
        self._stop.set()
        self.rollout.close()

    @property
    def identity(self) -> tuple[str, int]:
        return tuple(self.rollout._session.identity)  # type: ignore[return-value]


def usage() -> dict[str, float]:
    """What must not grow, and CPU seconds so far."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    with open("/proc/self/statm") as statm:
        resident = int(statm.read().split()[1]) * resource.getpagesize()
    return {
        "rss": resident,
        "fds": len(os.listdir("/proc/self/fd")),
        "threads": threading.active_count(),
        "cpu": used.ru_utime + used.ru_stime,
    }


def spin(seconds: float, threads: int = 3) -> None:
    """Keep the GIL busy with pure-Python work."""
    ends = time.monotonic() + seconds

    def work() -> None:
        while time.monotonic() < ends:
            sum(range(1000))

    workers = [threading.Thread(target=work) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


def _settings() -> WorkerSettings:
    return WorkerSettings(log_level="warning")


def main() -> None:
    torch.set_num_threads(1)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever libraries print goes to stderr
    setup = json.loads(sys.stdin.readline())
    kind = {"trainer": TrainerChild, "rollout": RolloutChild}[setup.pop("kind")]
    child: Any = None
    for request in _requests(setup):
        try:
            command = request.pop("command")
            if command == "start":
                child = kind(**request)
                result: Any = None
            elif command == "identity":
                result = child.identity
            elif command in {"usage", "spin"}:
                result = globals()[command](**request)
            else:
                result = getattr(child, command)(**request)
            answer: dict[str, Any] = {"result": result}
        except WeightcastError as error:
            answer = {
                "error": type(error).__name__,
                "message": str(error),
                "code": str(getattr(error, "code", getattr(error, "reason", ""))),
            }
        except Exception as error:
            answer = {"error": type(error).__name__, "message": repr(error), "code": ""}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
    if child is not None:
        child.close()


def _requests(setup: dict[str, Any]) -> Any:
    yield {"command": "start", **setup}
    for line in sys.stdin:
        yield json.loads(line)


if __name__ == "__main__":
    main()
