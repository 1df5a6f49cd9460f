"""A rollout that does what it is told."""

from __future__ import annotations

import threading
from typing import Any

from support.child_hooks import Gate, patched_requests
from support.weights import Changes, blank_weights, change, sha256
from weightcast.rollout import Rollout
from weightcast.settings import WorkerSettings
from weightcast.update import Hooks, Update


class RolloutChild:
    """Commands of a rollout. ``kind`` is how its tensors lie in memory, see `blank_weights`."""

    def __init__(
        self, settings: WorkerSettings, mib: float, kind: str = "plain", request_nbytes: int = 0, **options: Any
    ) -> None:
        self.weights = blank_weights(mib, kind)
        self.updates: list[Update] = []
        self.served: list[tuple[int, str]] = []
        self.fetching, self.loading = Gate(), Gate()
        self._fail_load = False
        self._stop = threading.Event()
        self._follower: threading.Thread | None = None
        patched_requests(self.fetching, request_nbytes)
        hooks = Hooks(after_load=self._after_load)
        self.rollout = Rollout(lambda: self.weights, settings=settings, hooks=hooks, **options)

    def _after_load(self) -> None:
        self.loading.arrive(object(), self._stop.is_set)
        if self._fail_load:
            raise RuntimeError("post-load processing failed")

    def fail_load(self, fail: bool) -> None:
        self._fail_load = fail

    def hold_load(self) -> None:
        """Let the next apply wait after every byte is copied, until `release`."""
        self.loading.close()

    def hold(self, after: int = 1, fetches: int = 1) -> None:
        """Let the next fetches wait when so many of their READs have arrived, each until it is told to `release`."""
        self.fetching.close(after, fetches)

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
        self._note(update)
        return {
            "version": self.rollout.serving_version,
            "pause_seconds": update.pause_seconds,
            "sha256": self.served[-1][1],
        }

    def refit(self, timeout: float = 20.0) -> dict[str, Any] | None:
        staged = self.stage(timeout)
        return None if staged is None else staged | self.apply(timeout)

    def follow(self) -> None:
        self._follower = threading.Thread(target=self._follow, daemon=True)
        self._follower.start()

    def _follow(self) -> None:
        self.rollout.follow(self._stop, on_update=self._note)

    def _note(self, update: Update) -> None:
        """Keep what this rank says that it serves, and what its live weights are at that moment."""
        self.served.append((update.version, sha256(self.weights)))

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
                "metadata_nbytes": len(agent.metadata()),
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
        self.rollout.close()  # the follower ends when its parked call is answered

    @property
    def identity(self) -> list[Any]:
        return list(self.rollout._session.identity)
