"""What a rollout process uses: stage the newest version, apply it inside its own pause, say what it serves."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

from weightcast.client import ControlPlane
from weightcast.client.backoff import Backoff, check_seconds
from weightcast.contract.layout import Layout
from weightcast.contract.names import MAX_WAIT_SECONDS, PullFailure, PullState, Role
from weightcast.contract.pulls import Assignment, Pull, RequestPull, UpdatePull
from weightcast.contract.workers import RegisterWorker
from weightcast.engines.reader import DEFAULT_STALL_SECONDS, ResidentReader, Staged
from weightcast.errors import (
    DeadlineExceeded,
    Fenced,
    LayoutMismatch,
    NotFound,
    PullConflict,
    PullSuperseded,
    SessionClosed,
    Tainted,
    TransferError,
    WeightcastError,
)
from weightcast.layout import Weights
from weightcast.live import LiveWeights
from weightcast.logs import get_logger
from weightcast.reports import PullReports
from weightcast.session import WorkerSession
from weightcast.settings import WorkerSettings
from weightcast.update import Hooks, Update

_log = get_logger("weightcast.rollout")

_FOLLOW_SECONDS: Final = 5.0
_PERMIT_SECONDS: Final = 20.0
_MAX_LAYOUTS: Final = 16


class Rollout:
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
        settings: WorkerSettings | None = None,
    ) -> None:
        self._settings = settings or WorkerSettings()
        self.model, self.replica, self.rank, self.world_size = model, replica, rank, world_size
        self._hooks = hooks or Hooks()
        self._live = LiveWeights(weights, self._hooks.after_load)
        self._highest = 0
        self._current: Update | None = None
        self._layouts: dict[str, Layout] = {}
        self._memory_lock = threading.Lock()
        self._applying = threading.RLock()
        self._closed = threading.Event()
        local = self._live.layout()
        self._reader = ResidentReader(
            model, self._settings.worker_host, stall_seconds=check_seconds("stall_seconds", stall_seconds)
        )
        self._control: ControlPlane | None = None
        try:
            self._reader.reserve(local)
            self._agent = self._reader.agent_info()
            self._control = self._settings.control_plane()
            self._session = WorkerSession(self._control, self._body)
            self._reports = PullReports(self._session, self._control)
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

    @property
    def worker_id(self) -> str:
        """This rank's id at the control plane."""
        return self._session.identity.worker_id

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

        Returns None when none came within ``timeout`` seconds. A source that fails is reported and another is read.

        Raises:
            TransferError: no source was left, the last failure is named.
            LayoutMismatch: the version does not fit these weights; every difference is listed.
            DeadlineExceeded: a newer version exists but was not read and verified in time.
            Fenced: a newer process has this rank.
            ServerUnavailable: the server does not answer; what is served stays.
        """
        ends = time.monotonic() + check_seconds("timeout", timeout)
        excluded: dict[str, TransferError] = {}
        overwritten: set[str] = set()
        pause = Backoff()
        version = 0
        while True:
            self._reports.flush()
            self._settle_permit()
            assignment = self._request(list(excluded), max(0.0, ends - time.monotonic()))
            if assignment is None:
                if time.monotonic() >= ends:
                    return None
                continue
            if assignment.pull.version != version:
                version = assignment.pull.version
                excluded.clear()
                overwritten.clear()
            try:
                return self._stage(assignment, ends)
            except (PullConflict, NotFound) as error:
                # The pull has ended: a newer version, this worker registered again, or the server lost its store.
                _log.info("pull ended by the server", pull=assignment.pull.pull_id, code=error.code)
                failure: WeightcastError = error
                self._closed.wait(max(0.0, min(pause.next(), ends - time.monotonic())))
            except TransferError as error:
                known = {source.worker_id for shard in assignment.shards for source in shard.sources}
                named = error.peer if error.peer in known else None
                self._reports.failed(assignment.pull.pull_id, error.reason, error.detail, source=named)
                if error.peer is None or isinstance(error, LayoutMismatch):
                    raise
                _log.warning("source failed", source=error.peer, version=version, reason=error.reason.value)
                # What was overwritten is not assigned again, unless its source offers it again: that is tried once.
                if error.reason is not PullFailure.SOURCE_OVERWRITTEN or error.peer in overwritten:
                    excluded[error.peer] = error
                overwritten.add(error.peer)
                if any(excluded.keys() >= {one.worker_id for one in shard.sources} for shard in assignment.shards):
                    raise
                failure = error
            if time.monotonic() >= ends:
                raise DeadlineExceeded(f"Staging version {version} of {self.model}", timeout) from failure

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
                _log.warning(
                    "refit failed, the old version is served on", error=str(error), serving=self.serving_version
                )
                stop.wait(backoff.next())
                continue
            backoff.reset()

    def request_permit(self, update: Update, timeout: float) -> None:
        """See :meth:`Update.request_permit`."""
        ends = time.monotonic() + check_seconds("timeout", timeout)
        with self._applying:
            self._wait_for_permit(update, ends, timeout)

    def _wait_for_permit(self, update: Update, ends: float, timeout: float) -> None:
        while not update.permitted:
            self._check_current(update)
            update.asked = True
            wait = max(0.0, min(ends - time.monotonic(), _PERMIT_SECONDS))
            try:
                pull = self._reports.send(update.pull_id, UpdatePull(state="applying"), wait=wait)
            except (PullConflict, NotFound) as error:
                self._drop(update)
                if isinstance(error, PullSuperseded):
                    raise
                raise PullSuperseded(f"version {update.version}: {error.detail}", call="apply") from error
            update.permitted = pull.state is PullState.APPLYING
            if not update.permitted and time.monotonic() >= ends:
                raise DeadlineExceeded(f"The permit to apply version {update.version} of {self.model}", timeout)

    def apply(self, update: Update, timeout: float) -> None:
        """See :meth:`Update.apply`."""
        with self._applying:
            self.request_permit(update, timeout)
            self._apply(update)

    def _apply(self, update: Update) -> None:
        with self._memory_lock:
            self._check_current(update)
            self._current = None
            try:
                update.pause_seconds = self._live.apply(update.shards, update.version, self.worker_id)
            except BaseException as error:
                failure = PullFailure.LAYOUT_MISMATCH if isinstance(error, LayoutMismatch) else PullFailure.APPLY_FAILED
                self._reports.failed(update.pull_id, failure, repr(error), tainted=self.tainted)
                raise
        self._reports.applied(update)

    def close(self) -> None:
        """Leave and free the staging memory. The live weights stay as they are."""
        self._closed.set()
        session = getattr(self, "_session", None)
        if session is not None:
            session.close(self._settings.leave_timeout_seconds)
        if self._control is not None:
            self._control.close()
        self._reader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @property
    def _api(self) -> ControlPlane:
        assert self._control is not None  # noqa: S101 - set before anything can call
        return self._control

    def _body(self, _previous_epoch: int) -> RegisterWorker:
        return RegisterWorker(
            model=self.model,
            role=Role.ROLLOUT,
            rank=self.rank,
            world_size=self.world_size,
            incarnation="0" * 32,
            replica=self.replica,
            host=self._settings.worker_host,
            rack=self._settings.worker_rack,
            zone=self._settings.worker_zone,
            agents=[self._agent],
            highest_version=self._highest,
            serving_version=self.serving_version,
            tainted=self.tainted,
        )

    def _request(self, excluded: list[str], seconds: float) -> Assignment | None:
        have = max(self.serving_version or 0, self._current.version if self._current is not None else 0)
        body = RequestPull(have_version=have, exclude=excluded[-64:])
        wait = min(seconds, MAX_WAIT_SECONDS / 2)
        return self._session.call(lambda me: self._api.request_pull(me, self.model, body, wait=wait))

    def _stage(self, assignment: Assignment, ends: float) -> Update:
        pull = assignment.pull
        self._highest = max(self._highest, pull.version)
        layouts = self._layouts_of(assignment)
        self._live.check([layouts[shard.layout_digest] for shard in assignment.shards], pull.version)
        with self._memory_lock:
            self._current = None  # its bytes are about to be overwritten

            def report(bytes_done: int) -> None:
                self._reports.send(pull.pull_id, UpdatePull(state="fetching", bytes_done=bytes_done))

            timeout = max(0.1, ends - time.monotonic())
            staged = self._reader.fetch(pull.version, assignment.shards, layouts, timeout, progress=report)
            update = self._current = self._made(pull, staged)
        try:
            self._reports.send(
                pull.pull_id,
                UpdatePull(
                    state="staged",
                    bytes_done=staged.nbytes,
                    fetch_seconds=staged.seconds,
                    transport=staged.transport,
                    digest=assignment.shards[0].digest_root if len(assignment.shards) == 1 else None,
                ),
            )
        except WeightcastError:
            self._drop(update)
            raise
        return update

    def _made(self, pull: Pull, staged: Staged) -> Update:
        return Update(
            version=staged.version,
            step=pull.step,
            nbytes=staged.nbytes,
            seconds=staged.seconds,
            transport=staged.transport,
            sources=staged.sources,
            pull_id=pull.pull_id,
            shards=[(shard.layout, shard.data) for shard in staged.shards],
            applier=self,
        )

    def _layouts_of(self, assignment: Assignment) -> dict[str, Layout]:
        found: dict[str, Layout] = {}
        for shard in assignment.shards:
            digest = shard.layout_digest
            if digest not in self._layouts:
                if len(self._layouts) >= _MAX_LAYOUTS:
                    self._layouts.clear()
                self._layouts[digest] = self._api.get_layout(self.model, digest)
            found[digest] = self._layouts[digest]
        return found

    def _apply_paused(self, update: Update) -> None:
        update.request_permit()
        if self._hooks.on_pause is not None:
            self._hooks.on_pause()
        try:
            update.apply()
        finally:
            if not self.tainted and self._hooks.on_resume is not None:
                self._hooks.on_resume()

    def _settle_permit(self) -> None:
        """Give back a permit that was asked for and never used: nothing is assigned to a rank that may be applying."""
        if self._current is None or not self._current.asked or not self._applying.acquire(blocking=False):
            return  # also when another thread is applying right now
        try:
            update = self._current
            if update is not None and update.asked:
                self._current = None
                self._reports.failed(update.pull_id, PullFailure.CANCELLED, "staged, but not applied", tainted=False)
        finally:
            self._applying.release()

    def _check_current(self, update: Update) -> None:
        if update is not self._current:
            raise PullSuperseded(f"version {update.version} was applied or dropped for a newer one", call="apply")

    def _drop(self, update: Update) -> None:
        if self._current is update:
            self._current = None
