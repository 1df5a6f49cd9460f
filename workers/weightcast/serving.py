"""The way to the server: through an entry point, because this library never imports it."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any, cast

from weightcast.errors import WeightcastError


class ServerMissing(WeightcastError):  # noqa: N818 - named for what happened, like all errors of the library
    """The server's dependencies are not installed."""


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
