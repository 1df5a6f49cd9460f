"""A worker's membership: registered under a rank, kept alive by a thread, registered again when it was forgotten."""

from __future__ import annotations

import copy
import os
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Final, Self, TypeVar

from weightcast.client import ControlPlane, Identity
from weightcast.client.backoff import Backoff, check_seconds
from weightcast.contract.workers import RegisterWorker, Registration
from weightcast.errors import (
    ControlPlaneError,
    Fenced,
    ForkUnsupported,
    InvalidArgument,
    LeaseExpired,
    ServerUnavailable,
    SessionClosed,
    UnknownWorker,
    WeightcastError,
)
from weightcast.heartbeat import Outage, Schedule
from weightcast.logs import get_logger

T = TypeVar("T")
Build = Callable[[int], RegisterWorker]
OnRegistered = Callable[[Registration], None]

_LOST_IDENTITY: Final = (LeaseExpired, UnknownWorker, Fenced)
"""Answers after which the identity that was used is no good. Fenced may be this process's own newer registration whose
answer was lost, so it is believed only when registering again (same incarnation) is refused as well."""

_MAX_BACKOFF_SECONDS: Final = 2.0
_MAX_TRY_SECONDS: Final = 5.0

_log = get_logger("weightcast.session")


class WorkerSession:
    """One process as one worker.

    ``build(previous_epoch)`` makes the body of each registration with the facts of that moment (memory, highest and
    serving version, tainted); the session fills in its incarnation. Any thread may call it, and it must be quick.
    `start` returns the first registration. ``on_registered`` callbacks get every later one, in a thread of their own,
    so that announcing holdings again never delays a heartbeat; they may use `call`.

    The heartbeat thread has its own connection, takes no lock that anything slow holds, and waits for the GIL about
    three times per beat (see `weightcast.client.pulse`): threads that compute in Python do not cost the lease.
    """

    def __init__(self, control: ControlPlane, build: Build, *, on_registered: Sequence[OnRegistered] = ()) -> None:
        self.incarnation = uuid.uuid4().hex
        self._control = control
        self._pulse = control.pulse()
        self._build = build
        self._callbacks = list(on_registered)
        self._pid = os.getpid()
        self._stop = threading.Event()
        self._registering = threading.Lock()
        self._announcing = threading.Lock()
        self._announcer: threading.Thread | None = None
        self._registration: Registration | None = None
        self._announced_epoch = 0
        self._fenced: Fenced | None = None
        self._lease_seconds = self._interval = 1.0
        self._thread = threading.Thread(target=self._run, name="weightcast-heartbeat", daemon=True)

    @property
    def identity(self) -> Identity:
        """Worker id and epoch of the current registration, for fenced calls.

        Raises:
            Fenced: a newer process has this rank.
            SessionClosed: not started, or closed.
            ForkUnsupported: used in a forked child.
        """
        self._check_process()
        if self._fenced is not None:
            raise copy.copy(self._fenced)
        registration = self._registration
        if registration is None or self._stop.is_set():
            raise SessionClosed("The worker is not registered: its session was not started or has been closed.")
        return Identity(registration.worker_id, registration.epoch)

    @property
    def fenced(self) -> bool:
        """Whether a newer process has taken this rank. Final."""
        return self._fenced is not None

    @property
    def registered(self) -> bool:
        """Whether the session is started, not closed and not fenced (the server may still be away)."""
        return self._registration is not None and not self._stop.is_set() and self._fenced is None

    def start(self, deadline: float | None = None) -> Registration:
        """Register and begin to beat.

        Raises:
            ControlPlaneError: refused (ModelOwned, ReplicaConflict, Unauthorized …) or no answer within ``deadline``.
        """
        self._check_process()
        if self._registration is not None or self._stop.is_set():
            raise InvalidArgument("The session was started before; create a new one.")
        registration = self._register(0, deadline, once=False)
        self._announced_epoch = registration.epoch
        self._thread.start()
        return registration

    def call(self, fn: Callable[[Identity], T], *, deadline: float | None = None) -> T:
        """Make a fenced call as the current identity; when the server no longer knows it, register and repeat once.

        ``deadline`` bounds the registration in between; ``fn`` has its own.

        Raises:
            Fenced: a newer process has this rank; every later call says so too.
        """
        me = self.identity
        try:
            return fn(me)
        except _LOST_IDENTITY as error:
            _log.info("identity_lost", worker=me.worker_id, epoch=me.epoch, code=error.code)
        self._renew(me, deadline, patience=30.0 if deadline is None else deadline, once=False)
        return fn(self.identity)

    def register_again(self, *, deadline: float | None = None) -> None:
        """Register anew, to correct what the server believes of this worker: a new epoch with the facts of now."""
        self._renew(self.identity, deadline, patience=30.0 if deadline is None else deadline, once=False)

    def close(self, timeout: float = 3.0) -> None:
        """Leave: the server forgets what this worker holds. Takes at most ``timeout`` seconds; idempotent."""
        ends = time.monotonic() + check_seconds("timeout", timeout)
        if os.getpid() != self._pid or self._stop.is_set():
            return
        self._stop.set()
        self._pulse.interrupt()
        self._join(self._thread, timeout / 2)
        registration = self._registration
        if registration is not None and self._fenced is None:
            me = Identity(registration.worker_id, registration.epoch)
            try:
                self._control.leave(me, deadline=max(0.0, ends - time.monotonic()))
            except WeightcastError as error:
                _log.info("goodbye_unanswered", worker=me.worker_id, epoch=me.epoch, error=str(error))
        for thread in (self._thread, self._announcer):
            self._join(thread, ends - time.monotonic())
        self._pulse.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _check_process(self) -> None:
        if (pid := os.getpid()) != self._pid:
            raise ForkUnsupported("The worker session", self._pid, pid)

    def _register(self, previous: int, deadline: float | None, *, once: bool) -> Registration:
        body = self._build(previous).model_copy(update={"incarnation": self.incarnation, "previous_epoch": previous})
        registration = self._control.register(body, deadline=deadline, once=once)
        self._lease_seconds = registration.lease_seconds
        self._interval = max(registration.heartbeat_seconds, 0.01)
        self._registration = registration
        _log.info("registered", worker=registration.worker_id, epoch=registration.epoch, model=body.model)
        return registration

    def _renew(self, lost: Identity, deadline: float | None, *, patience: float, once: bool) -> None:
        """Register again unless another thread has meanwhile; returns without it when that takes over ``patience``."""
        if not self._registering.acquire(timeout=patience):
            return
        try:
            if self.identity != lost:
                return
            registration = self._register(lost.epoch, deadline, once=once)
        except Fenced as error:
            if self._fenced is None:
                _log.error("fenced", worker=lost.worker_id, epoch=lost.epoch, detail=error.detail)
                self._fenced = error
            raise
        finally:
            self._registering.release()
        self._announce(registration)

    def _announce(self, registration: Registration) -> None:
        """Run the callbacks in a thread, one at a time; a registration during a run is announced after it."""
        with self._announcing:
            if not self._callbacks or (self._announcer is not None and self._announcer.is_alive()):
                return
            name = f"weightcast-announce-{registration.epoch}"
            self._announcer = threading.Thread(target=self._run_callbacks, name=name, daemon=True)
            self._announcer.start()

    def _run_callbacks(self) -> None:
        backoff = Backoff(cap=_MAX_BACKOFF_SECONDS)
        while True:
            with self._announcing:
                registration = self._registration
                done = registration is None or registration.epoch == self._announced_epoch
                if registration is None or done or self._fenced or self._stop.is_set():
                    self._announcer = None
                    return
            try:
                for callback in self._callbacks:
                    callback(registration)
            except (ServerUnavailable, *_LOST_IDENTITY) as error:
                _log.info("announcement_repeated", worker=registration.worker_id, error=str(error))
                self._stop.wait(backoff.next())
                continue
            except Exception:
                _log.exception("announcement_failed", worker=registration.worker_id, epoch=registration.epoch)
            self._announced_epoch = registration.epoch

    def _run(self) -> None:
        schedule = Schedule(self._interval, time.monotonic())
        outage = Outage()
        backoff = Backoff(cap=_MAX_BACKOFF_SECONDS)
        while not self._stop.wait(schedule.delay(time.monotonic())):
            try:
                self._beat()
            except (Fenced, SessionClosed):
                return
            except Exception as error:
                if self._stop.is_set():
                    return
                self._complain(error, outage.failed(time.monotonic()))
                # Never so long that a server which is back would find the lease run out.
                longest = max(self._lease_seconds / 6, 0.05)
                schedule.again_in(min(backoff.next(), longest), time.monotonic())
                continue
            backoff.reset()
            now = time.monotonic()
            if (seconds := outage.ended(now)) is not None:
                _log.info("server_is_back", url=self._control.url, away_seconds=round(seconds, 1))
            schedule.beaten(now, self._interval)

    def _beat(self) -> None:
        me = self.identity
        seconds = min(max(self._lease_seconds / 3, 0.5), _MAX_TRY_SECONDS)
        try:
            answer = self._pulse.beat(me, seconds)
        except _LOST_IDENTITY as error:
            _log.info("identity_lost", worker=me.worker_id, epoch=me.epoch, code=error.code)
            self._renew(me, seconds, patience=0.0, once=True)
        else:
            self._lease_seconds = answer.lease_seconds
            self._interval = max(answer.heartbeat_seconds, 0.01)

    def _complain(self, error: Exception, aloud: bool) -> None:
        if not isinstance(error, WeightcastError):
            _log.exception("heartbeat_broken")
        elif aloud:
            code = error.code if isinstance(error, ControlPlaneError) else ""
            _log.warning("server_does_not_answer", url=self._control.url, code=code, error=str(error))

    def _join(self, thread: threading.Thread | None, seconds: float) -> None:
        if thread is not None and thread.is_alive() and thread is not threading.current_thread():
            thread.join(max(0.0, seconds))
