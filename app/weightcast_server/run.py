"""Starts a server in this process: the entry point behind ``weightcast serve``, the demo and the tests."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import signal
import socket
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn
from pydantic import ValidationError

from weightcast_server.api.app import create_app, create_runtime
from weightcast_server.connections import BoundedHttpProtocol
from weightcast_server.logs import configure_logs, get_logger
from weightcast_server.runtime import Runtime
from weightcast_server.settings import Settings
from weightcast_server.store.protocol import StoreStartError

KEEP_ALIVE_SECONDS = 120
"""Longer than any client keeps an idle connection, so that it is never the server that closes it under a request."""

_log = get_logger(__name__)


def serve(**overrides: Any) -> None:
    """Run a server until SIGTERM or SIGINT.

    Keyword arguments are fields of :class:`~weightcast_server.settings.Settings` and go before ``WEIGHTCAST_…``
    variables; None leaves a field alone. With ``port=0`` a free port is taken; the bound URL is logged as ``ready`` and
    written to ``ready_file``, which is removed at the end.

    Raises:
        SystemExit: 2 for settings that are not valid, 1 when the address or the database cannot be used.
    """
    try:
        settings = Settings(**{name: value for name, value in overrides.items() if value is not None})
    except ValidationError as error:
        for item in error.errors():
            where = ".".join(str(part) for part in item["loc"])
            print(f"weightcast serve: {where + ': ' if where else ''}{item['msg']}", file=sys.stderr)  # noqa: T201
        sys.exit(2)
    configure_logs(settings.log_level, settings.log_format)
    raise_file_limit()
    if not settings.authenticated and settings.allow_unauthenticated:
        _log.warning("no tokens: everyone who reaches the port is an operator", host=settings.host)
    try:
        listener = listen(settings.host, settings.port)
    except OSError as error:
        _log.error("cannot listen", host=settings.host, port=settings.port, reason=str(error))
        sys.exit(1)
    with contextlib.closing(listener):
        runtime = create_runtime(settings)
        config = uvicorn.Config(
            create_app(runtime),
            log_config=None,
            access_log=False,
            server_header=False,
            lifespan="on",
            http=BoundedHttpProtocol,
            ws="none",
            backlog=settings.backlog,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=max(1, round(settings.drain_seconds)),
            ssl_certfile=settings.ssl_certfile,
            ssl_keyfile=settings.ssl_keyfile,
        )
        Server(config, runtime).run(sockets=[listener])


class Server(uvicorn.Server):
    """uvicorn's server that announces itself, drains parked requests at once, and exits with 0 after SIGTERM."""

    def __init__(self, config: uvicorn.Config, runtime: Runtime) -> None:
        super().__init__(config)
        self._runtime = runtime
        self._loop: asyncio.AbstractEventLoop | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Open the store, listen, announce."""
        self._loop = asyncio.get_running_loop()
        try:
            await self._runtime.start()
        except StoreStartError as error:
            _log.error("cannot use the database", database=str(self._runtime.settings.database), reason=str(error))
            await self._runtime.stop()
            sys.exit(1)
        if self._runtime.settings.ready_file is not None:
            # One that a killed server left behind would announce an address where nobody listens. Not sooner than
            # here: the file may belong to a server that has the address or the database.
            self._runtime.settings.ready_file.unlink(missing_ok=True)
        await super().startup(sockets)
        if sockets:
            self._announce(sockets[0])

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop listening, let requests end, close the store."""
        await super().shutdown(sockets)
        ready_file = self._runtime.settings.ready_file
        if ready_file is not None:
            ready_file.unlink(missing_ok=True)
        _log.info("stopped")

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002 - the signature of signal handlers
        """Signal handler. uvicorn would wait for parked requests, and raise the signal again afterwards."""
        if self.should_exit and sig == signal.SIGINT:
            self.force_exit = True
        self.should_exit = True
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._runtime.hub.close)

    def _announce(self, listener: socket.socket) -> None:
        settings = self._runtime.settings
        url = url_of(listener, "https" if settings.ssl_certfile else "http")
        if settings.ready_file is not None:
            write_ready(settings.ready_file, url)
        _log.info("ready", url=url, database=str(settings.database), lease_seconds=settings.lease_seconds)


def listen(host: str, port: int) -> socket.socket:
    """A bound socket.

    Raises:
        OSError: the address cannot be used.
    """
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except BaseException:
        listener.close()
        raise
    return listener


def url_of(listener: socket.socket, scheme: str) -> str:
    """Where a local client reaches the socket."""
    host, port = listener.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def write_ready(path: Path, url: str) -> None:
    """Write the URL so that a reader finds all of it or no file."""
    draft = path.with_name(path.name + ".tmp")
    draft.write_text(url + "\n", encoding="utf-8")
    draft.replace(path)


def raise_file_limit() -> None:
    """Each parked request is an open socket: use as many descriptors as the system lets this process have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
