"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any, Protocol, TypeAlias, TypeVar

import typer
from pydantic import ValidationError

from weightcast.client import ControlPlane
from weightcast.settings import WorkerSettings

Item = TypeVar("Item", covariant=True)

Server: TypeAlias = Annotated[
    str | None,
    typer.Option("--server", metavar="URL", envvar="WEIGHTCAST_SERVER_URL", help="Base URL of the control plane."),
]
Token: TypeAlias = Annotated[
    str | None,
    typer.Option("--token", metavar="SECRET", envvar="WEIGHTCAST_TOKEN", help="Bearer token; a viewer's is enough."),
]
Model: TypeAlias = Annotated[str | None, typer.Option("--model", "-m", help="Only this model (default: all).")]
AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="One JSON document on stdout instead of tables.")]
Watch: TypeAlias = Annotated[bool, typer.Option("--watch", "-w", help="Keep showing; with --json a line per change.")]
Interval: TypeAlias = Annotated[
    float, typer.Option("--interval", min=0.1, max=3600, help="Seconds between looks with --watch.")
]
Limit: TypeAlias = Annotated[int, typer.Option("--limit", "-n", min=1, max=1000, help="Most rows per model.")]

CALL_SECONDS = 5.0
"""A person waits no longer than this for an answer."""


def connect(server: str | None, token: str | None) -> ControlPlane:
    """A client for the given server and token; what is not given comes from the environment."""
    given: dict[str, Any] = {"server_url": server, "token": token}
    try:
        settings = WorkerSettings(**{name: value for name, value in given.items() if value is not None})
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors())
        raise typer.BadParameter(f"settings are not valid: {problems}") from None
    return settings.model_copy(update={"call_timeout_seconds": CALL_SECONDS}).control_plane()


class Page(Protocol[Item]):
    """One page of a list."""

    @property
    def items(self) -> Sequence[Item]:
        """What the page holds."""

    @property
    def next_cursor(self) -> str | None:
        """Where the next page begins; None after the last."""


def every(page: Callable[[str | None], Page[Item]]) -> Iterator[Item]:
    """All items of a paged list; ``page`` gets the cursor."""
    cursor: str | None = None
    while True:
        found = page(cursor)
        yield from found.items
        cursor = found.next_cursor
        if cursor is None:
            return


def models(control: ControlPlane) -> list[str]:
    """Names of all models."""
    return [model.model for model in every(lambda cursor: control.models(limit=1000, cursor=cursor))]


def chosen(control: ControlPlane, model: str | None) -> list[str]:
    """Names of the models to show."""
    return models(control) if model is None else [model]
