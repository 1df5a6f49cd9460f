"""A server that answers as a script says: with problems, garbage, resets, silence, or bytes that drip."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

Step = Callable[[socket.socket, threading.Event], None]


class Cut(Exception):  # noqa: N818
    """Raised by a step that ends the connection."""


@dataclass(frozen=True, slots=True)
class Seen:
    """One request as it arrived."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes
    at: float


def answer(status: int, body: object = b"", **headers: str) -> Step:
    """A regular answer; objects are sent as JSON."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"HTTP/1.1 {status} X", f"Content-Length: {len(content)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    raw = ("\r\n".join(lines) + "\r\n\r\n").encode() + (b"" if status == 204 else content)
    return lambda sock, _stop: sock.sendall(raw)


def problem(code: str, status: int, *, retryable: bool = False, detail: str = "because", **headers: str) -> Step:
    """A problem+json answer."""
    body: dict[str, Any] = {"type": f"urn:x:{code}", "title": code, "status": status, "detail": detail, "code": code}
    return answer(status, {**body, "retryable": retryable, "request_id": "req-1"}, **headers)


def reset() -> Step:
    """Cut the connection with a TCP reset."""

    def step(sock: socket.socket, _stop: threading.Event) -> None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        raise Cut

    return step


def send(raw: bytes) -> Step:
    """Send bytes as they are, then close."""

    def step(sock: socket.socket, _stop: threading.Event) -> None:
        sock.sendall(raw)
        raise Cut

    return step


def hang(seconds: float) -> Step:
    """Say nothing for a while, then close."""

    def step(sock: socket.socket, stop: threading.Event) -> None:
        stop.wait(seconds)
        raise Cut

    return step


def drip(count: int, pause: float) -> Step:
    """A body that comes one byte at a time."""

    def step(sock: socket.socket, stop: threading.Event) -> None:
        sock.sendall(f"HTTP/1.1 200 OK\r\nContent-Length: {count}\r\n\r\n".encode())
        for _ in range(count):
            if stop.wait(pause):
                return
            sock.sendall(b" ")

    return step


class ScriptedServer:
    """Takes one step of the script per request; the last step is repeated for ever."""

    def __init__(self, *steps: Step) -> None:
        self.seen: list[Seen] = []
        self._steps = list(steps)
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop.set()
        # Closing alone does not wake a thread that is in accept or recv.
        for sock in [self._listener, *self._sockets]:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()
        for thread in self._threads:
            thread.join(5)
            assert not thread.is_alive()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            self._sockets.append(sock)
            thread = threading.Thread(target=self._serve, args=(sock,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, sock: socket.socket) -> None:
        try:
            with sock, sock.makefile("rb") as stream:
                while line := stream.readline():
                    method, target, _ = line.decode().split(" ", 2)
                    headers: dict[str, str] = {}
                    while (header := stream.readline().decode().strip()) != "":
                        name, _, value = header.partition(":")
                        headers[name.lower()] = value.strip()
                    body = stream.read(int(headers.get("content-length", "0")))
                    with self._lock:
                        self.seen.append(Seen(method, target, headers, body, time.monotonic()))
                        step = self._steps.pop(0) if len(self._steps) > 1 else self._steps[0]
                    step(sock, self._stop)
        except (OSError, ValueError, Cut):
            return
