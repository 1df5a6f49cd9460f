"""Entry point of the `weightcast` command.

Each command is a function in a module of its own. What is heavy or optional (torch, nixl, the server) it imports
inside, so that `weightcast status` starts fast and needs nothing but the base dependencies.
"""

from __future__ import annotations

import os
import sys
from importlib.metadata import version
from typing import Annotated

import typer

from weightcast.bench.cli import app as bench
from weightcast.cli import lists, output, pulls, serve, status
from weightcast.demo.cli import demo
from weightcast.errors import WeightcastError

app = typer.Typer(
    name="weightcast",
    help="Moves model weights from RL trainers to rollout engines.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command()(serve.serve)
app.command()(status.status)
app.command()(lists.versions)
app.command()(lists.workers)
app.command()(pulls.pulls)
app.command()(demo)
app.add_typer(bench, name="bench")


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"weightcast {version('weightcast')}")
        raise typer.Exit


@app.callback()
def _root(
    _version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run the command line: exit code 0, 1 for an error (told on stderr), 2 for wrong usage."""
    try:
        app()
    except WeightcastError as error:
        output.complain(str(error))
        sys.exit(1)
    except BrokenPipeError:
        # The reader (`| head`) has gone; the interpreter's own flush at exit would complain once more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)


if __name__ == "__main__":
    main()
