"""Bounds on a connection before a request exists: how large the head of a request may be, and how long it may take."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from uvicorn._types import ASGI3Application
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

MAX_HEAD_NBYTES: Final = 64 * 1024
"""Request line and headers. Neither uvicorn nor its parser has a limit, and tokens are checked only after the head."""

HEAD_SECONDS: Final = 10.0
"""A connection that has sent no complete head for this long is closed."""

_LATE_SECONDS: Final = 1.0
_REFUSAL: Final = b"The request line and headers are over 65536 bytes."


class HeadTooLargeError(Exception):
    """The head of a request is over the limit."""


class BoundedHttpProtocol(HttpToolsProtocol):
    """uvicorn's HTTP/1.1 with a bounded request head."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._head_open = True
        self._head_nbytes = 0
        self._refused = False
        self._running: RequestResponseCycle | None = None
        self._head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for the first head."""
        super().connection_made(transport)
        self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the request that runs: uvicorn tells only the newest, and with pipelining that is another one."""
        self._stop_timer()
        if self._running is not None and not self._running.response_complete:
            self._running.disconnected = True
            self._running.message_event.set()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse, and count what belongs to a head that is still open."""
        if self.transport.is_closing():
            return
        self._head_nbytes += len(data) if self._head_open else 0
        super().data_received(data)
        if not self._head_open:
            self._stop_timer()
        elif self.transport.is_closing():
            return
        elif self._head_nbytes > MAX_HEAD_NBYTES:
            self._refuse()
        elif self._head_timer is None:
            self._start_timer()

    def on_message_begin(self) -> None:
        """Parser callback: the first byte of a request."""
        self._head_open = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Parser callback: a head that came in one piece is measured here."""
        self._head_open = False
        self._head_nbytes = 0
        if len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers) > MAX_HEAD_NBYTES:
            self._refused = True
            raise HeadTooLargeError
        super().on_headers_complete()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    def send_400_response(self, msg: str) -> None:
        """Answer what the parser gave up on, a head that was refused included."""
        if self._refused:
            self._refuse()
        else:
            super().send_400_response(msg)

    def _refuse(self) -> None:
        self.transport.write(
            b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-type: text/plain; charset=utf-8\r\n"
            b"content-length: %d\r\nconnection: close\r\n\r\n%b" % (len(_REFUSAL), _REFUSAL)
        )
        self.transport.close()

    def _start_timer(self, seconds: float = HEAD_SECONDS) -> None:
        self._head_timer = self.loop.call_later(seconds, self._too_slow, self.loop.time() + seconds)

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _too_slow(self, due: float) -> None:
        if self.loop.time() - due > _LATE_SECONDS:
            # The server itself was stalled: the rest of the head may be there, not read yet.
            self._start_timer(_LATE_SECONDS)
            return
        self._head_timer = None
        self.transport.close()
