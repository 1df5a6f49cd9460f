"""`weightcast pulls`: who reads which version from whom, with a progress bar for each on a terminal."""

from __future__ import annotations

from typing import Annotated, Final

import typer
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TransferSpeedColumn

from weightcast.cli import options, output
from weightcast.cli.watch import watch as watch_loop
from weightcast.client import ControlPlane
from weightcast.contract.names import PullState
from weightcast.contract.pulls import Pull

FINISHED: Final = frozenset({PullState.APPLIED, PullState.FAILED})
READ_WHOLE: Final = frozenset({PullState.STAGED, PullState.APPLYING, PullState.APPLIED})
MAX_PULLS: Final = 200


def pulls(
    server: options.Server = None,
    token: options.Token = None,
    model: options.Model = None,
    state: Annotated[PullState | None, typer.Option("--state", help="Only pulls in this state.")] = None,
    limit: options.Limit = 20,
    as_json: options.AsJson = False,
    watch: options.Watch = False,
    interval: options.Interval = 0.5,
) -> None:
    """List pulls, newest first. With --watch: a bar per running pull; with --json also, a line per change."""
    with options.connect(server, token) as control:
        if not watch:
            found = look(control, model, state, limit)
            if as_json:
                output.emit({"pulls": [pull.model_dump(mode="json") for pull in found]})
            else:
                columns = ("pull", "model", "version", "worker", "state", "read", "speed", "pause", "via", "age", "why")
                output.stdout().print(output.table("", columns, [_row(pull) for pull in found]))
        elif not as_json and output.stdout().is_terminal:
            _watch_bars(control, model, interval)
        else:
            _watch_lines(control, model, state, interval, as_json)


def look(control: ControlPlane, model: str | None, state: PullState | None, limit: int) -> list[Pull]:
    """The newest pulls of each model."""
    return [
        pull for name in options.chosen(control, model) for pull in control.pulls(name, state=state, limit=limit).items
    ]


def bytes_read(pull: Pull) -> int:
    """Bytes that are local: all of them once staged, whatever the last progress report said."""
    return pull.nbytes if pull.state in READ_WHOLE else pull.bytes_done


def _row(pull: Pull) -> tuple[object, ...]:
    return (
        pull.pull_id[:8],
        pull.model,
        pull.version,
        pull.worker_id,
        pull.state.value,
        f"{output.nbytes(bytes_read(pull))} of {output.nbytes(pull.nbytes)}",
        output.rate(pull.nbytes, pull.fetch_seconds) if pull.state in READ_WHOLE else None,
        output.seconds(pull.pause_seconds),
        pull.transport,
        output.ago(pull.assigned_at),
        " ".join(part for part in (pull.failure, pull.failed_source, pull.reason) if part),
    )


def _watch_lines(
    control: ControlPlane, model: str | None, state: PullState | None, interval: float, as_json: bool
) -> None:
    seen: dict[str, Pull] = {}

    def show(found: list[Pull]) -> None:
        current = {pull.pull_id: pull for pull in found}
        for pull in reversed(found):
            if seen.get(pull.pull_id) == pull:
                continue
            if as_json:
                output.emit(pull.model_dump(mode="json"))
            elif (before := seen.get(pull.pull_id)) is None or before.state != pull.state:
                typer.echo("  ".join(str(cell) for cell in _row(pull) if cell not in {None, ""}))
        seen.clear()
        seen.update(current)

    watch_loop(lambda: look(control, model, state, MAX_PULLS), show, output.complain, interval)


class Bars:
    """A progress bar per running pull. A finished one is printed as a line above, so that the bars stay few."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._bars: dict[str, TaskID] = {}
        self._ended: set[str] | None = None

    def show(self, found: list[Pull]) -> None:
        """Bring the bars up to date."""
        ended = {pull.pull_id for pull in found if pull.state in FINISHED}
        if self._ended is None:
            self._ended = set(ended)  # Those were over before the first look.
        for pull in reversed(found):
            if pull.pull_id in ended:
                if pull.pull_id not in self._ended:
                    self._finish(pull)
                continue
            bar = self._bars.get(pull.pull_id)
            if bar is None:
                name = f"{pull.worker_id} ← version {pull.version}"
                bar = self._bars[pull.pull_id] = self._progress.add_task(name, total=pull.nbytes or 1, state="")
            done = bytes_read(pull) if pull.nbytes else 1
            self._progress.update(bar, completed=done, state=pull.state.value)
        self._ended = ended
        for gone in self._bars.keys() - {pull.pull_id for pull in found}:
            self._progress.remove_task(self._bars.pop(gone))

    def _finish(self, pull: Pull) -> None:
        bar = self._bars.pop(pull.pull_id, None)
        if bar is not None:
            self._progress.remove_task(bar)
        style = output.STATE_STYLES[pull.state]
        self._progress.console.print("  ".join(str(cell) for cell in _row(pull) if cell), style=style, markup=False)


def _watch_bars(control: ControlPlane, model: str | None, interval: float) -> None:
    columns = (BarColumn(), DownloadColumn(binary_units=True), TransferSpeedColumn())
    progress = Progress(
        TextColumn("{task.description}", markup=False),
        *columns,
        TextColumn("{task.fields[state]}"),
        console=output.stdout(),
    )
    with progress:
        watch_loop(lambda: look(control, model, None, MAX_PULLS), Bars(progress).show, progress.console.print, interval)
