"""What a training process uses: publish a version, and see it applied."""

from __future__ import annotations

import threading
import time
from typing import Final, Literal

from weightcast.client.backoff import check_seconds
from weightcast.contract.layout import Layout
from weightcast.contract.names import MAX_WAIT_SECONDS, Role, VersionState
from weightcast.contract.versions import OpenVersion, Version
from weightcast.contract.workers import RegisterWorker, Registration
from weightcast.engines.digest import DEFAULT_BUCKET_NBYTES
from weightcast.engines.source import DEFAULT_SLOTS, ResidentSource
from weightcast.errors import (
    DeadlineExceeded,
    InvalidArgument,
    ServerUnavailable,
    VersionConflict,
    VersionFailed,
)
from weightcast.layout import Weights, build_layout, named_tensors
from weightcast.logs import get_logger
from weightcast.member import Member
from weightcast.offers import Offer, Offers
from weightcast.published import PublishedVersion
from weightcast.settings import WorkerSettings

_log = get_logger("weightcast.trainer")

_MAX_ATTEMPTS: Final = 1000


class Trainer(Member):
    """One trainer rank: owns an arena that rollouts read, and publishes versions from it.

    Args:
        weights: a module, a mapping of names to tensors, or a function that returns one; looked at anew each time.
        run: the training job. One run owns a model at a time.
        model: the name under which versions are published.
        rank: this trainer's rank.
        world_size: trainer ranks that publish together.
        shards: distinct shards among them. 1 (data parallel): every rank has all weights, and ranks are interchangeable
            sources. More: rank r holds shard ``r % shards``, and shards hold disjoint tensors.
        slots: versions kept readable at once. Memory: ``slots`` copies of this rank's weights, in host memory.
        bucket_nbytes: bytes covered by one digest.
        drain_timeout: seconds (at most 60) that slow readers may keep a slot from being overwritten.
        version_timeout: seconds after which a version that not all ranks have published fails.
        settings: where the server is, and timeouts; by default from ``WEIGHTCAST_*``.

    Raises:
        LayoutError: some weights cannot be published; all are listed.
        OutOfMemoryError: the arena does not fit.
        ModelOwned: trainers of another run are publishing this model.
        ServerUnavailable: no server there.
    """

    def __init__(
        self,
        weights: Weights,
        *,
        run: str,
        model: str = "policy",
        rank: int = 0,
        world_size: int = 1,
        shards: int = 1,
        slots: int = DEFAULT_SLOTS,
        bucket_nbytes: int = DEFAULT_BUCKET_NBYTES,
        drain_timeout: float = 30.0,
        version_timeout: float = 600.0,
        settings: WorkerSettings | None = None,
    ) -> None:
        if slots < 1 or bucket_nbytes < 1 or shards < 1:
            raise InvalidArgument("slots, bucket_nbytes and shards must be at least 1")
        super().__init__(Role.TRAINER, model, rank, world_size, settings)
        self._weights = weights
        self.run, self.shards = run, shards
        self._drain_timeout = check_seconds("drain_timeout", drain_timeout)
        self._version_timeout = check_seconds("version_timeout", version_timeout)
        self.layout: Layout = build_layout(named_tensors(weights))
        self._highest = 0
        self._seen_failed: set[int] = set()
        self._lock = threading.Lock()
        self._source = ResidentSource(model, self.layout, slots=slots, bucket_nbytes=bucket_nbytes)
        self._parts.callback(self._source.close)
        try:
            self.agent_info = self._source.agent_info()
            self.memory = self._source.memory()
            self._connect([self._announce])
            self._offers = Offers(self._source, self._session, self._control, model, rank, rank % shards)
            self._registered_at = self._session.start().registered_at
            self._session.call(lambda me: self._control.put_layout(me, model, self.layout))
        except BaseException:
            self.close()
            raise

    def publish(self, *, step: int, weights: Weights | None = None) -> PublishedVersion:
        """Copy the weights into the arena and offer them as the next version.

        Returns when this rank's shard is in; the version is READY when every rank's is. The weights may be changed as
        soon as this returns. Call it on all ranks for the same steps.

        Args:
            step: the training step, for people and as the key under which ranks meet; it may go back, versions do not.
            weights: instead of those given at the start; names, dtypes and shapes must be the same.

        Raises:
            VersionFailed: another rank failed it, ranks differ, or it was too late.
            LayoutMismatch: the weights are not what they were at the start.
            Fenced: a newer process has this rank.
            ServerUnavailable: the server did not answer. Publish the same step again: if this call had reached the
                server, its version is returned with the weights of this call.
        """
        started = time.perf_counter()
        tensors = named_tensors(self._weights if weights is None else weights)
        with self._lock:
            self._source.check(tensors)
            version, offer = self._open(step)
            if offer is None:
                slot = self._offers.slot_for(self._seen_failed | {version.version})
                self._offers.withdraw(slot, self._drain_timeout)
                epoch = self._session.identity.epoch
                written = self._source.write(slot, version.version, epoch, tensors)
            else:
                written = offer.written
            try:
                if offer is None:
                    version = self._offers.publish(version.version, written, epoch)
                else:
                    version = self._offers.send(written.slot)
            except VersionConflict as error:
                failure = self._failure_of(version.version)
                raise failure or error from error
        if version.state is VersionState.FAILED:
            raise self._failed(version)
        return PublishedVersion(self, version, written, time.perf_counter() - started)

    def wait_for(
        self, version: int, what: Literal["ready", "applied"], timeout: float, replicas: int | None = None
    ) -> Version:
        """Wait until a version is ``ready`` or ``applied``; see :class:`PublishedVersion`."""
        ends = time.monotonic() + check_seconds("timeout", timeout)
        while True:
            wait = max(0.0, min(ends - time.monotonic(), MAX_WAIT_SECONDS / 2))
            try:
                found = self._control.version(self.model, version, wait_for=what, wait=wait, replicas=replicas)
            except ServerUnavailable:
                if time.monotonic() >= ends:
                    raise
                continue  # it has been tried for long already, with pauses
            if found.state is VersionState.FAILED:
                raise self._failed(found)
            wanted = max(found.live_replicas, 1) if replicas is None else replicas
            if found.state is VersionState.READY and (what == "ready" or len(found.applied) >= wanted):
                return found
            if time.monotonic() >= ends:
                state = f"published by ranks {found.published}" if what == "ready" else f"applied by {found.applied}"
                raise DeadlineExceeded(f"Version {version} of {self.model}, {state}: {what}", timeout)

    def withdraw(self, version: int, timeout: float) -> bool:
        """Stop offering a version from this rank; see :meth:`PublishedVersion.wait_drained`."""
        with self._lock:
            return self._offers.withdraw_version(version, check_seconds("timeout", timeout))

    def abort(self, version: int, reason: str) -> Version:
        """Give a version up; see :meth:`PublishedVersion.abort`."""
        return self._session.call(lambda me: self._control.abort_version(me, self.model, version, reason))

    def _body(self, _previous_epoch: int) -> RegisterWorker:
        return self._registration(
            run=self.run, agents=[self.agent_info], memory=self.memory, highest_version=self._highest
        )

    def _announce(self, registration: Registration) -> None:
        with self._lock:
            self._registered_at = registration.registered_at
            self._session.call(lambda me: self._control.put_layout(me, self.model, self.layout))
            self._offers.announce()

    def _open(self, step: int) -> tuple[Version, Offer | None]:
        """The version for this step: all ranks come to the same one.

        With it this rank's offer, where an earlier call reached the server but its answer was lost.
        """
        for attempt in range(_MAX_ATTEMPTS):
            version = self._ask(step, attempt)
            if version.state is VersionState.FAILED:
                if self._is_news(version):
                    raise self._failed(version)
            elif self.rank in version.published:
                offer = self._offers.of(version.version)
                if offer is not None and not offer.confirmed:
                    return version, offer
                if version.state is VersionState.STAGING:
                    # This rank has begun the step anew. Were the attempt left open, others could complete it, and it
                    # would be made of two different tries.
                    self._give_up(version)
            elif version.state is VersionState.STAGING:
                return version, None
        raise InvalidArgument(f"Step {step} of run {self.run} was published {_MAX_ATTEMPTS} times: use another step.")

    def _ask(self, step: int, attempt: int) -> Version:
        body = OpenVersion(
            run=self.run,
            step=step,
            attempt=attempt,
            world_size=self.world_size,
            shards=self.shards,
            deadline_seconds=self._version_timeout,
        )
        version = self._session.call(lambda me: self._control.open_version(me, self.model, body))
        self._highest = max(self._highest, version.version)
        return version

    def _give_up(self, version: Version) -> None:
        try:
            self.abort(version.version, f"rank {self.rank} has begun step {version.step} anew")
        except VersionConflict as error:
            _log.info("version completed meanwhile", version=version.version, code=error.code)
        else:
            self._seen_failed.add(version.version)

    def _is_news(self, version: Version) -> bool:
        """Whether this rank has to be told that a version failed: it ended in this registration, and was not told."""
        return version.version not in self._seen_failed and (version.failed_at or 0.0) >= self._registered_at

    def _failed(self, version: Version) -> VersionFailed:
        """The error for a failed version; from then on this rank has been told."""
        self._seen_failed.add(version.version)
        return VersionFailed(version.version, version.failure, version.reason, self.model)

    def _failure_of(self, version: int) -> VersionFailed | None:
        found = self._control.version(self.model, version)
        return self._failed(found) if found.state is VersionState.FAILED else None
