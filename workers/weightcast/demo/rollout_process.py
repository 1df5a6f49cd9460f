"""One rollout replica: generates text all the time and changes to each new version between two pieces of text."""

from __future__ import annotations

import sys
import threading
import time

import torch

from weightcast.demo.child import Lifeline, run_child
from weightcast.demo.digest import state_digest
from weightcast.demo.model import Transformer, held_out_loss, printable, sample
from weightcast.demo.reports import MODEL, Applied, Ready, Reporter, RolloutSettings
from weightcast.demo.text import Corpus, load_corpus, prompt
from weightcast.errors import DeadlineExceeded, PullSuperseded
from weightcast.rollout import Rollout
from weightcast.settings import WorkerSettings
from weightcast.update import Update

_STAGE_SECONDS = 1.0
_LONGEST_STAGE_SECONDS = 30.0
_MEMORY = 32
_PIECE = 16
_SHOWN = 64
# Generation leaves the cores to the trainers for three quarters of the time, as it would be on a machine of its own.
_REST = 3.0


class Engine:
    """A model that generates in its own thread; whoever changes the weights takes the lock for that long."""

    def __init__(self, model: Transformer, corpus: Corpus, seed: int) -> None:
        self.model = model
        self.lock = threading.Lock()
        self._generator = torch.Generator().manual_seed(seed)
        self._held_out = corpus.held_out_batch(size=8, length=128)
        self._seed = seed

    def run(self, stop: threading.Event) -> None:
        """Generate piece after piece until told to stop."""
        torch.set_num_threads(1)
        text = prompt(self._seed)
        while not stop.is_set():
            started = time.monotonic()
            with self.lock:
                text = torch.cat((text, sample(self.model, text, _PIECE, self._generator)))[-_MEMORY:]
            stop.wait(_REST * (time.monotonic() - started))

    def try_out(self) -> tuple[str, float, str]:
        """SHA-256 of all weights, held-out loss, and a line of sampled text."""
        with self.lock:
            digest = state_digest(self.model.state_dict())
        with self.lock:
            loss = held_out_loss(self.model, self._held_out)
        generator = torch.Generator().manual_seed(self._seed)
        begun = prompt(self._seed)
        with self.lock:
            text = sample(self.model, begun, _SHOWN, generator)
        return digest, loss, printable(torch.cat((begun, text))).lstrip("⏎")


def _apply(update: Update, engine: Engine) -> float:
    """Seconds in which the engine could not generate."""
    update.request_permit()
    with engine.lock:
        started = time.monotonic()
        update.apply()
        return time.monotonic() - started


def _roll_out(settings: RolloutSettings, reporter: Reporter, lifeline: Lifeline) -> None:
    torch.set_num_threads(1)
    # Weights that no trainer has: whatever it shows later has come through the transport.
    model = Transformer(seed=1000 + settings.index)
    rollout = Rollout(
        weights=model,
        model=MODEL,
        replica=settings.replica,
        rank=0,
        world_size=1,
        settings=WorkerSettings(server_url=settings.server_url),
    )
    engine = Engine(model, load_corpus(), seed=settings.index)
    generating = threading.Thread(target=engine.run, args=(lifeline.stop,), name="generate", daemon=True)
    try:
        reporter.send(Ready())
        patience = _STAGE_SECONDS
        while not lifeline.stop.is_set():
            try:
                update = rollout.stage(patience)
                if update is not None:
                    pause = _apply(update, engine)
            except PullSuperseded:
                continue  # A newer version is there.
            except DeadlineExceeded:
                patience = min(2 * patience, _LONGEST_STAGE_SECONDS)  # This machine is slow, or busy.
                continue
            if update is None:
                continue
            digest, loss, text = engine.try_out()
            reporter.send(
                Applied(
                    replica=settings.replica,
                    version=update.version,
                    digest=digest,
                    held_out_loss=loss,
                    text=text,
                    nbytes=update.nbytes,
                    fetch_seconds=update.seconds,
                    pause_seconds=pause,
                    transport=update.transport,
                )
            )
            if not generating.is_alive():
                generating.start()  # A replica generates from its first version on.
    finally:
        lifeline.stop.set()
        if generating.is_alive():
            generating.join(5)
        rollout.close()


if __name__ == "__main__":
    sys.exit(run_child(RolloutSettings, _roll_out))
