"""The client against servers that misbehave: what is repeated, for how long, and what the caller is told."""

from __future__ import annotations

import math
import socket
import time
from typing import Any

import pytest
from support.scripted import ScriptedServer, answer, drip, hang, problem, reset, send
from weightcast.client import ControlPlane, Identity
from weightcast.contract.layout import LAYOUT_MEDIA_TYPE, Layout, TensorSpec, layout_digest, pack_layout
from weightcast.contract.problems import CATALOGUE
from weightcast.contract.pulls import RequestPull
from weightcast.errors import (
    ContractError,
    ControlPlaneError,
    Fenced,
    InvalidArgument,
    ModelOwned,
    ServerUnavailable,
    Unauthorized,
    UnknownWorker,
    WeightcastError,
)

ME = Identity("policy:trainer:0", 3)
TARGET: dict[str, Any] = {"model": "policy", "revision": 7, "version": 4}
BEAT: dict[str, Any] = {"lease_seconds": 15.0, "heartbeat_seconds": 2.5, "revision": 1}


def client(server: ScriptedServer, token: str | None = None, **options: Any) -> ControlPlane:
    return ControlPlane(server.url, token, **{"deadline_seconds": 5.0, "answer_seconds": 1.0, **options})


def test_answers_are_models_and_the_connection_is_kept() -> None:
    with ScriptedServer(answer(200, {**TARGET, "later_field": 1})) as server, client(server, "s3cret") as control:
        for _ in range(3):
            assert control.target("policy").version == 4
        assert len(server.seen) == 3
        assert server.seen[0].headers["authorization"] == "Bearer s3cret"
        assert len(server._sockets) == 1
        assert "s3cret" not in repr(control)


def test_fenced_calls_carry_worker_and_epoch() -> None:
    with ScriptedServer(answer(200, BEAT)) as server, client(server) as control:
        control.heartbeat(ME)
        assert server.seen[0].target == "/v1/workers/policy:trainer:0/heartbeat"
        assert server.seen[0].headers["weightcast-worker"] == "policy:trainer:0"
        assert server.seen[0].headers["weightcast-epoch"] == "3"


def test_no_assignment_is_none() -> None:
    with ScriptedServer(answer(204)) as server, client(server) as control:
        assert control.request_pull(ME, "policy", RequestPull(), wait=2) is None
        assert server.seen[0].target.endswith("/models/policy/pulls?wait=2.000")


def test_layouts_travel_compressed_and_are_checked() -> None:
    layout = Layout(1, 16, (TensorSpec("w", "float32", (4,), 0),))
    blob = pack_layout(layout)
    with ScriptedServer(answer(204), answer(200, blob), answer(200, blob[:-3])) as server, client(server) as control:
        digest = control.put_layout(ME, "policy", layout)
        assert digest == layout_digest(layout)
        assert server.seen[0].body == blob
        assert server.seen[0].headers["content-type"] == LAYOUT_MEDIA_TYPE
        assert control.get_layout("policy", digest) == layout
        with pytest.raises(ContractError, match="is not it"):
            control.get_layout("policy", digest)


@pytest.mark.parametrize(
    "trouble",
    [
        reset(),
        send(b""),
        send(b"HTTP/1.1 200 OK\r\nContent-Length: 900\r\n\r\n{"),
        problem("store_unavailable", 503, retryable=True),
        problem("internal", 500, retryable=True),
        answer(502, b"<html>bad gateway</html>"),
        hang(0.5),
    ],
    ids=["reset", "closed", "cut", "store", "internal", "proxy", "silent"],
)
def test_trouble_is_repeated_until_it_passes(trouble: Any) -> None:
    with (
        ScriptedServer(trouble, trouble, answer(200, TARGET)) as server,
        client(server, answer_seconds=0.3) as control,
    ):
        assert control.target("policy").revision == 7
        assert len(server.seen) == 3


def test_retry_after_is_honoured() -> None:
    busy = problem("server_draining", 503, retryable=True, Retry_After="0.4")
    with ScriptedServer(busy, answer(200, TARGET)) as server, client(server) as control:
        control.target("policy")
        first, second = server.seen
        assert 0.4 <= second.at - first.at < 0.8


def test_retry_after_past_the_deadline_fails_at_once() -> None:
    busy = problem("server_draining", 503, retryable=True, Retry_After="30")
    with ScriptedServer(busy) as server, client(server) as control:
        started = time.monotonic()
        with pytest.raises(ServerUnavailable) as caught:
            control.target("policy", deadline=2)
        assert time.monotonic() - started < 1
        assert caught.value.code == "server_draining"


def test_nobody_listening_ends_at_the_deadline() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with ControlPlane(f"http://127.0.0.1:{port}") as control:
        started = time.monotonic()
        with pytest.raises(ServerUnavailable, match=rf"GET /v1/models/policy/target.*{port}") as caught:
            control.target("policy", deadline=0.6)
        assert 0.5 < time.monotonic() - started < 1.0
        assert caught.value.retryable
        assert caught.value.status == 0


