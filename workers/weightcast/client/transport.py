"""One HTTP call to the control plane: bounded in time and size, repeated while repeating can help."""

from __future__ import annotations

import os
import ssl
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import httpx

from weightcast.client.backoff import Backoff, check_seconds
from weightcast.client.problems import Refusal, read_refusal
from weightcast.client.pulse import Pulse
from weightcast.errors import (
    ContractError,
    ControlPlaneError,
    ForkUnsupported,
    InvalidArgument,
    ServerUnavailable,
    SessionClosed,
)

MAX_ANSWER_NBYTES: Final = 64 * 2**20
MAX_ODD_ANSWERS: Final = 3
"""Times that an answer which is no HTTP, or an internal error, is met before the call gives up."""

_LAST_TRY_SECONDS: Final = 0.05
"""A retry that would begin later than this before the deadline begins this long before it."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A success, read whole."""

    call: str
    url: str
    status: int
    media_type: str
    content: bytes


class Http:
    """A pool of kept connections to one server. Threads may share it.

    It uses httpx's transport without the client around it: that one adds redirects, cookies and a log line per request,
    of which heartbeats would make many. Both may be shared between threads, says httpx.

    Every call is repeated on connection errors and on busy answers until its deadline: all calls of the contract are
    idempotent. Proxies of the environment are not used: the control plane is inside the cluster.
    """

    def __init__(
        self, url: str, token: str | None, *, answer_seconds: float, connect_seconds: float, ca_file: Path | None
    ) -> None:
        self.url = url.rstrip("/")
        self._answer_seconds = check_seconds("answer_seconds", answer_seconds)
        self._connect_seconds = check_seconds("connect_seconds", connect_seconds)
        self._pid = os.getpid()
        self._closed = threading.Event()
        self._headers = {"Accept": "*/*", "Accept-Encoding": "identity", "User-Agent": "weightcast"}
        if token is not None:
            if not token.isascii() or not token.isprintable() or not token or " " in token:
                raise InvalidArgument("The token is empty or has characters that no HTTP header can carry.")
            self._headers["Authorization"] = f"Bearer {token}"
        try:
            parsed = httpx.URL(self.url)
        except httpx.InvalidURL as error:
            raise InvalidArgument(f"The server URL {url!r} is not one: {error}.") from None
        if parsed.scheme not in {"http", "https"} or not parsed.host:
            raise InvalidArgument(f"The server URL {url!r} is not one: write http://host:port or https://host:port.")
        self._tls = ssl.create_default_context(cafile=ca_file) if parsed.scheme == "https" else None
        self._transport = httpx.HTTPTransport(
            verify=self._tls or False,
            trust_env=False,
            limits=httpx.Limits(max_connections=64, max_keepalive_connections=16, keepalive_expiry=60.0),
        )

    def call(
        self,
        method: str,
        path: str,
        *,
        deadline: float,
        wait: float | None = None,
        worker: str = "",
        params: Mapping[str, str | int] | None = None,
        headers: Mapping[str, str] | None = None,
        content: bytes | None = None,
        once: bool = False,
    ) -> Answer:
        """Send until there is an answer, for at most ``deadline`` seconds; ``wait`` is how long the server may park it.

        Raises:
            ControlPlaneError: refused, unreachable until the deadline, or not an answer of the contract.
        """
        self._check_usable()
        name = f"{method} {path}"
        now = time.monotonic()
        ends = now + deadline
        parked_until = now + (wait or 0.0)
        backoff = Backoff()
        tries = odd = 0
        while True:
            query: dict[str, str | int] = dict(params or {})
            parked = max(0.0, parked_until - now)
            if wait is not None:
                query["wait"] = f"{parked:.3f}"
            request = httpx.Request(
                method,
                self.url + path,
                params=query or None,
                headers={**self._headers, **(headers or {})},
                content=content,
                extensions={"timeout": self._timeout(min(ends - now, parked + self._answer_seconds))},
            )
            tries += 1
            outcome = self._try(request, min(ends, now + parked + self._answer_seconds), name, worker)
            if isinstance(outcome, Answer):
                return outcome
            error = outcome.error
            odd += not isinstance(error, ServerUnavailable)
            now = time.monotonic()
            left = ends - now
            delay = backoff.next()
            if outcome.after_seconds is not None:
                delay += outcome.after_seconds
                if delay >= left:
                    raise error
            if once or not outcome.again or odd >= MAX_ODD_ANSWERS:
                raise error
            if left <= _LAST_TRY_SECONDS:
                raise self._gave_up(error, deadline, tries)
            if self._closed.wait(min(delay, left - _LAST_TRY_SECONDS)):
                raise SessionClosed(f"{name} was given up because the client was closed.")
            now = time.monotonic()

    def pulse(self) -> Pulse:
        """A connection for heartbeats, with the same token and trust."""
        self._check_usable()
        return Pulse(self.url, self._headers, connect_seconds=self._connect_seconds, tls=self._tls)

    def close(self) -> None:
        """Close all connections; calls that wait for their next try end. In a forked child it does nothing."""
        if os.getpid() == self._pid:
            self._closed.set()
            self._transport.close()

    def _check_usable(self) -> None:
        if (pid := os.getpid()) != self._pid:
            raise ForkUnsupported("The control plane client", self._pid, pid)
        if self._closed.is_set():
            raise SessionClosed("The control plane client is closed; create a new one.")

    def _timeout(self, seconds: float) -> dict[str, float]:
        """httpx's per-phase limits: none of them may outlast the try."""
        return {"connect": min(self._connect_seconds, seconds), "read": seconds, "write": seconds, "pool": seconds}

    def _try(self, request: httpx.Request, ends: float, name: str, worker: str) -> Answer | Refusal:
        try:
            response = self._transport.handle_request(request)
            try:
                body = self._read(response, ends)
            finally:
                response.close()
        except httpx.RemoteProtocolError as error:
            return self._broken(error, name, worker)
        except (httpx.TransportError, OSError) as error:
            return self._unreachable(error, name, worker)
        if body is None:
            text = f"the answer from {self.url} is over {MAX_ANSWER_NBYTES} bytes"
            return Refusal(ContractError(text, call=name, worker=worker), again=False)
        if 200 <= response.status_code < 300:
            media_type = response.headers.get("content-type", "no content type")
            return Answer(name, str(request.url), response.status_code, media_type, body)
        if response.is_redirect:
            text = f"{self.url} redirects to {response.headers.get('location', '?')}; give the final address"
            return Refusal(ContractError(text, status=response.status_code, call=name, worker=worker), again=False)
        return read_refusal(response, body, call=name, worker=worker)

    def _read(self, response: httpx.Response, ends: float) -> bytes | None:
        """The body, or None when it is too large. A peer that drips bytes cannot stretch the deadline.

        A body that came whole counts, however late this thread got to run: the delay was not the server's.
        """
        whole = response.headers.get("content-length")
        chunks: list[bytes] = []
        nbytes = 0
        for chunk in response.iter_raw():
            nbytes += len(chunk)
            chunks.append(chunk)
            if nbytes > MAX_ANSWER_NBYTES:
                return None
            if time.monotonic() > ends and str(nbytes) != whole:
                raise httpx.ReadTimeout(f"the answer was not complete in time ({nbytes} bytes came)")
        return b"".join(chunks)

    def _broken(self, error: httpx.RemoteProtocolError, name: str, worker: str) -> Refusal:
        """A server that went away in the middle of a call is tried again; what speaks no HTTP, a few times only."""
        text = str(error)
        if "disconnected" in text or "closed connection" in text:
            detail = f"{self.url} closed the connection before it had answered"
            return Refusal(ServerUnavailable(detail, retryable=True, call=name, worker=worker), again=True)
        detail = f"what {self.url} sent is not HTTP ({text})"
        return Refusal(ContractError(detail, call=name, worker=worker), again=True)

    def _unreachable(self, error: Exception, name: str, worker: str) -> Refusal:
        cause: BaseException | None = error
        while cause is not None:
            if isinstance(cause, ssl.SSLCertVerificationError):
                detail = f"the certificate of {self.url} is not trusted: {cause.verify_message}"
                remedy = "Give the CA that signed it (ca_file, WEIGHTCAST_CA_FILE)."
                return Refusal(ServerUnavailable(detail, call=name, worker=worker, remedy=remedy), again=False)
            cause = cause.__cause__ or cause.__context__
        what = "did not answer in time" if isinstance(error, httpx.TimeoutException) else "cannot be reached"
        said = f" ({error})" if str(error) else ""
        refused = ServerUnavailable(f"{self.url} {what}{said}", retryable=True, call=name, worker=worker)
        return Refusal(refused, again=True)

    def _gave_up(self, last: ControlPlaneError, deadline: float, tries: int) -> ControlPlaneError:
        if isinstance(last, ContractError):
            return last
        error = ServerUnavailable(
            f"no success within {deadline:g} s and {tries} {'try' if tries == 1 else 'tries'}; last: {last.detail}",
            code=last.code,
            status=last.status,
            retryable=True,
            request_id=last.request_id,
            call=last.call,
            worker=last.worker,
        )
        error.__cause__ = last
        return error
