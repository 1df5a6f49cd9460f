"""What a rollout process uses: stage the newest version, apply it inside its own pause, say what it serves."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

from weightcast.client.backoff import Backoff, check_seconds
from weightcast.contract.names import PullFailure, PullState, Role
from weightcast.contract.pulls import UpdatePull
from weightcast.contract.workers import RegisterWorker
from weightcast.engines.reader import DEFAULT_STALL_SECONDS, ResidentReader
from weightcast.errors import (
    DeadlineExceeded,
    Fenced,
    LayoutMismatch,
    NotFound,
    PullConflict,
    PullSuperseded,
    SessionClosed,
    Tainted,
    WeightcastError,
)
from weightcast.layout import Weights
from weightcast.live import LiveWeights
from weightcast.logs import get_logger
from weightcast.member import Member
from weightcast.reports import PullReports
from weightcast.settings import WorkerSettings
from weightcast.stager import StagedSlot, Stager
from weightcast.update import Hooks, Update

_log = get_logger("weightcast.rollout")

_FOLLOW_SECONDS: Final = 5.0
_PERMIT_SECONDS: Final = 20.0
_MAX_LAYOUTS: Final = 16


class Rollout(Member):
    """One rollout rank: pulls versions into a staging arena and applies them to its live weights.

    Args:
        weights: a module, a mapping of names to tensors, or a function that returns one: the live weights, looked at
            anew at each apply.
        replica: the engine that this rank serves together with others (a TP group).
        model: the name under which versions are published.
        rank: this rank within the replica.
        world_size: ranks of the replica.
        hooks: see :class:`Hooks`.
        stall_seconds: a source that delivers nothing for so long is given up for another.
        fetch_timeout: seconds that reading one version may take, all sources together.
        settings: where the server is, and timeouts; by default from ``WEIGHTCAST_*``.

    Memory: one staging arena as large as the weights, in host memory.

    Raises:
        LayoutError: some weights cannot be loaded into; all are listed.
        OutOfMemoryError: the arena does not fit.
        ReplicaConflict: other ranks of the replica are registered with another world size.
        ServerUnavailable: no server there.
    """

    def __init__(
        self,
        weights: Weights,
        *,
        replica: str,
        model: str = "policy",
        rank: int = 0,
        world_size: int = 1,
        hooks: Hooks | None = None,
        stall_seconds: float = DEFAULT_STALL_SECONDS,
        fetch_timeout: float = 600.0,
        settings: WorkerSettings | None = None,
    ) -> None:
        super().__init__(Role.ROLLOUT, model, rank, world_size, settings)
        self.replica = replica
        self._hooks = hooks or Hooks()
        self._live = LiveWeights(weights, self._hooks.after_load)
        self._slot = StagedSlot()
        self._applying = threading.RLock()
        self._closed = threading.Event()
        local = self._live.layout()
        self._reader = ResidentReader(
            model, self._settings.worker_host, stall_seconds=check_seconds("stall_seconds", stall_seconds)
        )
        self._parts.callback(self._reader.close)
        try:
            self._reader.reserve(local)
            self._agent = self._reader.agent_info()
            self._connect()
            self._reports = PullReports(self._session, self._control)
            self._stager = Stager(
                model,
                reader=self._reader,
                live=self._live,
                slot=self._slot,
                session=self._session,
                control=self._control,
                reports=self._reports,
                applier=self,
                fetch_timeout=check_seconds("fetch_timeout", fetch_timeout),
                settle=self._settle_permit,
                closed=self._closed,
            )
            self._session.start()
        except BaseException:
            self.close()
            raise

    @property
    def serving_version(self) -> int | None:
        """The version that the live weights are, entirely; None before the first, while one is applied, and tainted."""
        return self._live.serving

    @property
    def tainted(self) -> bool:
        """Whether the live weights are of no single version."""
        return self._live.taint is not None

    def check_servable(self) -> int:
        """The serving version.

        Raises:
            Tainted: the live weights are of no single version.
        """
        serving = self._live.serving
        if serving is None:
            raise Tainted(self.worker_id, None, self._live.taint or "no version has been applied yet")
        return serving

    def stage(self, timeout: float = 30.0) -> Update | None:
        """Wait for a version newer than what is served or staged, read it, verify it. Generation may go on meanwhile.

        Returns None when none came within ``timeout`` seconds; reading one that came may take up to ``fetch_timeout``.
        A source that fails is reported and another is read.

        Raises:
            TransferError: no source was left, the last failure is named.
            LayoutMismatch: the version does not fit these weights; every difference is listed.
            DeadlineExceeded: a newer version exists but was not read and verified in time.
            Fenced: a newer process has this rank.
            ServerUnavailable: the server does not answer; what is served stays.
        """
        return self._stager.stage(check_seconds("timeout", timeout))

    def follow(
        self, stop: threading.Event | None = None, *, on_update: Callable[[Update], object] | None = None
    ) -> None:
        """Stage and apply versions as they come, with the hooks around, until ``stop`` is set or this is closed.

        Outages and failed pulls are logged and tried again. ``on_update`` is called after each applied version.

        Raises:
            LayoutMismatch: what is published does not fit.
            Fenced: a newer process has this rank.
        """
        stop = stop or threading.Event()
        backoff = Backoff()
        while not stop.is_set() and not self._closed.is_set():
            try:
                update = self.stage(_FOLLOW_SECONDS)
                if update is not None:
                    self._apply_paused(update)
                    if on_update is not None:
                        on_update(update)
            except (LayoutMismatch, Fenced):
                raise
            except SessionClosed:
                if self._closed.is_set():
                    return
                raise
            except WeightcastError as error:
                if self._closed.is_set():
                    return
                _log.warning("refit failed", error=str(error), serving=self.serving_version, tainted=self.tainted)
                stop.wait(backoff.next())
                continue
            backoff.reset()

    def request_permit(self, update: Update, timeout: float) -> None:
        """See :meth:`Update.request_permit`."""
        ends = time.monotonic() + check_seconds("timeout", timeout)
        with self._applying:
            while update.permitted_epoch is None:
                self._ask_permit(update, ends, timeout)

    def apply(self, update: Update, timeout: float) -> None:
        """See :meth:`Update.apply`."""
        with self._applying:
            self.request_permit(update, timeout)
            self._load(update)
            self._reports.applied(update)

    def _load(self, update: Update) -> None:
        with self._applying, self._slot.memory:
            self._slot.require(update)
            self._slot.put(None)
            self._check_permit(update)
            self._slot.applying = update.version
            try:
                update.pause_seconds = self._live.apply(update.shards, update.version, self.worker_id)
            except BaseException as error:
                mismatch = isinstance(error, LayoutMismatch)
                failure = PullFailure.LAYOUT_MISMATCH if mismatch else PullFailure.APPLY_FAILED
                self._reports.failed(update.pull_id, failure, repr(error), tainted=self.tainted)
                raise
            finally:
                self._slot.applying = 0

    def _ask_permit(self, update: Update, ends: float, timeout: float) -> None:
        self._slot.require(update)
        update.asked = True
        epoch = self._session.identity.epoch
        wait = max(0.0, min(ends - time.monotonic(), _PERMIT_SECONDS))
        try:
            pull = self._reports.send(update.pull_id, UpdatePull(state="applying"), wait=wait)
        except (PullConflict, NotFound) as error:
            self._slot.drop(update)
            if isinstance(error, PullSuperseded):
                raise
            raise PullSuperseded(f"version {update.version}: {error.detail}", call="apply") from error
        if pull.state is PullState.APPLYING:
            update.permitted_epoch = epoch
        elif time.monotonic() >= ends:
            raise DeadlineExceeded(f"The permit to apply version {update.version} of {self.model}", timeout)

    def _check_permit(self, update: Update) -> None:
        """A permit ends with the epoch it was given in: the server has told the other ranks that this one was lost."""
        if self._session.identity.epoch != update.permitted_epoch:
            detail = f"the permit for version {update.version} ended when this worker was registered again"
            raise PullSuperseded(detail, call="apply")

    def close(self) -> None:
        """Leave and free the staging memory. The live weights stay as they are."""
        self._closed.set()
        super().close()

    def _body(self, _previous_epoch: int) -> RegisterWorker:
        return self._registration(
            replica=self.replica,
            agents=[self._agent],
            highest_version=self._stager.highest,
            serving_version=self.serving_version,
            tainted=self.tainted,
        )

    def _apply_paused(self, update: Update) -> None:
        """Apply between the hooks. The engine waits neither for the permit nor for the report."""
        update.request_permit()
        if self._hooks.on_pause is not None:
            self._hooks.on_pause()
        try:
            self._load(update)
        finally:
            if not self.tainted and self._hooks.on_resume is not None:
                self._hooks.on_resume()
        self._reports.applied(update)

    def _settle_permit(self) -> None:
        """Give back a permit that was asked for and never used: nothing is assigned to a rank that may be applying."""
        update = self._slot.current
        if update is None or not update.asked or not self._applying.acquire(blocking=False):
            return  # also when another thread is applying right now
        try:
            if self._slot.current is update:
                self._slot.drop(update)
                self._reports.failed(update.pull_id, PullFailure.CANCELLED, "staged, but not applied", tainted=False)
        finally:
            self._applying.release()
