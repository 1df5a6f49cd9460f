"""A trainer: publishes five versions of a small model and waits until each is applied."""

from __future__ import annotations

import torch
from weightcast import Trainer


def main() -> None:
    """Publish, and say how long each refit took."""
    model = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.ReLU(), torch.nn.Linear(512, 512))
    with Trainer(model, run="example", model="example") as trainer:
        for step in range(5):
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.add_(0.01)
            published = trainer.publish(step=step)
            applied = published.wait_applied(replicas=1, timeout=120).applied
            print(f"step {step}: version {published.version}, {published.nbytes:,} bytes, applied by {applied}")


if __name__ == "__main__":
    main()
