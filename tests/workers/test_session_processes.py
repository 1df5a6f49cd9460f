"""Sessions in processes of their own: stopped, replaced, and starved of the interpreter lock."""

from __future__ import annotations

import signal
import time

from support.server import ServerProcess
from support.sessions import LEASE, Member, eventually, trainer
from weightcast.client import ControlPlane
from weightcast.contract.names import WorkerState
from weightcast.session import WorkerSession


def test_a_process_that_was_stopped_comes_back(shared: ServerProcess, control: ControlPlane, model: str) -> None:
    with Member(shared, model) as member:
        assert member.next() == {"fenced": False, "epoch": 1}
        member.signal(signal.SIGSTOP)
        eventually(lambda: control.worker(f"{model}:trainer:0").state is WorkerState.LOST)
        member.signal(signal.SIGCONT)
        assert member.next() == {"fenced": False, "epoch": 2}
        assert control.worker(f"{model}:trainer:0").state is WorkerState.LIVE
        assert member.finish() == ""


def test_a_replaced_process_is_fenced_when_it_wakes(shared: ServerProcess, control: ControlPlane, model: str) -> None:
    with Member(shared, model) as old:
        assert old.next()["epoch"] == 1
        old.signal(signal.SIGSTOP)
        with WorkerSession(control, trainer(model)) as session:
            assert session.start().epoch == 2
            old.signal(signal.SIGCONT)
            assert old.next() == {"fenced": True, "epoch": None}
            old.finish()
            worker = control.worker(f"{model}:trainer:0")
            assert (worker.state, worker.epoch) == (WorkerState.LIVE, 2)
            assert not session.fenced


def test_busy_threads_do_not_cost_the_lease(shared: ServerProcess, control: ControlPlane, model: str) -> None:
    with Member(shared, model, spinners=6) as member:
        assert member.next()["epoch"] == 1
        ends = time.monotonic() + 4 * LEASE
        while time.monotonic() < ends:
            assert control.worker(f"{model}:trainer:0").state is WorkerState.LIVE
            time.sleep(0.1)
        assert member.finish() == ""
    assert control.worker(f"{model}:trainer:0").epoch == 1
