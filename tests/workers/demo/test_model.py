"""The transformer: sizes, ties, causality, the cache, and that seeds decide everything."""

from __future__ import annotations

import math

import pytest
import torch
from weightcast.demo.model import (
    KeyValueCache,
    ModelConfig,
    Transformer,
    held_out_loss,
    parameter_count,
    printable,
    sample,
)

TINY = ModelConfig(width=32, layers=2, heads=2, hidden=64, context=48)


def test_the_default_is_a_real_model() -> None:
    model = Transformer()
    assert 5_000_000 <= parameter_count(model) <= 20_000_000
    state = model.state_dict()
    assert state["head.weight"].data_ptr() == state["embedding.weight"].data_ptr()
    assert all(tensor.dtype == torch.float32 for tensor in state.values())


def test_equal_seeds_give_equal_bits() -> None:
    first, second, other = Transformer(TINY, seed=3), Transformer(TINY, seed=3), Transformer(TINY, seed=4)
    for name, tensor in first.state_dict().items():
        assert torch.equal(tensor, second.state_dict()[name])
    assert not torch.equal(first.embedding.weight, other.embedding.weight)


def test_an_untrained_model_knows_nothing() -> None:
    tokens = torch.randint(256, (4, 33), generator=torch.Generator().manual_seed(0))
    loss = held_out_loss(Transformer(TINY), (tokens[:, :-1], tokens[:, 1:]))
    assert loss == pytest.approx(math.log(256), abs=0.5)


def test_no_position_sees_a_later_one() -> None:
    model = Transformer(TINY)
    tokens = torch.arange(20)[None]
    changed = tokens.clone()
    changed[0, 10] = 200
    before, after = model(tokens), model(changed)
    assert before.shape == (1, 20, 256)
    assert torch.allclose(before[:, :10], after[:, :10], atol=1e-6)
    assert not torch.allclose(before[:, 10:], after[:, 10:], atol=1e-3)


@torch.inference_mode()
def test_the_cache_changes_nothing_but_the_time() -> None:
    model = Transformer(TINY)
    tokens = torch.arange(30)[None]
    cache = KeyValueCache(TINY, batch=1)
    parts = [model(tokens[:, :12], cache)] + [model(tokens[:, at : at + 1], cache) for at in range(12, 30)]
    assert torch.allclose(torch.cat(parts, dim=1), model(tokens), atol=1e-4)


def test_sampling_is_a_function_of_weights_prompt_and_generator() -> None:
    model = Transformer(TINY)
    prompt = torch.tensor([10, 20, 30])

    def text(seed: int) -> list[int]:
        drawn: list[int] = sample(model, prompt, 40, torch.Generator().manual_seed(seed)).tolist()
        return drawn

    assert len(text(1)) == 40
    assert text(1) == text(1) != text(2)
    assert all(0 <= token < 256 for token in text(1))
    assert len(sample(model, prompt, 0, torch.Generator())) == 0


@pytest.mark.parametrize(("length", "count"), [(0, 4), (40, 9)])
def test_what_does_not_fit_the_context_is_refused(length: int, count: int) -> None:
    with pytest.raises(ValueError, match="do not fit a context of 48"):
        sample(Transformer(TINY), torch.zeros(length, dtype=torch.long), count, torch.Generator())


def test_any_bytes_become_one_safe_line() -> None:
    line = printable(torch.arange(256))
    assert len(line) == 256
    assert line.isprintable()
    assert printable(torch.tensor(list(b"a b\n\x1b[31m\xff"))) == "a b⏎·[31m·"
