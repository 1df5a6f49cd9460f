"""What a training process uses: publish a version, and see it applied."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Literal, Self

from weightcast.client import ControlPlane, Identity
from weightcast.client.backoff import check_seconds
from weightcast.contract.layout import Layout
from weightcast.contract.names import MAX_WAIT_SECONDS, Role, VersionState
from weightcast.contract.problems import Code
from weightcast.contract.versions import OpenVersion, PublishShard, Version
from weightcast.contract.workers import RegisterWorker, Registration
from weightcast.engines.digest import DEFAULT_BUCKET_NBYTES
from weightcast.engines.source import DEFAULT_SLOTS, ResidentSource, WrittenSlot
from weightcast.errors import ControlPlaneError, DeadlineExceeded, NotFound, VersionConflict, VersionFailed
from weightcast.layout import Weights, build_layout, named_tensors
from weightcast.logs import get_logger
from weightcast.published import PublishedVersion
from weightcast.session import WorkerSession
from weightcast.settings import WorkerSettings

_log = get_logger("weightcast.trainer")

_MAX_ATTEMPTS: Final = 1000


@dataclass(frozen=True, slots=True)
class _Offered:
    """A version that a slot offers to readers, and the epoch in which it does."""

    version: int
    body: PublishShard
    epoch: int


class Trainer:
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
        drain_timeout: seconds that a slow reader may keep a slot from being overwritten; after that it is cut off.
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
        self._settings = settings or WorkerSettings()
        self._weights = weights
        self.model, self.run, self.rank, self.world_size, self.shards = model, run, rank, world_size, shards
        self._drain_timeout = check_seconds("drain_timeout", drain_timeout)
        self._version_timeout = check_seconds("version_timeout", version_timeout)
        self.layout: Layout = build_layout(named_tensors(weights))
        self._highest = 0
        self._offers: dict[int, _Offered] = {}
        self._seen_failed: set[int] = set()
        self._lock = threading.Lock()
        self._source = ResidentSource(model, self.layout, slots=slots, bucket_nbytes=bucket_nbytes)
        self._control: ControlPlane | None = None
        try:
            self.agent_info = self._source.agent_info()
            self.memory = self._source.memory()
            self._control = self._settings.control_plane()
            self._session = WorkerSession(self._control, self._body, on_registered=[self._announce])
            self._registered_at = self._session.start().registered_at
            self._session.call(lambda me: self._api.put_layout(me, model, self.layout))
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
            ServerUnavailable: the server did not answer; the same step may be published again.
        """
        started = time.perf_counter()
        tensors = named_tensors(self._weights if weights is None else weights)
        with self._lock:
            self._source.check(tensors)
            version = self._open(step)
            slot = self._slot_for(version.version)
            self._withdraw_slot(slot, self._drain_timeout)
            epoch = self._session.identity.epoch
            written = self._source.write(slot, version.version, epoch, tensors)
            version = self._offer(version, slot, epoch, written)
        return PublishedVersion(self, version, written, time.perf_counter() - started)

    def wait_for(
        self, version: int, what: Literal["ready", "applied"], timeout: float, replicas: int | None = None
    ) -> Version:
        """Wait until a version is ``ready`` or ``applied``; see :class:`PublishedVersion`."""
        ends = time.monotonic() + check_seconds("timeout", timeout)
        while True:
            wait = max(0.0, min(ends - time.monotonic(), MAX_WAIT_SECONDS / 2))
            found = self._api.version(self.model, version, wait_for=what, wait=wait, replicas=replicas)
            if found.state is VersionState.FAILED:
                raise VersionFailed(version, found.failure, found.reason, self.model)
            wanted = max(found.live_replicas, 1) if replicas is None else replicas
            if found.state is VersionState.READY and (what == "ready" or len(found.applied) >= wanted):
                return found
            if time.monotonic() >= ends:
                state = f"published by ranks {found.published}" if what == "ready" else f"applied by {found.applied}"
                raise DeadlineExceeded(f"Version {version} of {self.model}, {state}: {what}", timeout)

    def withdraw(self, version: int, timeout: float) -> bool:
        """Stop offering a version from this rank; see :meth:`PublishedVersion.wait_drained`."""
        with self._lock:
            for slot, offer in list(self._offers.items()):
                if offer.version == version:
                    return self._withdraw_slot(slot, check_seconds("timeout", timeout))
        return True

    def abort(self, version: int, reason: str) -> Version:
        """Give a version up; see :meth:`PublishedVersion.abort`."""
        return self._session.call(lambda me: self._api.abort_version(me, self.model, version, reason))

    @property
    def worker_id(self) -> str:
        """This rank's id at the control plane."""
        return self._session.identity.worker_id

    def close(self) -> None:
        """Leave, then stop serving: versions that only this rank holds are gone for new readers."""
        session = getattr(self, "_session", None)
        if session is not None:
            session.close(self._settings.leave_timeout_seconds)
        if self._control is not None:
            self._control.close()
        self._source.close()

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
            role=Role.TRAINER,
            rank=self.rank,
            world_size=self.world_size,
            incarnation="0" * 32,
            run=self.run,
            host=self._settings.worker_host,
            rack=self._settings.worker_rack,
            zone=self._settings.worker_zone,
            agents=[self.agent_info],
            memory=self.memory,
            highest_version=self._highest,
        )

    def _announce(self, registration: Registration) -> None:
        """After the server forgot this worker: offer what the slots still hold under the new epoch."""
        with self._lock:
            self._registered_at = registration.registered_at
            self._session.call(lambda me: self._api.put_layout(me, self.model, self.layout))
            for slot, offer in list(self._offers.items()):
                try:
                    self._offer_again(slot, offer)
                except (NotFound, VersionConflict) as error:
                    _log.info("version not offered again", version=offer.version, code=error.code)
                    del self._offers[slot]

    def _open(self, step: int) -> Version:
        """The version for this step that this rank has not published yet: all ranks come to the same one."""
        for attempt in range(_MAX_ATTEMPTS):
            body = OpenVersion(
                run=self.run,
                step=step,
                attempt=attempt,
                world_size=self.world_size,
                shards=self.shards,
                deadline_seconds=self._version_timeout,
            )
            version = self._session.call(lambda me, body=body: self._api.open_version(me, self.model, body))  # type: ignore[misc]
            self._highest = max(self._highest, version.version)
            if version.state is VersionState.STAGING and self.rank not in version.published:
                return version
            if version.state is VersionState.FAILED and self._is_news(version):
                raise VersionFailed(version.version, version.failure, version.reason, self.model)
        raise VersionFailed(
            version.version, version.failure, f"step {step} was tried {_MAX_ATTEMPTS} times", self.model
        )

    def _is_news(self, version: Version) -> bool:
        """Whether this rank has to be told that a version failed: it ended in this registration, and was not told."""
        if version.version in self._seen_failed or (version.failed_at or 0.0) < self._registered_at:
            return False
        self._seen_failed.add(version.version)
        return True

    def _slot_for(self, version: int) -> int:
        """The slot that already holds this version (a repeated publish), else the one with the oldest."""
        held = [self._source.held(slot).version for slot in range(self._source.slots)]
        return held.index(version) if version in held else held.index(min(held))

    def _withdraw_slot(self, slot: int, timeout: float) -> bool:
        offer = self._offers.pop(slot, None)
        drained = True
        if offer is not None:
            wait = min(timeout, MAX_WAIT_SECONDS)
            try:
                answer = self._session.call(lambda me: self._api.drain(me, self.model, offer.version, wait=wait))
            except NotFound:
                pass  # the server has forgotten the version: nobody is sent here for it
            else:
                drained = answer.drained
            if not drained:
                _log.warning("readers cut off", version=offer.version, readers=answer.readers, waited_seconds=wait)
        self._source.invalidate(slot)
        return drained

    def _offer(self, version: Version, slot: int, epoch: int, written: WrittenSlot) -> Version:
        body = PublishShard(
            shard=self.rank % self.shards,
            layout_digest=self._source.layout_digest,
            digest_root=written.digest_root,
            nbytes=written.nbytes,
            memory_slot=slot,
            slot_generation=written.generation,
        )
        stamped = epoch

        def put(me: Identity) -> Version:
            nonlocal stamped, body
            if me.epoch != stamped:  # registered again meanwhile: the header must say so
                body = body.model_copy(update={"slot_generation": self._source.restamp(slot, me.epoch)})
                stamped = me.epoch
            return self._publish_shard(me, version.version, body)

        try:
            answer = self._session.call(put)
        except ControlPlaneError as error:
            failed = self._failure_of(version.version) if isinstance(error, VersionConflict) else None
            if failed is not None:
                raise failed from error
            raise
        if answer.state is VersionState.FAILED:
            raise VersionFailed(answer.version, answer.failure, answer.reason, self.model)
        self._offers[slot] = _Offered(version.version, body, stamped)
        return answer

    def _publish_shard(self, me: Identity, version: int, body: PublishShard) -> Version:
        try:
            return self._api.publish_shard(me, self.model, version, self.rank, body)
        except NotFound as error:
            if error.code != Code.UNKNOWN_LAYOUT:
                raise
            self._api.put_layout(me, self.model, self.layout)
            return self._api.publish_shard(me, self.model, version, self.rank, body)

    def _offer_again(self, slot: int, offer: _Offered) -> None:
        """Offer a slot under the present epoch. Its header changes once per epoch: readers may be on their way."""

        def put(me: Identity) -> None:
            nonlocal offer
            if me.epoch != offer.epoch:
                body = offer.body.model_copy(update={"slot_generation": self._source.restamp(slot, me.epoch)})
                offer = self._offers[slot] = _Offered(offer.version, body, me.epoch)
            self._publish_shard(me, offer.version, offer.body)

        self._session.call(put)

    def _failure_of(self, version: int) -> VersionFailed | None:
        found = self._api.version(self.model, version)
        if found.state is not VersionState.FAILED:
            return None
        self._seen_failed.add(version)
        return VersionFailed(version, found.failure, found.reason, self.model)
