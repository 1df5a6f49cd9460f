"""The run from start to end: processes, their reports, and the verdict."""

from __future__ import annotations

import os
import queue
import signal
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from weightcast.demo.display import Display
from weightcast.demo.family import DemoError, Ended, Events, Family, Heard, Interrupted, signals_as_events
from weightcast.demo.reports import Failed, Message, Ready, Report, RolloutSettings, TrainerSettings
from weightcast.demo.scoreboard import DemoResult, Scoreboard


class DemoInterrupted(Exception):  # noqa: N818 (named for what happened)
    """A signal ended the run."""

    def __init__(self, signal_number: int) -> None:
        self.signal_number = signal_number
        super().__init__(f"interrupted by {signal.Signals(signal_number).name}")


@dataclass(frozen=True, slots=True)
class DemoSettings:
    """How large and how long the run is.

    Versions follow each other in time rather than in steps, so that a slow machine shows fewer steps, not a longer run.
    """

    trainers: int = 2
    rollouts: int = 2
    versions: int = 8
    interval_seconds: float = 6.0
    training_seconds: float = 48.0
    min_steps: int = 3
    start_seconds: float = 90.0
    silence_seconds: float = 60.0
    """Longest time that nobody at all reports anything."""


class Demo:
    """One run."""

    def __init__(self, settings: DemoSettings, display: Display) -> None:
        self.replicas = [f"rollout-{index}" for index in range(settings.rollouts)]
        self.board = Scoreboard(trainers=settings.trainers, replicas=self.replicas, versions=settings.versions)
        self._settings = settings
        self._display = display

    def run(self) -> DemoResult:
        """Do it. Whatever happens, no process and no file is left when this returns or raises."""
        events: Events = queue.SimpleQueue()
        with (
            signals_as_events(events),
            self._display,
            tempfile.TemporaryDirectory(prefix="weightcast-demo-", ignore_cleanup_errors=True) as directory,
            Family(Path(directory), events) as family,
        ):
            try:
                self._start(family, Path(directory))
                self._follow(family)
                self._finish(family)
            except DemoError as error:
                # Read while the logs are still there.
                raise DemoError(f"{error}{family.last_words()}") from None
        return self.board.result()

    def _start(self, family: Family, directory: Path) -> None:
        # All begin to import at once; the workers wait for their settings, which name the server's address.
        server = family.start("server", "weightcast.demo.server_process", str(directory), str(os.getpid()))
        trainers = [
            family.start(f"trainer-{rank}", "weightcast.demo.trainer_process")
            for rank in range(self._settings.trainers)
        ]
        rollouts = [family.start(replica, "weightcast.demo.rollout_process") for replica in self.replicas]
        end = time.monotonic() + self._settings.start_seconds
        server.send(Message())
        url = self._wait_ready(family, {"server"}, end)["server"].url
        settings = self._settings
        for rank, trainer in enumerate(trainers):
            trainer.send(
                TrainerSettings(
                    server_url=url,
                    run=directory.name,
                    rank=rank,
                    world_size=settings.trainers,
                    rollouts=settings.rollouts,
                    versions=settings.versions,
                    interval_seconds=min(settings.interval_seconds, settings.training_seconds / settings.versions),
                    min_steps=settings.min_steps,
                    refit_timeout_seconds=settings.silence_seconds,
                    directory=str(directory),
                )
            )
        for index, (replica, rollout) in enumerate(zip(self.replicas, rollouts, strict=True)):
            rollout.send(RolloutSettings(server_url=url, replica=replica, index=index))
        self._wait_ready(family, {child.name for child in (*trainers, *rollouts)}, end)
        for trainer in trainers:
            trainer.send()

    def _wait_ready(self, family: Family, missing: set[str], end: float) -> dict[str, Ready]:
        ready: dict[str, Ready] = {}
        while missing - ready.keys():
            child, report = self._next(family, max(0.0, end - time.monotonic()), "did not start")
            if isinstance(report, Ready):
                ready[child] = report
        return ready

    def _follow(self, family: Family) -> None:
        running = {f"trainer-{rank}" for rank in range(self._settings.trainers)}
        while running or not self.board.complete:
            child, report = self._next(family, self._settings.silence_seconds, "went silent", may_end=running)
            if report is None:
                running.discard(child)

    def _next(
        self, family: Family, seconds: float, complaint: str, may_end: frozenset[str] | set[str] = frozenset()
    ) -> tuple[str, Report | None]:
        """The next report; None when a process that may end has ended well."""
        try:
            event = family.events.get(timeout=seconds)
        except queue.Empty:
            raise DemoError(f"the demo {complaint} within {seconds:.0f} s") from None
        match event:
            case Interrupted():
                raise DemoInterrupted(event.signal_number)
            case Ended():
                status = family.children[event.child].wait(time.monotonic() + 10)
                if event.child not in may_end or status != 0:
                    raise DemoError(f"{event.child} ended too early with status {status}")
                return event.child, None
            case Heard():
                self.board.add(event.report)
                self._display.show(event.child, event.report, self.board)
                if isinstance(event.report, Failed):
                    raise DemoError(f"{event.child} failed: {event.report.message}")
                return event.child, event.report

    def _finish(self, family: Family) -> None:
        """Stop what still runs; a rollout that does not end in good order has a fault worth hearing of."""
        statuses = family.stop([*self.replicas, "server"])
        wrong = {name: status for name, status in statuses.items() if status != 0 and name != "server"}
        if wrong:
            raise DemoError(f"processes ended badly: {wrong}")