@pytest.mark.parametrize("step", [hang(30), drip(1000, 0.05)], ids=["silent", "dripping"])
def test_a_slow_server_cannot_stretch_the_deadline(step: Any) -> None:
    with ScriptedServer(step) as server, client(server, answer_seconds=10) as control:
        started = time.monotonic()
        with pytest.raises(ServerUnavailable, match="in time"):
            control.target("policy", deadline=0.6)
        assert 0.5 < time.monotonic() - started < 1.0


def test_a_parked_call_gets_its_wait_and_the_rest_of_it_when_repeated() -> None:
    with ScriptedServer(hang(0.5), answer(204)) as server, client(server, answer_seconds=0.2) as control:
        assert control.request_pull(ME, "policy", RequestPull(), wait=3) is None
        waits = [float(seen.target.rpartition("=")[2]) for seen in server.seen]
        assert waits[0] == 3
        assert 2.0 < waits[1] < 2.6


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (answer(200, b"<html>hello</html>", Content_Type="text/html"), r"is no Target: text/html.*<html>hello"),
        (answer(200, b""), "is no Target"),
        (answer(200, {"model": "policy"}), "revision: Field required"),
        (answer(200, b"\xff\xfe\x00"), "is no Target"),
        (answer(404, b"nope"), "HTTP 404 without a problem body"),
        (answer(301, b"", Location="http://elsewhere/"), "redirects to http://elsewhere/"),
        (send(b"220 mail ready\r\n\r\n"), "is not HTTP"),
    ],
    ids=["html", "empty", "incomplete", "binary", "other-service", "redirect", "smtp"],
)
def test_garbage_is_named_as_such(step: Any, message: str) -> None:
    with ScriptedServer(step) as server, client(server) as control:
        started = time.monotonic()
        with pytest.raises(ContractError, match=message):
            control.target("policy")
        assert time.monotonic() - started < 1


def test_an_endless_answer_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weightcast.client.transport.MAX_ANSWER_NBYTES", 1000)
    with (
        ScriptedServer(answer(200, b" " * 5000)) as server,
        client(server) as control,
        pytest.raises(ContractError, match="is over 1000 bytes"),
    ):
        control.target("policy")


@pytest.mark.parametrize("code", list(CATALOGUE))
def test_every_problem_code_has_its_error(code: str) -> None:
    kind = next(kind for known, kind in CATALOGUE.items() if known == code)
    with (
        ScriptedServer(problem(code, kind.status, retryable=kind.retryable)) as server,
        client(server) as control,
        pytest.raises(ControlPlaneError) as caught,
    ):
        control.leave(ME, deadline=0.2)
    assert caught.value.code == code
    assert caught.value.status == kind.status
    assert caught.value.retryable == kind.retryable
    assert caught.value.request_id == "req-1"
    assert "policy:trainer:0" in str(caught.value)


def test_refusals_are_not_repeated() -> None:
    cases: list[tuple[str, int, type[WeightcastError]]] = [
        ("stale_epoch", 409, Fenced),
        ("unknown_worker", 404, UnknownWorker),
        ("model_owned", 409, ModelOwned),
        ("unauthorized", 401, Unauthorized),
        ("invented_by_a_newer_server", 418, ControlPlaneError),
    ]
    for code, status, kind in cases:
        with ScriptedServer(problem(code, status)) as server, client(server) as control:
            with pytest.raises(kind, match=rf"because.*{code}"):
                control.leave(ME)
            assert len(server.seen) == 1


def test_a_heartbeat_is_one_try() -> None:
    with ScriptedServer(reset(), answer(200, BEAT)) as server, client(server) as control:
        with pytest.raises(ServerUnavailable):
            control.heartbeat(ME)
        assert len(server.seen) == 1


@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0, True, "3"])
def test_senseless_durations_are_refused(value: Any) -> None:
    with ControlPlane("http://127.0.0.1:1") as control:
        with pytest.raises(InvalidArgument, match="deadline"):
            control.target("policy", deadline=value)
        with pytest.raises(InvalidArgument, match="wait"):
            control.request_pull(ME, "policy", RequestPull(), wait=value)
    with pytest.raises(InvalidArgument):
        ControlPlane("http://127.0.0.1:1", deadline_seconds=value)


@pytest.mark.parametrize("url", ["127.0.0.1:8470", "ftp://x", "http://", "http://h:port", ""])
def test_a_server_url_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(InvalidArgument, match="URL"):
        ControlPlane(url)


@pytest.mark.parametrize("name", ["", "..", "a/b", "a b", "x" * 201])
def test_names_that_no_path_can_carry_are_refused(name: str) -> None:
    with ControlPlane("http://127.0.0.1:1") as control, pytest.raises(InvalidArgument, match="not a name"):
        control.target(name)


def test_a_token_that_no_header_can_carry_is_refused() -> None:
    for token in ["", "a b", "a\nb", "schlüssel"]:
        with pytest.raises(InvalidArgument, match="token"):
            ControlPlane("http://127.0.0.1:1", token)
