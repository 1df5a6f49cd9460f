"""`weightcast serve`: start the control plane, when it is installed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from weightcast.serving import load_server


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
