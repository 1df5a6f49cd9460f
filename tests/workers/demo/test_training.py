"""Training: replicas stay bit-identical over real gloo processes, signals reach all, and the loss falls."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from weightcast.demo.model import ModelConfig, Transformer, held_out_loss
from weightcast.demo.text import load_corpus
from weightcast.demo.training import DataParallelTraining, TrainingConfig

_RANK = Path(__file__).with_name("training_rank.py")


@pytest.mark.parametrize("world_size", [2, 3])
def test_replicas_are_bit_identical(tmp_path: Path, world_size: int) -> None:
    ranks = [
        subprocess.Popen(
            [sys.executable, str(_RANK), str(tmp_path / "rendezvous"), str(rank), str(world_size)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(world_size)
    ]
    results: list[dict[str, Any]] = []
    try:
        for rank in ranks:
            out, error = rank.communicate(timeout=60)
            assert rank.returncode == 0, error
            results.append(json.loads(out.splitlines()[-1]))
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()
    first = results[0]
    assert first["started"] != first["ended"]
    # Equal weights, equal mean losses, and the signals of one rank were heard by all at the same step.
    assert all(result == first for result in results)
    assert first["publish"] == [4]
    assert first["stop"] == [10]


def test_the_loss_falls() -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        model = Transformer(ModelConfig(width=64, layers=2, heads=2, hidden=128, context=64))
        corpus = load_corpus(1_000_000)
        held_out = corpus.held_out_batch(size=16, length=64)
        before = held_out_loss(model, held_out)
        config = TrainingConfig(batch=8, length=64, learning_rate=4e-3)
        training = DataParallelTraining(model, corpus, config, rank=0, world_size=1)
        for _ in range(60):
            result = training.step()
        assert result.step == training.steps == 60
        assert not result.publish
        assert before > 5.2
        assert held_out_loss(model, held_out) < 3.4
    finally:
        torch.set_num_threads(threads)


def test_one_rank_trains_to_the_same_bits_again() -> None:
    corpus = load_corpus(1_000_000)

    def weights() -> torch.Tensor:
        model = Transformer(ModelConfig(width=32, layers=1, heads=2, hidden=64, context=32))
        training = DataParallelTraining(model, corpus, TrainingConfig(batch=2, length=16), rank=0, world_size=1)
        for _ in range(4):
            training.step()
        return model.embedding.weight.detach()

    assert torch.equal(weights(), weights())
