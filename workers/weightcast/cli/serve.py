"""`weightcast serve`: start the control plane, when it is installed."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from weightcast.errors import WeightcastError


class ServerMissing(WeightcastError):  # noqa: N818 - named for what happened, like all errors of the library
    """The server's dependencies are not installed."""


def serve(
    host: Annotated[
        str | None, typer.Option(envvar="WEIGHTCAST_HOST", help="Address to listen on (default 127.0.0.1).")
    ] = None,
    port: Annotated[
        int | None, typer.Option(envvar="WEIGHTCAST_PORT", min=0, max=65_535, help="Port (default 8470).")
    ] = None,
    database: Annotated[
        Path | None, typer.Option(envvar="WEIGHTCAST_DATABASE", help="SQLite file (default weightcast.db).")
    ] = None,
) -> None:
    """Run the control plane until SIGTERM or Ctrl-C. All settings: WEIGHTCAST_… variables, see the documentation."""
    given = {"host": host, "port": port, "database": database}
    load_server("serve")(**{name: value for name, value in given.items() if value is not None})


def load_server(name: str) -> Callable[..., Any]:
    """A function that the server offers under the entry point group; this library never imports the server itself."""
    found = entry_points(group="weightcast.server", name=name)
    try:
        return cast("Callable[..., Any]", next(iter(found)).load())
    except StopIteration:
        why = "this installation of weightcast has none"
    except ModuleNotFoundError as error:
        why = f"{error.name} is missing"
    raise ServerMissing(f"The server cannot start: {why}. Install it with: pip install 'weightcast[server]'")
