"""What Trainer and Rollout have in common: a process that is a member of its model's fleet."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self

from weightcast.client import ControlPlane
from weightcast.contract.names import Role
from weightcast.contract.workers import RegisterWorker
from weightcast.session import OnRegistered, WorkerSession
from weightcast.settings import WorkerSettings


class Member(ABC):
    """One rank: its connection, its session, and their end.

    ``_parts`` closes what was begun, last first: the rank leaves before what it serves or reads with goes away.
    """

    _control: ControlPlane
    _session: WorkerSession

    def __init__(self, role: Role, model: str, rank: int, world_size: int, settings: WorkerSettings | None) -> None:
        self._settings = settings or WorkerSettings()
        self._role = role
        self.model, self.rank, self.world_size = model, rank, world_size
        self._parts = ExitStack()

    @property
    def worker_id(self) -> str:
        """This rank's id at the control plane."""
        return self._session.identity.worker_id

    def close(self) -> None:
        """Leave, then end everything else. Idempotent."""
        self._parts.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _connect(self, on_registered: Sequence[OnRegistered] = ()) -> None:
        """Make the connection and the session; nothing is sent before the session is started."""
        self._control = self._settings.control_plane()
        self._parts.callback(self._control.close)
        self._session = WorkerSession(self._control, self._body, on_registered=on_registered)
        self._parts.callback(self._session.close, self._settings.leave_timeout_seconds)

    @abstractmethod
    def _body(self, previous_epoch: int) -> RegisterWorker:
        """The registration with the facts of now."""

    def _registration(self, **facts: Any) -> RegisterWorker:
        """A registration of this rank; the session fills in incarnation and previous epoch."""
        return RegisterWorker(
            model=self.model,
            role=self._role,
            rank=self.rank,
            world_size=self.world_size,
            incarnation="0" * 32,
            host=self._settings.worker_host,
            rack=self._settings.worker_rack,
            zone=self._settings.worker_zone,
            **facts,
        )
