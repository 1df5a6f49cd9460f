"""The digest notices every change of a set of weights, and nothing else."""

from __future__ import annotations

import math

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from weightcast.demo.digest import state_digest
from weightcast.demo.model import ModelConfig, Transformer


def test_order_and_memory_layout_do_not_matter() -> None:
    matrix = torch.arange(12, dtype=torch.float32).reshape(3, 4)
    first = {"a": matrix, "b": torch.ones(2)}
    second = {"b": torch.ones(2), "a": matrix.t().contiguous().t()}
    assert state_digest(first) == state_digest(second)


def test_names_dtypes_shapes_and_borders_matter() -> None:
    zeros = torch.zeros(4, dtype=torch.int32)
    states = [
        {"a": zeros},
        {"b": zeros},
        {"a": zeros.float()},
        {"a": zeros.reshape(2, 2)},
        {"a": zeros[:2], "b": zeros[2:]},
        {"a": zeros[:3], "b": zeros[3:]},
        {"a": zeros, "b": zeros[:0]},
        {},
    ]
    assert len({state_digest(state) for state in states}) == len(states)


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 4095), st.integers(0, 7))
def test_one_flipped_bit_is_noticed(byte: int, bit: int) -> None:
    weights = torch.zeros(1024)
    before = state_digest({"w": weights})
    weights.view(torch.uint8)[byte] ^= 1 << bit
    assert state_digest({"w": weights}) != before


def test_every_kind_of_tensor_has_one() -> None:
    dtypes = [
        torch.bool,
        torch.int8,
        torch.uint8,
        torch.int64,
        torch.float8_e4m3fn,
        torch.float8_e5m2,
        torch.float16,
        torch.bfloat16,
        torch.float64,
        torch.complex64,
    ]
    state = {str(dtype): torch.ones(3).to(dtype) for dtype in dtypes}
    state |= {"scalar": torch.tensor(1.5), "empty": torch.empty(0, 3), "nan": torch.tensor(math.nan)}
    state["conjugated"] = torch.tensor([1 + 2j]).conj()
    assert state_digest(state) == state_digest({name: tensor.clone() for name, tensor in state.items()})
    changed = state | {"conjugated": torch.tensor([1 + 2j])}
    assert state_digest(changed) != state_digest(state)


def test_a_step_of_training_changes_it() -> None:
    model = Transformer(ModelConfig(width=16, layers=1, heads=2, hidden=32, context=8))
    before = state_digest(model.state_dict())
    assert state_digest(model.state_dict()) == before
    with torch.no_grad():
        model.norm.weight[3] += 1e-6
    assert state_digest(model.state_dict()) != before
