"""A worker's membership against the real server: kept, renewed, ended."""

from __future__ import annotations

import itertools
import multiprocessing
import threading
import time
from multiprocessing.connection import Connection

import pytest
from support.server import ServerProcess
from support.sessions import LEASE, eventually, trainer
from weightcast.client import ControlPlane, Identity
from weightcast.contract.names import WorkerState
from weightcast.contract.workers import RegisterWorker, Registration
from weightcast.errors import (
    Fenced,
    ForkUnsupported,
    InvalidArgument,
    LeaseExpired,
    ModelOwned,
    ServerUnavailable,
    SessionClosed,
)
from weightcast.session import WorkerSession


def test_a_session_outlives_its_lease_and_leaves(control: ControlPlane, model: str) -> None:
    with WorkerSession(control, trainer(model)) as session:
        registration = session.start()
        assert session.identity == Identity(f"{model}:trainer:0", registration.epoch)
        time.sleep(1.8 * LEASE)
        worker = control.worker(f"{model}:trainer:0")
        assert (worker.state, worker.epoch) == (WorkerState.LIVE, 1)
        assert worker.heartbeat_age_seconds is not None
        assert worker.heartbeat_age_seconds < LEASE / 2
    assert control.worker(f"{model}:trainer:0").state is WorkerState.LEFT
    assert not any(thread.name == "weightcast-heartbeat" for thread in threading.enumerate())
    with pytest.raises(SessionClosed):
        session.call(lambda me: me)
    session.close()


def test_a_call_registers_again_and_is_repeated(control: ControlPlane, model: str) -> None:
    with WorkerSession(control, trainer(model)) as session:
        session.start()
        used: list[int] = []

        def beat(me: Identity) -> float:
            used.append(me.epoch)
            return control.heartbeat(me).lease_seconds

        control.leave(session.identity)
        assert session.call(beat) == LEASE
        assert used[-1] == session.identity.epoch == 2


def test_a_call_is_repeated_once_only(control: ControlPlane, model: str) -> None:
    with WorkerSession(control, trainer(model)) as session:
        session.start()
        tries: list[Identity] = []

        def never(me: Identity) -> None:
            tries.append(me)
            raise LeaseExpired("always")

        with pytest.raises(LeaseExpired):
            session.call(never)
        assert [me.epoch for me in tries] == [1, 1]  # The server knew this process: its answer was the same epoch.


def test_a_fenced_session_says_so_for_ever(control: ControlPlane, model: str) -> None:
    with WorkerSession(control, trainer(model)) as old, WorkerSession(control, trainer(model)) as new:
        old.start()
        new.start()
        with pytest.raises(Fenced, match="replaced"):
            old.call(control.heartbeat)
        assert old.fenced
        assert not old.registered
        for _ in range(2):
            with pytest.raises(Fenced):
                old.call(lambda me: me)
        old.close()
        assert control.worker(f"{model}:trainer:0").state is WorkerState.LIVE


class Forgetful(ControlPlane):
    """Loses the server's answer to every second registration."""

    count = itertools.count(1)

    def register(self, body: RegisterWorker, *, deadline: float | None = None, once: bool = False) -> Registration:
        registration = super().register(body, deadline=deadline, once=once)
        if next(self.count) % 2 == 0:
            raise ServerUnavailable("the answer was lost")
        return registration


def test_a_lost_answer_to_a_registration_does_not_fence(shared: ServerProcess, model: str) -> None:
    with Forgetful(shared.url) as control, WorkerSession(control, trainer(model)) as session:
        assert session.start().epoch == 1
        control.leave(session.identity)
        # Epoch 2 is registered, but this process does not know: its next beat is answered stale_epoch.
        eventually(lambda: session.fenced or session.identity.epoch == 2)
        assert not session.fenced
        assert control.worker(f"{model}:trainer:0").state is WorkerState.LIVE


def test_a_slow_announcement_delays_no_heartbeat(control: ControlPlane, model: str) -> None:
    done: list[int] = []
    tries: list[int] = []

    def announce(registration: Registration) -> None:
        tries.append(registration.epoch)
        if len(tries) == 1:
            raise ServerUnavailable("busy")
        time.sleep(1.8 * LEASE)
        done.append(registration.epoch)

    with WorkerSession(control, trainer(model), on_registered=[announce]) as session:
        session.start()
        control.leave(session.identity)
        eventually(lambda: bool(done))
        assert tries == [2, 2]
        assert done == [2]
        assert control.worker(f"{model}:trainer:0").state is WorkerState.LIVE
        assert session.identity.epoch == 2


def test_refusals_reach_the_caller_of_start(control: ControlPlane, model: str) -> None:
    with WorkerSession(control, trainer(model)) as owner:
        owner.start()
        with WorkerSession(control, trainer(model, "run-2")) as other, pytest.raises(ModelOwned, match="run-1"):
            other.start()
        with pytest.raises(InvalidArgument, match="started before"):
            owner.start()


def test_calls_before_the_start_are_refused(control: ControlPlane, model: str) -> None:
    with WorkerSession(control, trainer(model)) as session, pytest.raises(SessionClosed):
        session.call(lambda me: me)


def _use_in_child(session: WorkerSession, results: Connection) -> None:
    try:
        session.call(lambda me: me)
    except ForkUnsupported as error:
        results.send(str(error))
    session.close()


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_is_told_and_does_not_say_goodbye(control: ControlPlane, model: str) -> None:
    with WorkerSession(control, trainer(model)) as session:
        session.start()
        ours, theirs = multiprocessing.Pipe()
        child = multiprocessing.get_context("fork").Process(target=_use_in_child, args=(session, theirs))
        child.start()
        assert ours.poll(10)
        assert "spawn" in ours.recv()
        child.join(10)
        assert control.worker(f"{model}:trainer:0").state is WorkerState.LIVE
        ours.close()
        theirs.close()


def test_an_idle_session_costs_next_to_nothing(control: ControlPlane, model: str) -> None:
    with WorkerSession(control, trainer(model)) as session:
        session.start()
        before = time.process_time()
        time.sleep(1.0)
        assert time.process_time() - before < 0.1  # Six beats a second here; a usual lease has one in 2.5 s.
