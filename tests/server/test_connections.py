"""Connections before and around a request: heads are bounded in size and time, a lost client is noticed."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator
from typing import cast

import pytest
from support.rest import Rest
from support.server import ServerProcess
from weightcast_server import connections
from weightcast_server.connections import BoundedHttpProtocol


@pytest.fixture
def connection(rest: Rest) -> Iterator[socket.socket]:
    url = rest.client.base_url
    with socket.create_connection((url.host, url.port or 80), timeout=10) as made:
        yield made


def answer_to(connection: socket.socket, *pieces: bytes) -> bytes:
    answer = b""
    # The server closes while more is on its way: that may reset the connection before the answer is read.
    with contextlib.suppress(ConnectionError):
        for piece in pieces:
            connection.sendall(piece)
    with contextlib.suppress(ConnectionError):
        while chunk := connection.recv(65536):
            answer += chunk
    return answer


def test_a_head_that_fits_is_answered(connection: socket.socket) -> None:
    head = b"GET /healthz HTTP/1.1\r\nConnection: close\r\nX-A: " + b"a" * 60_000 + b"\r\n\r\n"
    assert answer_to(connection, head).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize(
    "head",
    [
        b"GET /healthz HTTP/1.1\r\nX-A: " + b"a" * 70_000 + b"\r\n\r\n",
        b"GET /healthz?" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\n" + b"X-A: b\r\n" * 9000 + b"\r\n",
    ],
    ids=["value", "url", "many"],
)
def test_a_large_head_is_refused(rest: Rest, connection: socket.socket, head: bytes) -> None:
    assert answer_to(connection, head).startswith(b"HTTP/1.1 431 ")
    assert rest.send("GET", "/healthz").status_code == 200


@pytest.mark.parametrize("start", [b"GET /", b"GET / HTTP/1.1\r\nX-A: "], ids=["url", "value"])
def test_a_head_without_end_is_cut_off(shared_server: ServerProcess, connection: socket.socket, start: bytes) -> None:
    connection.sendall(start)
    sent = 0
    with contextlib.suppress(ConnectionError):
        for _ in range(400):
            connection.sendall(b"a" * 65536)
            sent += 65536
    assert sent < 20 * 2**20
    assert shared_server.running


def test_bodies_do_not_count_as_heads(rest: Rest) -> None:
    worker = rest.trainer("heads")
    for _ in range(3):
        padded = b" " * 200_000 + b'{"agents": []}'
        path = f"/v1/workers/{worker.worker_id}/memory"
        headers = {**worker.headers, "Content-Type": "application/json"}
        assert rest.send("PUT", path, content=padded, headers=headers).status_code == 422
        assert worker.heartbeat().status_code == 200


def test_a_parked_request_with_another_behind_it_notices_the_end(rest: Rest, connection: socket.socket) -> None:
    rest.trainer("pipelined")
    revision = rest.get("/v1/models/pipelined/target")["revision"]
    before = rest.gauge("weightcast_parked_requests")
    wait = f"GET /v1/models/pipelined/target?rev={revision}&wait=50 HTTP/1.1\r\nHost: t\r\n\r\n"
    connection.sendall((wait + "GET /healthz HTTP/1.1\r\nHost: t\r\n\r\n").encode())
    parked(rest, before + 1)
    connection.close()
    parked(rest, before)


def parked(rest: Rest, number: float) -> None:
    deadline = time.monotonic() + 5
    while rest.gauge("weightcast_parked_requests") != number:
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.03)


class Loop:
    """The clock of an event loop, moved by hand."""

    def __init__(self) -> None:
        self.now = 0.0
        self.delays: list[float] = []

    def time(self) -> float:
        return self.now

    def call_later(self, seconds: float, *_: object) -> None:
        self.delays.append(seconds)


class Transport:
    closed = False

    def close(self) -> None:
        self.closed = True


def test_a_slow_head_is_closed_but_not_for_a_stall_of_the_server() -> None:
    protocol = BoundedHttpProtocol.__new__(BoundedHttpProtocol)
    loop, transport = Loop(), Transport()
    protocol.loop = cast("object", loop)  # type: ignore[assignment]
    protocol.transport = cast("object", transport)  # type: ignore[assignment]
    protocol._start_timer()
    loop.now = 25.0
    protocol._too_slow(connections.HEAD_SECONDS)
    assert (transport.closed, loop.delays) == (False, [connections.HEAD_SECONDS, 1.0])
    loop.now = 26.0
    protocol._too_slow(26.0)
    assert transport.closed
