"""The heartbeat's own connection against servers that misbehave."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from support.scripted import ScriptedServer, answer, drip, hang, problem, reset, send
from weightcast.client import ControlPlane, Identity
from weightcast.client.pulse import Pulse
from weightcast.errors import ContractError, Fenced, LeaseExpired, ServerUnavailable

ME = Identity("policy:rollout:r0:3", 12)
BEAT: dict[str, Any] = {"lease_seconds": 15.0, "heartbeat_seconds": 2.5, "revision": 1, "later_field": [1]}
CHUNKED = (
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    b'20\r\n{"lease_seconds":15.0,"heartbeat\r\n1b\r\n_seconds":2.5,"revision":1}\r\n0\r\n\r\n'
)


@pytest.fixture
def pulses() -> Any:
    """Makes pulses of scripted servers and closes them."""
    made: list[tuple[ControlPlane, Pulse]] = []

    def make(server: ScriptedServer, prefix: str = "") -> Pulse:
        control = ControlPlane(server.url + prefix, "s3cret")
        made.append((control, control.pulse()))
        return made[-1][1]

    yield make
    for control, pulse in made:
        pulse.close()
        control.close()


def test_beats_keep_their_connection_and_say_who_beats(pulses: Any) -> None:
    with ScriptedServer(answer(200, BEAT)) as server:
        pulse = pulses(server, "/base/")
        assert [pulse.beat(ME, 2.0).heartbeat_seconds for _ in range(3)] == [2.5] * 3
        seen = server.seen[0]
        assert (seen.method, seen.target) == ("POST", "/base/v1/workers/policy:rollout:r0:3/heartbeat")
        assert seen.headers["authorization"] == "Bearer s3cret"
        assert seen.headers["host"] == f"127.0.0.1:{server.port}"
        assert (seen.headers["weightcast-worker"], seen.headers["weightcast-epoch"]) == ("policy:rollout:r0:3", "12")
        assert len(server._sockets) == 1


def test_a_connection_closed_while_idle_is_replaced_unnoticed(pulses: Any) -> None:
    with ScriptedServer(answer(200, BEAT), reset(), answer(200, BEAT)) as server:
        pulse = pulses(server)
        pulse.beat(ME, 2.0)
        pulse.beat(ME, 2.0)
        assert len(server._sockets) == 2


def test_connection_close_and_chunks_are_understood(pulses: Any) -> None:
    with ScriptedServer(answer(200, BEAT, Connection="close"), send(CHUNKED)) as server:
        pulse = pulses(server)
        assert pulse.beat(ME, 2.0).revision == 1
        assert pulse.beat(ME, 2.0).lease_seconds == 15.0


@pytest.mark.parametrize(
    ("step", "kind"),
    [
        (problem("stale_epoch", 409), Fenced),
        (problem("lease_expired", 409), LeaseExpired),
        (problem("store_unavailable", 503, retryable=True), ServerUnavailable),
        (answer(502, b"<html>"), ServerUnavailable),
        (answer(200, b"<html>"), ContractError),
        (answer(204), ContractError),
        (send(b"220 mail ready\r\n\r\n"), ContractError),
        (answer(200, b" " * 100_000), ContractError),
        (reset(), ServerUnavailable),
        (send(b""), ServerUnavailable),
        (hang(30), ServerUnavailable),
        (drip(5, 1.0), ServerUnavailable),
    ],
    ids=["fenced", "lease", "store", "proxy", "html", "empty", "smtp", "long", "reset", "closed", "silent", "drip"],
)
def test_everything_else_is_one_clear_error(step: Any, kind: type[Exception], pulses: Any) -> None:
    with ScriptedServer(step, answer(200, BEAT)) as server:
        pulse = pulses(server)
        started = time.monotonic()
        with pytest.raises(kind, match="policy:rollout:r0:3") as caught:
            pulse.beat(ME, 0.3)
        assert type(caught.value) is kind
        assert time.monotonic() - started < 0.8
        assert pulse.beat(ME, 2.0).revision == 1  # The next beat starts afresh.


def test_nobody_listening_is_told_at_once() -> None:
    with ScriptedServer(answer(200, BEAT)) as gone:
        pass
    with ControlPlane(gone.url) as control, pytest.raises(ServerUnavailable, match="refused"):
        control.pulse().beat(ME, 2.0)


def test_an_interrupted_beat_fails_at_once(pulses: Any) -> None:
    with ScriptedServer(answer(200, BEAT), hang(30)) as server:
        pulse = pulses(server)
        pulse.beat(ME, 2.0)
        failed: list[float] = []

        def beat() -> None:
            with pytest.raises(ServerUnavailable):
                pulse.beat(ME, 20.0)
            failed.append(time.monotonic())

        thread = threading.Thread(target=beat)
        thread.start()
        while len(server.seen) < 2:
            time.sleep(0.01)
        time.sleep(0.05)
        asked = time.monotonic()
        pulse.interrupt()
        thread.join(5)
        assert failed[0] - asked < 0.3
