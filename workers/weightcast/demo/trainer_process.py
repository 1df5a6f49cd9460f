"""One data-parallel trainer: trains on, publishes every few steps, and stops when the last version is in use."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path

import torch

from weightcast.demo.child import Lifeline, run_child
from weightcast.demo.digest import state_digest
from weightcast.demo.model import Transformer
from weightcast.demo.reports import MODEL, Published, Ready, Refitted, Reporter, Trained, TrainerSettings
from weightcast.demo.text import load_corpus
from weightcast.demo.training import DataParallelTraining, TrainingConfig, process_group
from weightcast.published import PublishedVersion
from weightcast.settings import WorkerSettings
from weightcast.trainer import Trainer

_START_SECONDS = 120.0


class RefitWatch:
    """Waits, beside the training, until every replica computes with the version that was published last."""

    def __init__(self, settings: TrainerSettings, reporter: Reporter) -> None:
        self.applied = 0
        self._settings = settings
        self._reporter = reporter
        self._error: Exception | None = None

    def follow(self, handle: PublishedVersion, called_at: float) -> None:
        """Begin to wait for a version; one at a time."""
        threading.Thread(target=self._wait, args=(handle, called_at), name="refit-watch", daemon=True).start()

    def _wait(self, handle: PublishedVersion, called_at: float) -> None:
        try:
            handle.wait_applied(self._settings.rollouts, timeout=self._settings.refit_timeout_seconds)
        except Exception as error:
            self._error = error
            return
        self._reporter.send(Refitted(version=handle.version, seconds=time.monotonic() - called_at))
        self.applied += 1

    def check(self) -> None:
        """Raise what went wrong while waiting."""
        if self._error is not None:
            raise self._error


def _train(settings: TrainerSettings, reporter: Reporter, lifeline: Lifeline) -> None:
    torch.set_num_threads(1)
    model = Transformer(seed=1)
    trainer = Trainer(
        weights=model,
        model=MODEL,
        run=settings.run,
        rank=settings.rank,
        world_size=settings.world_size,
        settings=WorkerSettings(server_url=settings.server_url),
    )
    try:
        training_text = load_corpus()
        rendezvous = Path(settings.directory) / "trainers"
        with process_group(rendezvous, settings.rank, settings.world_size):
            training = DataParallelTraining(model, training_text, TrainingConfig(), settings.rank, settings.world_size)
            reporter.send(Ready())
            if not lifeline.begin.wait(_START_SECONDS):
                raise TimeoutError(f"the other processes were not ready within {_START_SECONDS:g} s")
            _publish_and_train(settings, reporter, lifeline, trainer, training)
    finally:
        trainer.close()


def _publish_and_train(
    settings: TrainerSettings, reporter: Reporter, lifeline: Lifeline, trainer: Trainer, training: DataParallelTraining
) -> None:
    leader = settings.rank == 0
    watch = RefitWatch(settings, reporter)
    published, published_step, published_at = 0, 0, time.monotonic()

    def publish(step: int) -> None:
        nonlocal published, published_step, published_at
        published_at = time.monotonic()
        handle = trainer.publish(step=step)
        seconds = time.monotonic() - published_at
        if leader:
            watch.follow(handle, published_at)
        digest = state_digest(training.model.state_dict())
        published, published_step = published + 1, step
        reporter.send(Published(rank=settings.rank, version=handle.version, step=step, digest=digest, seconds=seconds))

    publish(0)
    while not lifeline.stop.is_set():
        watch.check()
        in_use = leader and watch.applied == published
        due = (
            training.steps + 1 - published_step >= settings.min_steps
            and time.monotonic() - published_at >= settings.interval_seconds
        )
        started = time.monotonic()
        result = training.step(
            publish=in_use and due and published < settings.versions, stop=in_use and published == settings.versions
        )
        if leader:
            reporter.send(Trained(step=result.step, loss=result.loss, seconds=time.monotonic() - started))
        if result.publish:
            publish(result.step)
        if result.stop:
            return


if __name__ == "__main__":
    sys.exit(run_child(TrainerSettings, _train))
