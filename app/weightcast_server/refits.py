"""The product's key figure: the time from a version being READY to every replica serving it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from weightcast.contract.names import PullState, Role, VersionState, WorkerState

from weightcast_server.store.protocol import Changes

MAX_OPEN: Final = 64
"""Versions per model that are followed at the same time; older ones are forgotten unmeasured."""


@dataclass(slots=True)
class _Model:
    rollouts: dict[str, int] = field(default_factory=dict)
    """Live rollout ranks and the newest version that each applied since it registered."""

    waiting: dict[int, tuple[float, set[str]]] = field(default_factory=dict)
    """Version → when it became READY, and the ranks of that moment that have not applied it yet."""


class RefitClock:
    """Follows committed changes; the members of a refit are the rollout ranks that live when the version gets READY."""

    def __init__(self) -> None:
        self._models: dict[str, _Model] = {}

    def apply(self, changes: Changes, now: float) -> list[float]:
        """Take one batch of changes; returns the seconds of every refit that it completed."""
        if changes.reset:
            self._models.clear()
        done: list[float] = []
        for worker in changes.workers:
            if worker.role is Role.ROLLOUT:
                model = self._models.setdefault(worker.model, _Model())
                if worker.state is WorkerState.LIVE:
                    model.rollouts.setdefault(worker.worker_id, 0)
                else:
                    model.rollouts.pop(worker.worker_id, None)
                    _drop(model, worker.worker_id)
        for version in changes.versions:
            if version.state is VersionState.READY:
                model = self._models.setdefault(version.model, _Model())
                members = {name for name, applied in model.rollouts.items() if applied < version.version}
                if members:
                    model.waiting[version.version] = (now, members)
                    if len(model.waiting) > MAX_OPEN:
                        del model.waiting[min(model.waiting)]
        for pull in changes.pulls:
            if pull.state is PullState.APPLIED:
                model = self._models.setdefault(pull.model, _Model())
                if pull.worker_id in model.rollouts:
                    model.rollouts[pull.worker_id] = pull.version
                done += _applied(model, pull.worker_id, pull.version, now)
        return done


def _applied(model: _Model, worker_id: str, version: int, now: float) -> list[float]:
    done = []
    for number in [number for number in model.waiting if number <= version]:
        ready_at, members = model.waiting[number]
        members.discard(worker_id)
        if not members:
            del model.waiting[number]
            done.append(now - ready_at)
    return done


def _drop(model: _Model, worker_id: str) -> None:
    # A member that died does not complete a refit; the ones that are left may, with their own next step.
    for number in list(model.waiting):
        model.waiting[number][1].discard(worker_id)
        if not model.waiting[number][1]:
            del model.waiting[number]
