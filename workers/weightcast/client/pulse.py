"""The heartbeat's connection: as few waits for the interpreter lock as an HTTP request can have.

A thread that wakes from a system call queues for the GIL behind every busy Python thread of the process, 5 ms each. A
request through httpx wakes about ten times, which beside a few busy threads adds up to a lease. This one wakes after
send, after receive, and that is all: the socket is blocking with the kernel's own timeouts, so nothing polls.
"""

from __future__ import annotations

import contextlib
import errno
import socket
import ssl
import struct
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

import h11
import httpx
from pydantic import ValidationError

from weightcast.client.identity import Identity, fencing_headers
from weightcast.client.problems import excerpt, read_refusal
from weightcast.contract.workers import Heartbeat
from weightcast.errors import ContractError, ControlPlaneError, ServerUnavailable

MAX_ANSWER_NBYTES: Final = 65_536
_TIMED_OUT: Final = frozenset({errno.EAGAIN, errno.EWOULDBLOCK, errno.ETIMEDOUT})


class Pulse:
    """Sends heartbeats over one kept connection. For one thread."""

    def __init__(
        self, url: str, headers: Mapping[str, str], *, connect_seconds: float, tls: ssl.SSLContext | None
    ) -> None:
        parts = urlsplit(url)
        self._url = url
        self._prefix = parts.path.rstrip("/")
        self._address = (parts.hostname or "", parts.port or (443 if tls else 80))
        self._headers = {"Host": parts.netloc.rpartition("@")[2], **headers, "Content-Length": "0"}
        self._connect_seconds = connect_seconds
        self._tls = tls
        self._sock: socket.socket | None = None
        self._seconds = 0.0
        self._http = h11.Connection(h11.CLIENT)
        self._interrupted = False

    def beat(self, me: Identity, seconds: float) -> Heartbeat:
        """Renew the lease: one try, of about ``seconds`` at most.

        Raises:
            ControlPlaneError: refused, or no answer.
        """
        path = f"/v1/workers/{me.worker_id}/heartbeat"
        call = f"POST {path}"
        try:
            status, headers, body = self._exchange(path, me, seconds)
        except h11.RemoteProtocolError as error:
            self.close()
            raise ContractError(
                f"what {self._url} sent is not HTTP ({error})", call=call, worker=me.worker_id
            ) from None
        except OSError as error:
            self.close()
            what = "did not answer in time" if _is_timeout(error) else f"cannot be reached ({error})"
            raise ServerUnavailable(f"{self._url} {what}", retryable=True, call=call, worker=me.worker_id) from error
        except BaseException:
            self.close()
            raise
        if status != 200:
            raise self._refusal(status, headers, body, call, me)
        try:
            return Heartbeat.model_validate_json(body)
        except ValidationError:
            said = excerpt(headers.get("content-type", "no content type"), body)
            raise ContractError(
                f"the answer from {self._url} is no Heartbeat: {said}", call=call, worker=me.worker_id
            ) from None

    def interrupt(self) -> None:
        """End the beat that another thread is waiting in: it fails at once. No more beats after this."""
        self._interrupted = True
        sock = self._sock
        if sock is not None:
            with contextlib.suppress(OSError):
                # Not SSLSocket's own shutdown, which would take the TLS state away under the other thread.
                socket.socket.shutdown(sock, socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection; the next beat opens another."""
        sock, self._sock = self._sock, None
        if sock is not None:
            with contextlib.suppress(OSError):
                sock.close()

    def _refusal(self, status: int, headers: httpx.Headers, body: bytes, call: str, me: Identity) -> ControlPlaneError:
        response = httpx.Response(status, headers=headers, content=body)
        return read_refusal(response, body, call=call, worker=me.worker_id).error

    def _exchange(self, path: str, me: Identity, seconds: float) -> tuple[int, httpx.Headers, bytes]:
        fresh = self._sock is None
        sock = self._connected(seconds)
        request = h11.Request(
            method="POST",
            target=self._prefix + path,
            headers=list({**self._headers, **fencing_headers(me)}.items()),
        )
        try:
            raw = self._http.send(request)
            self._http.send(h11.EndOfMessage())
            sock.sendall(raw or b"")
            return self._receive(sock)
        except (ConnectionError, h11.RemoteProtocolError):
            if fresh or self._interrupted:
                raise
        # A kept connection may have been closed while it was idle: that says nothing about the server.
        self.close()
        return self._exchange(path, me, seconds)

    def _receive(self, sock: socket.socket) -> tuple[int, httpx.Headers, bytes]:
        status, headers, body = 0, httpx.Headers(), b""
        while True:
            event = self._http.next_event()
            if event is h11.NEED_DATA:
                data = sock.recv(MAX_ANSWER_NBYTES)
                if not data and not status:
                    raise ConnectionResetError(errno.ECONNRESET, "closed before it had answered")
                self._http.receive_data(data)
            elif isinstance(event, h11.Response):
                status, headers = event.status_code, httpx.Headers(event.headers.raw_items())
            elif isinstance(event, h11.Data):
                body += event.data
                if len(body) > MAX_ANSWER_NBYTES:
                    raise h11.RemoteProtocolError("too long an answer")
            elif isinstance(event, h11.EndOfMessage):
                break
        if self._http.our_state is h11.DONE and self._http.their_state is h11.DONE:
            self._http.start_next_cycle()
        else:
            self.close()
        return status, headers, body

    def _connected(self, seconds: float) -> socket.socket:
        sock = self._sock
        if sock is None:
            sock = socket.create_connection(self._address, timeout=min(self._connect_seconds, seconds))
            self._sock = sock
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._tls is not None:
                self._sock = sock = self._tls.wrap_socket(sock, server_hostname=self._address[0])
            self._http = h11.Connection(h11.CLIENT)
            self._seconds = 0.0
        if seconds != self._seconds:
            self._set_timeout(sock, seconds)
            self._seconds = seconds
        return sock

    def _set_timeout(self, sock: socket.socket, seconds: float) -> None:
        seconds = max(seconds, 0.001)  # Zero would mean for ever.
        if self._tls is not None:
            # OpenSSL would try again for ever after the kernel's timeout; Python's costs a poll per call.
            sock.settimeout(seconds)
            return
        sock.settimeout(None)
        limit = struct.pack("ll", int(seconds), int(seconds % 1 * 1_000_000))
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)


def _is_timeout(error: OSError) -> bool:
    return isinstance(error, TimeoutError) or error.errno in _TIMED_OUT
