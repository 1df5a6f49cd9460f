"""Staging: from an assignment to a version whose every byte is local and verified."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Final

from weightcast.client import ControlPlane
from weightcast.client.backoff import Backoff
from weightcast.contract.layout import Layout
from weightcast.contract.names import MAX_WAIT_SECONDS, PullFailure
from weightcast.contract.pulls import Assignment, Pull, RequestPull, UpdatePull
from weightcast.engines.reader import ResidentReader, Staged
from weightcast.errors import (
    DeadlineExceeded,
    LayoutMismatch,
    NotFound,
    PullConflict,
    PullSuperseded,
    ServerUnavailable,
    TransferError,
    WeightcastError,
)
from weightcast.live import LiveWeights
from weightcast.logs import get_logger
from weightcast.reports import PullReports
from weightcast.session import WorkerSession
from weightcast.update import Applier, Update

_log = get_logger("weightcast.stager")

_MAX_LAYOUTS: Final = 16
_PROGRESS_SECONDS: Final = 1.0
"""Longest time that telling progress may take: the bytes come from peers, and do not wait for the server."""


class StagedSlot:
    """The one staged version of a rank.

    Attributes:
        memory: held by whoever writes or reads the staging memory.
        applying: the version that is being applied now, else 0.
    """

    def __init__(self) -> None:
        self.memory = threading.Lock()
        self.applying = 0
        self._current: Update | None = None

    @property
    def current(self) -> Update | None:
        """The update that may still be applied."""
        return self._current

    def put(self, update: Update | None) -> None:
        """Replace it; the one before is dropped."""
        self._current = update

    def drop(self, update: Update) -> None:
        """Drop this update, unless another one has replaced it."""
        if self._current is update:
            self._current = None

    def require(self, update: Update) -> None:
        """Raise PullSuperseded unless this update may still be applied."""
        if update is not self._current:
            raise PullSuperseded(f"version {update.version} was applied or dropped for a newer one", call="apply")


class Stager:
    """Asks for assignments, reads them, and moves from a failing source to another.

    Args:
        fetch_timeout: seconds that reading one version may take, all sources together.
        settle: called before each request: gives back a permit that nobody uses.
    """

    def __init__(
        self,
        model: str,
        *,
        reader: ResidentReader,
        live: LiveWeights,
        slot: StagedSlot,
        session: WorkerSession,
        control: ControlPlane,
        reports: PullReports,
        applier: Applier,
        fetch_timeout: float,
        settle: Callable[[], None],
        closed: threading.Event,
    ) -> None:
        self._model, self._reader, self._live, self._slot = model, reader, live, slot
        self._session, self._control, self._reports = session, control, reports
        self._applier, self._fetch_timeout, self._settle, self._closed = applier, fetch_timeout, settle, closed
        self._layouts: dict[str, Layout] = {}
        self.highest = 0

    def stage(self, timeout: float) -> Update | None:
        """See :meth:`weightcast.rollout.Rollout.stage`."""
        ends = time.monotonic() + timeout
        fetch_ends = ends + self._fetch_timeout
        attempt = _Attempt()
        pause = Backoff()
        while True:
            self._reports.flush()
            self._settle()
            assignment = self._request(list(attempt.excluded), max(0.0, ends - time.monotonic()))
            if assignment is None:
                if time.monotonic() < ends:
                    continue
                if attempt.failure is None or attempt.failure.reason is PullFailure.SOURCE_OVERWRITTEN:
                    return None  # nothing newer, or it was withdrawn meanwhile
                raise attempt.failure
            attempt.begin(assignment)
            try:
                return self._stage(assignment, fetch_ends)
            except (PullConflict, NotFound) as error:
                # The pull has ended: a newer version, this worker registered again, or the server lost its store.
                _log.info("pull ended by the server", pull=assignment.pull.pull_id, code=error.code)
            except TransferError as error:
                self._failed(assignment, attempt, error, timeout)
            except BaseException as error:
                self._reports.failed(assignment.pull.pull_id, PullFailure.INTERNAL, repr(error))
                raise
            if time.monotonic() >= fetch_ends:
                what = f"Staging version {attempt.version} of {self._model}"
                raise DeadlineExceeded(what, timeout + self._fetch_timeout) from attempt.failure
            self._closed.wait(pause.next())

    def _failed(self, assignment: Assignment, attempt: _Attempt, error: TransferError, timeout: float) -> None:
        """Report a failure and exclude its source; raises when there is nobody else to ask."""
        known = {source.worker_id for shard in assignment.shards for source in shard.sources}
        named = error.peer if error.peer in known else None
        self._reports.failed(assignment.pull.pull_id, error.reason, error.detail, source=named)
        attempt.failure = error
        if error.reason is PullFailure.CANCELLED:
            what = f"Reading version {attempt.version} of {self._model}"
            raise DeadlineExceeded(what, timeout + self._fetch_timeout) from error
        if named is None or isinstance(error, LayoutMismatch):
            raise error
        _log.warning("source failed", source=named, version=attempt.version, reason=error.reason.value)
        attempt.exclude(named, error.reason)
        if any(attempt.excluded >= {one.worker_id for one in shard.sources} for shard in assignment.shards):
            raise error

    def _request(self, excluded: list[str], seconds: float) -> Assignment | None:
        current = self._slot.current
        have = max(self._live.serving or 0, self._slot.applying, current.version if current is not None else 0)
        body = RequestPull(have_version=have, exclude=excluded[-64:])
        wait = min(seconds, MAX_WAIT_SECONDS / 2)
        return self._session.call(lambda me: self._control.request_pull(me, self._model, body, wait=wait))

    def _stage(self, assignment: Assignment, fetch_ends: float) -> Update:
        pull = assignment.pull
        self.highest = max(self.highest, pull.version)
        layouts = self._layouts_of(assignment)
        self._live.check([layouts[shard.layout_digest] for shard in assignment.shards], pull.version)
        with self._slot.memory:
            self._slot.put(None)  # its bytes are about to be overwritten

            def progress(bytes_done: int) -> None:
                body = UpdatePull(state="fetching", bytes_done=bytes_done)
                with contextlib.suppress(ServerUnavailable):
                    self._reports.send(pull.pull_id, body, deadline=_PROGRESS_SECONDS)

            seconds = max(0.1, fetch_ends - time.monotonic())
            staged = self._reader.fetch(pull.version, assignment.shards, layouts, seconds, progress=progress)
            update = self._made(pull, staged)
            self._slot.put(update)
        body = UpdatePull(
            state="staged",
            bytes_done=staged.nbytes,
            fetch_seconds=staged.seconds,
            transport=staged.transport,
            digest=assignment.shards[0].digest_root if len(assignment.shards) == 1 else None,
        )
        try:
            self._reports.send(pull.pull_id, body)
        except WeightcastError:
            self._slot.drop(update)
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
            applier=self._applier,
        )

    def _layouts_of(self, assignment: Assignment) -> dict[str, Layout]:
        found: dict[str, Layout] = {}
        for shard in assignment.shards:
            digest = shard.layout_digest
            if digest not in self._layouts:
                if len(self._layouts) >= _MAX_LAYOUTS:
                    self._layouts.clear()
                self._layouts[digest] = self._control.get_layout(self._model, digest)
            found[digest] = self._layouts[digest]
        return found


class _Attempt:
    """What has been tried for the version that is being staged."""

    def __init__(self) -> None:
        self.version = 0
        self.excluded: set[str] = set()
        self.failure: TransferError | None = None
        self._overwritten: set[str] = set()

    def begin(self, assignment: Assignment) -> None:
        """Another version is another attempt."""
        if assignment.pull.version != self.version:
            self.version = assignment.pull.version
            self.excluded.clear()
            self._overwritten.clear()
            self.failure = None

    def exclude(self, source: str, reason: PullFailure) -> None:
        """Do not ask this source again. One that was overwritten may offer the version again: that is tried once."""
        if reason is not PullFailure.SOURCE_OVERWRITTEN or source in self._overwritten:
            self.excluded.add(source)
        self._overwritten.add(source)
