"""Shows the run: tables that change in place on a terminal, one line an event elsewhere."""

from __future__ import annotations

import json
import time
from types import TracebackType
from typing import Protocol, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from weightcast.demo.reports import Applied, Failed, Published, Ready, Refitted, Report
from weightcast.demo.scoreboard import Scoreboard


class Display(Protocol):
    """Whoever shows a run."""

    def __enter__(self) -> Self:
        """Begin."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End; what was shown last stays."""

    def show(self, child: str, report: Report, board: Scoreboard) -> None:
        """A report came in and was added to the board."""

    def note(self, text: str) -> None:
        """Something else worth a line."""


def make_display(console: Console) -> Display:
    """Tables for a terminal, lines for everything else."""
    return Tables(console) if console.is_terminal else Lines(console)


def gigabytes_a_second(report: Applied) -> float:
    """Speed of a pull."""
    return report.nbytes / report.fetch_seconds / 1e9 if report.fetch_seconds > 0 else 0.0


class Lines:
    """One line of ``event key=value …`` a report."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._started = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return

    def _line(self, event: str, **fields: object) -> None:
        shown = " ".join(f"{key}={_value(value)}" for key, value in fields.items())
        self._console.out(f"{time.monotonic() - self._started:6.1f}s {event} {shown}", highlight=False)

    def show(self, child: str, report: Report, board: Scoreboard) -> None:
        """Write the report; single training steps are too many to be written."""
        match report:
            case Ready():
                self._line("ready", process=child)
            case Published() if report.rank == 0:
                self._line(
                    "published",
                    version=report.version,
                    step=report.step,
                    train_loss=board.trained.loss if board.trained else None,
                    seconds=report.seconds,
                )
            case Applied():
                self._line(
                    "applied",
                    replica=report.replica,
                    version=report.version,
                    step=board.step(report.version),
                    lag=board.lag(report.replica),
                    held_out_loss=report.held_out_loss,
                    gbps=gigabytes_a_second(report),
                    pause_ms=report.pause_seconds * 1e3,
                    transport=report.transport,
                    sha256=report.digest[:12],
                    text=report.text,
                )
            case Refitted():
                self._line("refitted", version=report.version, seconds=report.seconds)
            case Failed():
                self._line("failed", process=child, message=report.message)
            case _:
                pass

    def note(self, text: str) -> None:
        """Write the text."""
        self._line("note", text=text)


def _value(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) and not value.isalnum() else str(value)


class Tables:
    """A table of versions, one of replicas, and a line of text from each replica."""

    def __init__(self, console: Console) -> None:
        self._live = Live(console=console, refresh_per_second=4, transient=False)
        self._status = Text("starting the server, the trainers and the rollouts …", style="dim")

    def __enter__(self) -> Self:
        self._live.__enter__()
        self._live.update(self._status)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.__exit__(kind, error, trace)

    def show(self, child: str, report: Report, board: Scoreboard) -> None:
        """Draw everything anew."""
        if isinstance(report, Failed):
            self._status = Text(f"{child}: {report.message}", style="bold red")
        elif board.trained is not None:
            trained = board.trained
            self._status = Text(
                f"training: step {trained.step}, loss {trained.loss:.3f}, {trained.seconds:.2f} s a step", style="dim"
            )
        self._live.update(Group(*self._parts(board)))

    def note(self, text: str) -> None:
        """Show the text below the tables."""
        self._status = Text(text)
        self._live.update(self._status)

    def _parts(self, board: Scoreboard) -> list[RenderableType]:
        parts: list[RenderableType] = []
        if board.published:
            parts.append(_version_table(board))
        if any(board.applied.values()):
            parts.append(_replica_table(board))
        for replica, reports in board.applied.items():
            if reports:
                parts.append(Text(f"{replica} writes: {reports[-1].text}", no_wrap=True, overflow="ellipsis"))
        return [*parts, self._status]


def _version_table(board: Scoreboard) -> Table:
    table = Table(title="versions of the policy", title_justify="left")
    for heading in ("version", "step", "held-out loss", "applied by", "refit", "pause", "SHA-256"):
        table.add_column(heading, justify="right")
    wrong = board.mismatches()
    for version, parts in sorted(board.published.items()):
        applied = [report for reports in board.applied.values() for report in reports if report.version == version]
        digest = next(iter(parts.values())).digest[:12]
        table.add_row(
            str(version),
            str(board.step(version)),
            f"{max(report.held_out_loss for report in applied):.3f}" if applied else "",
            f"{len(applied)}/{len(board.replicas)}",
            f"{board.refits[version] * 1e3:.0f} ms" if version in board.refits else "",
            f"{max(report.pause_seconds for report in applied) * 1e3:.1f} ms" if applied else "",
            f"[red]{digest} differs[/]" if any(f"version {version} " in text for text in wrong) else digest,
        )
    return table


def _replica_table(board: Scoreboard) -> Table:
    table = Table(title="rollout replicas", title_justify="left")
    for heading in ("replica", "serves", "lag", "GB/s", "pause", "transport"):
        table.add_column(heading, justify="right")
    for replica, reports in board.applied.items():
        last = reports[-1] if reports else None
        table.add_row(
            replica,
            str(last.version) if last else "–",
            str(board.lag(replica)),
            f"{gigabytes_a_second(last):.2f}" if last else "",
            f"{last.pause_seconds * 1e3:.1f} ms" if last else "",
            last.transport if last else "",
        )
    return table
