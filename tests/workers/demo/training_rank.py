"""One gloo rank for ``test_training``: trains a tiny model and prints what it ended up with."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from weightcast.demo.digest import state_digest
from weightcast.demo.model import ModelConfig, Transformer
from weightcast.demo.text import load_corpus
from weightcast.demo.training import DataParallelTraining, TrainingConfig, process_group


def main(rendezvous: str, rank: int, world_size: int) -> None:
    torch.set_num_threads(1)
    model = Transformer(ModelConfig(width=32, layers=2, heads=2, hidden=64, context=64), seed=7)
    with process_group(Path(rendezvous), rank, world_size, timeout_seconds=20):
        corpus = load_corpus(1_000_000)
        training = DataParallelTraining(model, corpus, TrainingConfig(batch=4, length=32), rank, world_size)
        started = state_digest(model.state_dict())
        results = [training.step(publish=rank == 0 and step == 3, stop=rank == 1 and step == 9) for step in range(10)]
    print(
        json.dumps(
            {
                "started": started,
                "ended": state_digest(model.state_dict()),
                "losses": [result.loss for result in results],
                "publish": [result.step for result in results if result.publish],
                "stop": [result.step for result in results if result.stop],
            }
        )
    )


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
