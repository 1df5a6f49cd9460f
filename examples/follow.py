"""A rollout: generates all the time, and follows new versions in the background until the last step of publish.py."""

from __future__ import annotations

import threading

import torch
from weightcast import Hooks, Rollout, Update


def main() -> None:
    """Generate with whatever version is served, and say when it changes."""
    model = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.ReLU(), torch.nn.Linear(512, 512))
    generating = threading.Lock()
    stop = threading.Event()
    last = threading.Event()

    def applied(update: Update) -> None:
        print(
            f"serving version {update.version} (step {update.step}), pause {1000 * (update.pause_seconds or 0):.2f} ms"
        )
        if update.step >= 4:
            last.set()

    # While the lock is held nothing computes with the weights: that is the pause.
    hooks = Hooks(on_pause=generating.acquire, on_resume=generating.release)
    with Rollout(model, replica="example-0", model="example", hooks=hooks) as rollout:
        follower = threading.Thread(target=rollout.follow, args=(stop,), kwargs={"on_update": applied})
        follower.start()
        while not last.is_set():
            with generating, torch.inference_mode():
                model(torch.randn(64, 512))
        stop.set()
        follower.join()


if __name__ == "__main__":
    main()
