"""A published version in the trainer's hands."""

from __future__ import annotations

from typing import Literal, Protocol

from weightcast.contract.versions import Version
from weightcast.engines.source import WrittenSlot


class Publisher(Protocol):
    """Who published it: a :class:`weightcast.trainer.Trainer`."""

    def wait_for(
        self, version: int, what: Literal["ready", "applied"], timeout: float, replicas: int | None = None
    ) -> Version:
        """Wait until a version is ready or applied."""

    def withdraw(self, version: int, timeout: float) -> bool:
        """Stop offering a version from this rank."""

    def abort(self, version: int, reason: str) -> Version:
        """Give a version up."""


class PublishedVersion:
    """What :meth:`Trainer.publish` returns: a version in which this rank's shard is in.

    Attributes:
        version: its number.
        step: the training step it was published for.
        nbytes: bytes of this rank's shard.
        seconds: time that :meth:`Trainer.publish` took.
        copy_seconds: the part of it in which the weights were copied and digested.
    """

    def __init__(self, publisher: Publisher, version: Version, written: WrittenSlot, seconds: float) -> None:
        self._publisher = publisher
        self.version = version.version
        self.step = version.step
        self.nbytes = written.nbytes
        self.seconds = seconds
        self.copy_seconds = written.seconds

    def wait_ready(self, timeout: float = 600.0) -> Version:
        """Wait until every rank's shard is in.

        Raises:
            VersionFailed: it never will be.
            DeadlineExceeded: not within ``timeout`` seconds; it may still become READY.
        """
        return self._publisher.wait_for(self.version, "ready", timeout)

    def wait_applied(self, replicas: int | None = None, timeout: float = 600.0) -> Version:
        """Wait until replicas compute with this version or a newer one.

        Args:
            replicas: how many; by default every replica that is alive, and at least one.
            timeout: seconds.

        Raises:
            VersionFailed: it can never be applied.
            DeadlineExceeded: naming how many have applied it.
        """
        return self._publisher.wait_for(self.version, "applied", timeout, replicas)

    def wait_drained(self, timeout: float = 60.0) -> bool:
        """Withdraw this rank's copy and wait until nobody reads it. False when readers were left behind at the end.

        Other trainer ranks' copies of the same shard stay readable.
        """
        return self._publisher.withdraw(self.version, timeout)

    def abort(self, reason: str = "") -> Version:
        """Give the version up while it is not READY: it fails for all ranks.

        Raises:
            VersionConflict: it is READY already.
        """
        return self._publisher.abort(self.version, reason)
