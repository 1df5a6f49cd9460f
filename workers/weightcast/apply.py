"""Putting verified bytes into a live model: checked as a whole first, then copied without stopping in the middle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import torch

from weightcast.contract.layout import Layout, TensorSpec
from weightcast.errors import LayoutMismatch
from weightcast.layout import compare, contiguous_bytes, typed_view
from weightcast.memory import copy_bytes

Shard = tuple[Layout, torch.Tensor]
"""A layout and the shard's bytes (1-D uint8)."""


def check_destination(layouts: Sequence[Layout], destination: Mapping[str, torch.Tensor], version: int) -> None:
    """Prove that a version fits the live tensors before anything is read or changed.

    Raises:
        LayoutMismatch: one error that lists every missing, unexpected, reshaped, re-typed or unwritable tensor.
    """
    specs: dict[str, TensorSpec] = {}
    problems: list[str] = []
    for layout in layouts:
        problems += [f"{spec.name!r}: published in two shards" for spec in layout.tensors if spec.name in specs]
        specs.update((spec.name, spec) for spec in layout.tensors)
    problems += [
        f"{name!r}: the rollout's tensor overlaps itself (it was expanded) and cannot be written"
        for name, tensor in destination.items()
        if any(stride == 0 and size > 1 for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    ]
    problems += _overlaps(destination)
    try:
        compare(specs, destination, version)
    except LayoutMismatch as error:
        problems += error.differences
    if problems:
        raise LayoutMismatch(sorted(problems), version=version)


def check_ties(shards: Sequence[Shard], destination: Mapping[str, torch.Tensor], version: int) -> None:
    """Prove that names which share one tensor here were published with equal bytes.

    Raises:
        LayoutMismatch: two values for one tensor; applying would silently keep whichever came last.
    """
    published: dict[str, tuple[TensorSpec, torch.Tensor]] = {
        spec.name: (spec, data) for layout, data in shards for spec in layout.tensors
    }
    first: dict[tuple[object, ...], str] = {}
    problems = []
    for name, tensor in destination.items():
        if not tensor.numel():
            continue
        other = first.setdefault((tensor.data_ptr(), tensor.device, tensor.dtype, tensor.shape, tensor.stride()), name)
        if other != name and not _same_bytes(published[name], published[other]):
            problems.append(f"{name!r} and {other!r}: one tensor here, but published with different values")
    if problems:
        raise LayoutMismatch(sorted(problems), version=version)


def copy_into(shards: Sequence[Shard], destination: Mapping[str, torch.Tensor]) -> int:
    """Copy every tensor; returns the bytes copied. Devices are synchronised before it returns.

    The caller has checked destination and ties, and holds everything that computes with these tensors.
    """
    copied = 0
    # Inference mode: also tensors made in inference mode may be written, and nothing is recorded for autograd.
    with torch.inference_mode():
        for layout, data in shards:
            for spec in layout.tensors:
                if not spec.nbytes:
                    continue
                target = destination[spec.name]
                if target.is_contiguous() and not target.is_conj() and not target.is_neg():
                    raw = data[spec.offset : spec.offset + spec.nbytes]
                    copy_bytes(contiguous_bytes(target), raw)
                else:
                    target.copy_(typed_view(data, spec))
                copied += spec.nbytes
    for device in {tensor.device for tensor in destination.values() if tensor.device.type == "cuda"}:
        torch.cuda.current_stream(device).synchronize()
    return copied


def _overlaps(destination: Mapping[str, torch.Tensor]) -> list[str]:
    """Contiguous tensors that share part of their memory: whichever is copied last would win."""
    spans = sorted(
        (str(tensor.device), tensor.data_ptr(), tensor.data_ptr() + tensor.numel() * tensor.element_size(), name)
        for name, tensor in destination.items()
        if tensor.numel() and tensor.is_contiguous()
    )
    problems = []
    for (device, start, end, name), (next_device, next_start, next_end, other) in pairwise(spans):
        if device == next_device and next_start < end and (start, end) != (next_start, next_end):
            problems.append(f"{name!r} and {other!r}: share part of their memory and cannot both be loaded")
    return problems


def _same_bytes(one: tuple[TensorSpec, torch.Tensor], other: tuple[TensorSpec, torch.Tensor]) -> bool:
    (spec, data), (other_spec, other_data) = one, other
    if data is other_data and spec.offset == other_spec.offset:
        return True
    return torch.equal(
        data[spec.offset : spec.offset + spec.nbytes],
        other_data[other_spec.offset : other_spec.offset + other_spec.nbytes],
    )
