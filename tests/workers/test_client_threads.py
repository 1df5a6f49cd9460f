"""One client in several threads, in a forked child, and closed under a call."""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from multiprocessing.connection import Connection
from typing import Any

import pytest
from support.scripted import ScriptedServer, answer, problem
from weightcast.client import ControlPlane, Identity
from weightcast.errors import (
    ForkUnsupported,
    SessionClosed,
    WeightcastError,
)

ME = Identity("policy:trainer:0", 3)
TARGET: dict[str, Any] = {"model": "policy", "revision": 7, "version": 4}


def client(server: ScriptedServer, token: str | None = None, **options: Any) -> ControlPlane:
    return ControlPlane(server.url, token, **{"deadline_seconds": 5.0, "answer_seconds": 1.0, **options})


def test_a_closed_client_says_so_and_ends_waiting_calls() -> None:
    with ScriptedServer(problem("store_unavailable", 503, retryable=True, Retry_After="2")) as server:
        control = client(server)
        failures: list[BaseException] = []

        def ask() -> None:
            try:
                control.target("policy")
            except WeightcastError as error:
                failures.append(error)

        thread = threading.Thread(target=ask)
        thread.start()
        while not server.seen:
            time.sleep(0.01)
        time.sleep(0.1)
        control.close()
        thread.join(1)
        assert not thread.is_alive()
        assert isinstance(failures[0], SessionClosed)
        with pytest.raises(SessionClosed):
            control.target("policy")


def _ask_in_child(control: ControlPlane, results: Connection) -> None:
    try:
        control.target("policy")
    except ForkUnsupported as error:
        results.send(str(error))
    control.close()


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_is_told() -> None:
    with ScriptedServer(answer(200, TARGET)) as server, client(server) as control:
        control.target("policy")
        ours, theirs = multiprocessing.Pipe()
        child = multiprocessing.get_context("fork").Process(target=_ask_in_child, args=(control, theirs))
        child.start()
        assert ours.poll(10)
        message = ours.recv()
        child.join(10)
        assert str(os.getpid()) in message
        assert str(child.pid) in message
        assert control.target("policy").revision == 7


def test_threads_share_one_client() -> None:
    with ScriptedServer(answer(200, TARGET)) as server, client(server) as control:
        failures: list[BaseException] = []

        def ask() -> None:
            try:
                for _ in range(50):
                    assert control.target("policy").revision == 7
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=ask) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        assert not failures
        assert len(server.seen) == 400
        assert len(server._sockets) <= 8
