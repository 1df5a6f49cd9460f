"""Where output goes: tables for people, JSON for programs, complaints to stderr."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

STATE_STYLES = {
    "ready": "green", "live": "green", "applied": "green", "staged": "cyan", "fetching": "cyan", "applying": "yellow",
    "staging": "yellow", "assigned": "dim", "left": "dim", "failed": "red", "lost": "red",
}  # fmt: skip

_PIPE_COLUMNS = 240


def stdout() -> Console:
    """The console of stdout as it is now (tests and pipes replace it)."""
    # Into a pipe or a file nothing is wrapped or cut.
    wide = None if sys.stdout.isatty() or "COLUMNS" in os.environ else _PIPE_COLUMNS
    return Console(highlight=False, width=wide)


def emit(document: object) -> None:
    """One JSON document on one line of stdout, at once."""
    sys.stdout.write(json.dumps(document, separators=(",", ":"), allow_nan=False) + "\n")
    sys.stdout.flush()


def complain(message: str) -> None:
    """One error on stderr."""
    Console(stderr=True, highlight=False, soft_wrap=True).print(Text.assemble(("error: ", "bold red"), message))


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> Table:
    """A table of cells; states are coloured, numbers to the right."""
    grid = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, header_style="dim")
    for index, column in enumerate(columns):
        numeric = bool(rows) and all(isinstance(row[index], int | float) or row[index] is None for row in rows)
        grid.add_column(column, justify="right" if numeric else "left", no_wrap=index == 0)
    for row in rows:
        grid.add_row(*(_cell(value) for value in row))
    return grid


def _cell(value: object) -> Text:
    if value is None or value == "":
        return Text("–", style="dim")
    if isinstance(value, bool):
        return Text("yes", style="green") if value else Text("no", style="yellow")
    text = str(value)
    return Text(text, style=STATE_STYLES.get(text, ""))


def nbytes(count: int | None) -> str | None:
    """A size for people."""
    if count is None:
        return None
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if size < 1024 or unit == "TiB":
            break
        size /= 1024
    return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"


def seconds(value: float | None) -> str | None:
    """A duration for people."""
    if value is None:
        return None
    if value < 1:
        return f"{value * 1000:.0f} ms"
    if value < 120:
        return f"{value:.1f} s"
    return f"{value / 60:.0f} min" if value < 7200 else f"{value / 3600:.1f} h"


def ago(timestamp: float | None) -> str | None:
    """How long ago a server time was, by this machine's clock."""
    return None if timestamp is None else seconds(max(0.0, time.time() - timestamp))


def rate(count: int, duration: float | None) -> str | None:
    """Throughput for people."""
    return f"{count / duration / 1e9:.2f} GB/s" if duration else None
