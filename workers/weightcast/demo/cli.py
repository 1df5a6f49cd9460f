"""``weightcast demo``."""

from __future__ import annotations

from importlib.metadata import entry_points
from importlib.util import find_spec
from typing import Annotated

import typer
from rich.console import Console

_NEEDED = {"torch": "worker", "nixl": "worker", "numpy": "worker"}


def demo(
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object last; progress on stderr.")] = False,
    trainers: Annotated[int, typer.Option(min=1, max=16, help="Data-parallel trainer processes.")] = 2,
    rollouts: Annotated[int, typer.Option(min=1, max=32, help="Rollout replicas, a process each.")] = 2,
    versions: Annotated[int, typer.Option(min=2, max=1000, help="Versions to publish.")] = 8,
) -> None:
    """Train a small transformer here and move its weights to rollouts, version after version.

    Data-parallel trainer processes learn the sources of Python's standard library and publish every few steps;
    rollout processes pull each version through NIXL while they generate. Fails unless a SHA-256 over all tensors
    agrees for every applied version and the held-out loss falls.
    """
    missing = sorted({extra for module, extra in _NEEDED.items() if find_spec(module) is None})
    if not entry_points(group="weightcast.server", name="serve") or find_spec("uvicorn") is None:
        missing = ["server", *missing]
    if missing:
        typer.echo(f"The demo needs: pip install 'weightcast[{','.join(missing)}]'", err=True)
        raise typer.Exit(2)

    # Not before the check above: these import torch.
    from weightcast.demo.display import make_display
    from weightcast.demo.family import DemoError
    from weightcast.demo.orchestrator import Demo, DemoInterrupted, DemoSettings

    console = Console(stderr=as_json, soft_wrap=not as_json)
    run = Demo(DemoSettings(trainers=trainers, rollouts=rollouts, versions=versions), make_display(console))
    error: str | None = None
    status = 0
    try:
        run.run()
    except DemoInterrupted as interrupted:
        error, status = str(interrupted), 128 + interrupted.signal_number
    except DemoError as failure:
        error, status = str(failure), 1
    objections = [error] if error else run.board.objections()
    for objection in objections:
        typer.echo(f"demo: {objection}", err=True)
    result = run.board.result(error="; ".join(objections) or None)
    if as_json:
        typer.echo(result.to_json())
    elif not objections:
        typer.echo(
            f"verified: {result.versions} versions on {result.rollouts} replicas, {result.bytes_pulled / 1e6:,.0f} MB "
            f"pulled, held-out loss {result.loss_first:.3f} → {result.loss_last:.3f}"
        )
    raise typer.Exit(status or (1 if objections else 0))
