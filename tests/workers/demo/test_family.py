"""Processes: reports arrive, every child ends with its parent, and signals wait for a good moment."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from weightcast.demo import family as family_module
from weightcast.demo.family import Child, Ended, Event, Events, Family, Heard, Interrupted, signals_as_events
from weightcast.demo.reports import Failed, Ready, RolloutSettings

_HERE = Path(__file__).parent


@pytest.fixture
def family(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Family]:
    monkeypatch.setenv("PYTHONPATH", str(_HERE))
    with Family(tmp_path, queue.SimpleQueue()) as family:
        yield family
    assert all(child.process.poll() is not None for child in family.children.values())


def start(family: Family, behaviour: str) -> Child:
    child = family.start(behaviour, "child_under_test")
    child.send(RolloutSettings(server_url="", replica=behaviour, index=0))
    assert next_event(family) == Heard(behaviour, Ready(url="ready"))
    return child


def next_event(family: Family) -> Event:
    return family.events.get(timeout=30)


def test_a_child_reports_and_stops_when_asked(family: Family) -> None:
    child = start(family, "obeys")
    assert family.stop(["obeys"]) == {"obeys": 0}
    assert next_event(family) == Ended("obeys")
    assert "noise on standard output" in child.last_words()


def test_a_child_waits_for_the_word(family: Family) -> None:
    child = start(family, "begins")
    child.send()
    assert next_event(family) == Heard("begins", Ready(url="begun"))


def test_what_goes_wrong_is_reported_with_its_traceback_in_the_log(family: Family) -> None:
    start(family, "fails")
    assert next_event(family) == Heard("fails", Failed(message="ValueError: a reason"))
    assert next_event(family) == Ended("fails")
    assert family.children["fails"].wait(time.monotonic() + 10) == 1
    assert "Traceback" in family.last_words()


def test_a_child_that_never_got_settings_ends_in_peace(family: Family) -> None:
    family.start("unused", "child_under_test")
    assert family.stop(["unused"]) == {"unused": 0}


def test_a_deaf_child_is_ended(family: Family, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(family_module, "_STOP_SECONDS", 0.2)
    start(family, "is-deaf")
    assert family.stop(["is-deaf"]) == {"is-deaf": -signal.SIGKILL}


def test_settings_of_other_servers_do_not_leak_into_the_children(
    family: Family, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEIGHTCAST_TOKEN", "secret")
    child = start(family, "obeys")
    environment = psutil.Process(child.process.pid).environ()
    assert "WEIGHTCAST_TOKEN" not in environment
    assert environment["OMP_NUM_THREADS"] == "1"


def test_children_go_with_a_killed_parent(tmp_path: Path) -> None:
    parent = subprocess.Popen(
        [sys.executable, str(_HERE / "parent_under_test.py"), str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(_HERE)},
    )
    assert parent.stdout is not None
    with parent.stdout:
        child = psutil.Process(int(parent.stdout.readline()))
        parent.kill()
        parent.wait()
    end = time.monotonic() + 10
    while time.monotonic() < end and (child.is_running() and child.status() != psutil.STATUS_ZOMBIE):
        time.sleep(0.05)
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE


def test_signals_become_events_and_handlers_come_back() -> None:
    events: Events = queue.SimpleQueue()
    before = signal.getsignal(signal.SIGTERM)
    with signals_as_events(events):
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)
        assert {events.get(timeout=5), events.get(timeout=5)} == {
            Interrupted(signal.SIGTERM),
            Interrupted(signal.SIGINT),
        }
    assert signal.getsignal(signal.SIGTERM) is before
