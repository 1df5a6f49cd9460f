"""The workers of one test at one server, and what must hold for them at its end."""

from __future__ import annotations

import threading
from functools import partial
from types import TracebackType
from typing import Any, Self

from support.weights import make_weights, sha256
from support.workers import ChildError, WorkerProcess, until
from weightcast.client import ControlPlane
from weightcast.contract.pulls import Pull
from weightcast.contract.versions import Version
from weightcast.contract.workers import Replica
from weightcast.errors import WeightcastError

MAX_IDLE = 5


class Pool:
    """Worker processes that have imported everything, lent to one test after the other."""

    def __init__(self) -> None:
        self._idle: list[WorkerProcess] = []

    def take(self, env: dict[str, str]) -> WorkerProcess:
        """A process with this environment."""
        for worker in self._idle:
            if worker.env == env:
                self._idle.remove(worker)
                return worker
        return WorkerProcess(env)

    def give_back(self, *workers: WorkerProcess) -> None:
        """Take processes back; those that were killed or still owe an answer are ended."""
        for worker in workers:
            if worker.running:
                worker.cont()
        sound = [worker for worker in workers if worker.idle and _asked(worker)]
        for worker in workers:
            if worker in sound and _answered(worker):
                self._idle.append(worker)
            else:
                worker.kill()
        while len(self._idle) > MAX_IDLE:
            self._idle.pop(0).kill()

    def close(self) -> None:
        """End all."""
        while self._idle:
            self._idle.pop().kill()


def _asked(worker: WorkerProcess) -> bool:
    try:
        worker.send("reset")
    except (ChildError, OSError, EOFError, TimeoutError):
        return False
    return True


def _answered(worker: WorkerProcess) -> bool:
    try:
        worker.receive(15)
    except (ChildError, OSError, EOFError, TimeoutError):
        return False
    return True


class Fleet:
    """Starts workers of one model, remembers what was published, and watches what is said to be served."""

    def __init__(self, pool: Pool, url: str, model: str = "policy", env: dict[str, str] | None = None) -> None:
        self.url, self.model, self.env = url, model, dict(env or {})
        self.control = ControlPlane(url, deadline_seconds=20)
        self.published: dict[int, str] = {}
        self._pool = pool
        self._workers: list[WorkerProcess] = []
        self._watch = Watch(url, model)

    def trainer(self, **options: Any) -> WorkerProcess:
        """Start a trainer; ``run``, ``rank``, ``world_size``, ``mib``, ``part`` …"""
        return self._start("trainer", {"run": "run-1", **options})

    def rollout(self, **options: Any) -> WorkerProcess:
        """Start a rollout; ``replica``, ``rank``, ``world_size``, ``mib``, ``kind`` …"""
        return self._start("rollout", {"replica": "r0", **options})

    def spare(self) -> WorkerProcess:
        """A process that is nothing yet."""
        worker = self._pool.take(self.env)
        self._workers.append(worker)
        return worker

    def publish(self, *trainers: WorkerProcess, step: int, seed: int, **options: Any) -> int:
        """Publish one version from all of these ranks; returns its number."""
        for trainer in trainers:
            trainer.begin("publish", step=step, seed=seed, **options)
        answers = [trainer.finish() for trainer in trainers]
        (version,) = {answer["version"] for answer in answers}
        if len({answer["sha256"] for answer in answers}) == 1:
            self.published[version] = answers[0]["sha256"]
        return int(version)

    def publish_parts(self, *trainers: WorkerProcess, step: int, seed: int, mib: float = 0.25) -> int:
        """Publish one version of which every rank has a part."""
        version = self.publish(*trainers, step=step, seed=seed)
        self.published[version] = sha256(make_weights(seed, mib))
        return version

    def refit(self, rollout: WorkerProcess, version: int, timeout: float = 30.0) -> dict[str, Any]:
        """One stage and apply, which must come to this version with its right bytes."""
        found: dict[str, Any] = rollout.call("refit", timeout=timeout)
        assert (found["version"], found["sha256"]) == (version, self.published[version])
        return found

    def settled(self, version: int, *rollouts: WorkerProcess, timeout: float = 40.0) -> None:
        """Wait until these followers serve the version with its right bytes, here and in the server's eyes."""
        for rollout in rollouts:
            until(f"version {version} served", partial(self._serves, rollout, version), timeout)
        until(f"version {version} reported", lambda: self._all_servable(version, len(rollouts)), timeout)

    def version(self, version: int) -> Version:
        """What the server says of a version."""
        return self.control.version(self.model, version)

    def pulls(self) -> list[Pull]:
        """All pulls, newest first."""
        return self.control.pulls(self.model).items

    def replica(self, name: str = "r0") -> Replica:
        """What the server says of a replica."""
        (found,) = [replica for replica in self.control.replicas(self.model).items if replica.replica == name]
        return found

    def worker_state(self, worker_id: str) -> str:
        """``live``, ``lost`` or ``left``."""
        return str(self.control.worker(f"{self.model}:{worker_id}").state)

    def epoch(self, worker_id: str) -> int:
        """A worker's epoch."""
        return self.control.worker(f"{self.model}:{worker_id}").epoch

    def check(self) -> None:
        """Nobody ever computed with, or was said to serve, anything but one whole published version."""
        said = self._watch.close()
        assert said <= self.published.keys(), f"served: {said}, published: {sorted(self.published)}"
        for worker in self._workers:
            if worker.idle:
                self.check_worker(worker)

    def check_worker(self, worker: WorkerProcess) -> None:
        """Every version that a rollout has served had that version's bytes, and they only grew."""
        state = worker.call("state")
        if not state or "served" not in state:
            return
        for version, digest in state["served"]:
            assert digest == self.published[version], f"version {version} was not served with its bytes"
        served = [version for version, _digest in state["served"]]
        assert served == sorted(served)
        if state["serving"] is not None:
            assert state["sha256"] == self.published[state["serving"]]

    def _serves(self, rollout: WorkerProcess, version: int) -> bool:
        state = rollout.call("state")
        return bool(state["serving"] == version and state["sha256"] == self.published[version])

    def _all_servable(self, version: int, count: int) -> bool:
        found = self.control.replicas(self.model).items
        return len([one for one in found if one.servable and one.serving_version == version]) >= count

    def _start(self, role: str, options: dict[str, Any]) -> WorkerProcess:
        return self.spare().start(role, self.url, model=self.model, **options)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for worker in self._workers:
            if worker.running:
                worker.cont()
        try:
            if error is None:
                self.check()
        finally:
            self._watch.close()
            self.control.close()
            self._pool.give_back(*self._workers)


class Watch:
    """Asks all the time which versions replicas are said to serve, as a router would."""

    def __init__(self, url: str, model: str) -> None:
        self._url, self._model = url, model
        self._seen: set[int] = set()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> set[int]:
        """End; every version that any replica was said to serve."""
        self._stop.set()
        self._thread.join(10)
        return self._seen

    def _run(self) -> None:
        with ControlPlane(self._url) as control:
            while not self._stop.wait(0.05):
                try:
                    replicas = control.replicas(self._model, deadline=1).items
                except WeightcastError:
                    continue  # the server is away, or nobody has registered yet
                self._seen |= {one.serving_version for one in replicas if one.serving_version is not None}
