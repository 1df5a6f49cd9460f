"""A staged version in the user's hands, and the hooks around applying it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from weightcast.apply import Shard

Hook = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Hooks:
    """Called by :meth:`Rollout.follow` and :meth:`Update.apply`; each may be left out.

    Attributes:
        on_pause: stop generating; returns when nothing computes with the weights any more.
        after_load: what must be recomputed from the new weights (fused or quantised copies, caches).
        on_resume: generate again. Not called when the weights are tainted.
    """

    on_pause: Hook | None = None
    after_load: Hook | None = None
    on_resume: Hook | None = None


class Applier(Protocol):
    """Who made the update: a :class:`weightcast.rollout.Rollout`."""

    def apply(self, update: Update, timeout: float) -> None:
        """Make the live weights this version."""

    def request_permit(self, update: Update, timeout: float) -> None:
        """Wait for the server's permit."""


@dataclass(slots=True)
class Update:
    """A version whose every byte is local and verified, ready to be applied. Dropped when a newer one is staged.

    Attributes:
        version: its number.
        step: the training step it was published for.
        nbytes: bytes that were read.
        seconds: from the assignment to verified.
        transport: how they were read: ``cma`` (shared memory), ``tcp``, ``rdma``.
        sources: worker ids that were read.
        pull_id: the pull's id at the control plane.
        shards: layouts and verified bytes; valid until a newer version is staged.
        asked: whether the server was asked to permit it; it may have, even if its answer was lost.
        permitted_epoch: the epoch in which the server has granted that it be applied; None while it has not.
        pause_seconds: how long applying it took; set by :meth:`apply`.
    """

    version: int
    step: int
    nbytes: int
    seconds: float
    transport: str
    sources: list[str]
    pull_id: str
    shards: list[Shard] = field(repr=False)
    applier: Applier = field(repr=False)
    asked: bool = False
    permitted_epoch: int | None = None
    pause_seconds: float | None = None

    def apply(self, timeout: float = 30.0) -> None:
        """Make the live weights this version. Call it while nothing computes with them.

        Nothing is touched before the server has granted it, which happens when every rank of the replica has staged.

        Raises:
            PullSuperseded: a newer version was staged, or the replica moved on; nothing was changed.
            DeadlineExceeded, ServerUnavailable: not granted in time; nothing was changed, and it may be tried again.
            LayoutMismatch: the live tensors are no longer those that were checked; nothing was changed.
            Tainted: it failed in the middle; do not generate until a version is applied whole.
        """
        self.applier.apply(self, timeout)

    def request_permit(self, timeout: float = 30.0) -> None:
        """Wait for the server's permit to apply, before generation is paused. :meth:`apply` does it if this was not."""
        self.applier.request_permit(self, timeout)
