"""Applying: all or nothing, checked before the first byte."""

from __future__ import annotations

import pytest
import torch
from support.weights import flat_bytes, make_weights, sha256
from weightcast.apply import Shard, check_destination, check_ties, copy_into
from weightcast.errors import LayoutMismatch
from weightcast.layout import build_layout


def staged(tensors: dict[str, torch.Tensor]) -> Shard:
    layout = build_layout(tensors)
    data = torch.zeros(layout.nbytes, dtype=torch.uint8)
    for spec in layout.tensors:
        data[spec.offset : spec.offset + spec.nbytes] = flat_bytes(tensors[spec.name])
    return layout, data


def test_every_kind_of_destination_gets_the_bytes() -> None:
    source = make_weights(3)
    live = {name: torch.zeros_like(tensor) for name, tensor in source.items()}
    live["big.0"] = torch.zeros(*reversed(source["big.0"].shape)).t()
    live["big.1"] = torch.nn.Parameter(torch.zeros_like(source["big.1"])).detach()
    with torch.inference_mode():
        live["big.2"] = torch.zeros_like(source["big.2"])
    live["tied.one"] = live["tied.two"] = torch.zeros(8, 8)
    shard = staged(source)
    check_destination([shard[0]], live, 1)
    check_ties([shard], live, 1)
    copied = copy_into([shard], live)
    assert sha256(live) == sha256(source)
    assert copied == sum(tensor.numel() * tensor.element_size() for tensor in source.values())


def test_two_shards_fill_one_model_and_may_not_overlap() -> None:
    one, two = {"a": torch.ones(3), "b": torch.ones(2)}, {"c": torch.full((4,), 2.0)}
    live = {name: torch.zeros_like(tensor) for name, tensor in (one | two).items()}
    shards = [staged(one), staged(two)]
    check_destination([layout for layout, _data in shards], live, 1)
    copy_into(shards, live)
    assert sha256(live) == sha256(one | two)
    with pytest.raises(LayoutMismatch, match="in two shards"):
        check_destination([shards[0][0], shards[0][0]], {n: live[n] for n in one}, 1)


def test_one_tensor_with_two_values_is_refused() -> None:
    shard = staged({"embed": torch.ones(3), "head": torch.zeros(3)})
    tied = torch.zeros(3)
    with pytest.raises(LayoutMismatch, match="different values"):
        check_ties([shard], {"embed": tied, "head": tied}, 1)
    same = staged({"embed": torch.ones(3), "head": torch.ones(3)})
    check_ties([same], {"embed": tied, "head": tied}, 1)


def test_a_destination_that_overlaps_itself_is_refused() -> None:
    layout, _data = staged({"a": torch.ones(3, 3)})
    with pytest.raises(LayoutMismatch, match="overlaps itself"):
        check_destination([layout], {"a": torch.zeros(1, 3).expand(3, 3)}, 1)


def test_destinations_that_share_part_of_their_memory_are_refused() -> None:
    layout, _data = staged({"qkv": torch.ones(12), "q": torch.ones(4)})
    fused = torch.zeros(12)
    with pytest.raises(LayoutMismatch, match="share part of their memory"):
        check_destination([layout], {"qkv": fused, "q": fused[:4]}, 1)
