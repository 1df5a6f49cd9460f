"""`weightcast bench`: measurements of this machine."""

from __future__ import annotations

import sys
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

app = typer.Typer(help="Measure what this machine and this library do.", no_args_is_help=True)


@app.callback()
def _root() -> None:
    """Keep `wire` a subcommand while it is the only one."""


@app.command()
def wire(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else on stdout.")] = False,
    mib: Annotated[int, typer.Option(min=16, max=65_536, help="Size of the weights in MiB.")] = 2048,
    tensors: Annotated[int, typer.Option(min=1, max=100_000, help="Number of tensors.")] = 300,
    repetitions: Annotated[int, typer.Option(min=1, max=1000, help="Refits to take the median of.")] = 10,
    small_repetitions: Annotated[int, typer.Option(min=1, max=10_000, help="Refits of 1 MiB.")] = 50,
    idle_seconds: Annotated[float, typer.Option(min=1, max=600, help="How long an idle rollout is watched.")] = 10.0,
) -> None:
    """A refit beside one raw NIXL READ of the same bytes. Needs memory for 7 times the weights."""
    from weightcast.bench.wire import run_wire

    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        console=Console(stderr=True),
        disable=not sys.stderr.isatty(),
    ) as bar:
        tasks = {}

        def progress(what: str, done: int, of: int) -> None:
            if what not in tasks:
                tasks[what] = bar.add_task(what, total=of)
            bar.update(tasks[what], completed=done)

        result = run_wire(
            mib=mib,
            tensors=tensors,
            repetitions=repetitions,
            small_repetitions=small_repetitions,
            idle_seconds=idle_seconds,
            progress=progress,
        )
    if as_json:
        sys.stdout.write(msgspec.json.encode(result).decode() + "\n")
        return
    table = Table("figure", "value")
    for field in msgspec.structs.fields(result):
        table.add_row(field.name, str(getattr(result, field.name)))
    Console().print(table)
