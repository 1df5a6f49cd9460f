"""Deterministic weights of every dtype, so that two processes know the right bytes without sharing them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch

Changes = dict[str, tuple[list[int], str] | None]
"""Tensor name to shape and dtype, or to None."""

DTYPES = [
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
]


def make_weights(seed: int, mib: float = 0.25) -> dict[str, torch.Tensor]:
    """One of each dtype, 0-dim, zero-size, transposed and tied tensors, and large ones of about ``mib`` MiB in all."""
    generator = torch.Generator().manual_seed(seed)
    weights = {f"dtype.{index}": _random(dtype, (3, 5), generator) for index, dtype in enumerate(DTYPES)}
    weights["scalar"] = _random(torch.float32, (), generator)
    weights["empty"] = torch.empty(0, 7)
    weights["transposed"] = _random(torch.float32, (16, 24), generator).t()
    weights["strided"] = _random(torch.bfloat16, (64,), generator)[::2]
    rows = max(1, int(mib * 2**20) // (4 * 256 * 4))
    for index in range(4):
        weights[f"big.{index}"] = _random(torch.float32, (rows, 256), generator)
    weights["tied.one"] = weights["tied.two"] = _random(torch.float32, (8, 8), generator)
    return weights


def blank_weights(mib: float = 0.25, kind: str = "plain") -> dict[str, torch.Tensor]:
    """Tensors of the same names, shapes and dtypes, all zero: where an engine loads to.

    ``plain``: contiguous and untied. ``strided``: no tensor of two elements or more is contiguous. ``tied``: the tied
    names share one tensor, as in an engine with tied embeddings.
    """
    weights = {name: torch.zeros(tensor.shape, dtype=tensor.dtype) for name, tensor in make_weights(0, mib).items()}
    if kind == "strided":
        return {name: _spread(tensor) if tensor.numel() > 1 else tensor for name, tensor in weights.items()}
    if kind == "tied":
        weights["tied.two"] = weights["tied.one"]
    return weights


def part_of(weights: dict[str, torch.Tensor], part: Sequence[int] | None) -> dict[str, torch.Tensor]:
    """Every n-th tensor by name: ``(index, n)``; all of them for None."""
    if part is None:
        return weights
    index, count = part
    return {name: weights[name] for position, name in enumerate(sorted(weights)) if position % count == index}


def change(weights: dict[str, torch.Tensor], changes: Changes | None) -> dict[str, torch.Tensor]:
    """Other tensors: a name with a shape and a dtype is made (again) as zeros, a name with None is removed."""
    changed = dict(weights)
    for name, spec in (changes or {}).items():
        if spec is None:
            del changed[name]
        else:
            shape, dtype = spec
            changed[name] = torch.zeros(shape, dtype=getattr(torch, dtype))
    return changed


def sha256(weights: dict[str, torch.Tensor]) -> str:
    """SHA-256 over names and bytes in name order, independent of the library under test."""
    digest = hashlib.sha256()
    for name in sorted(weights):
        digest.update(name.encode())
        digest.update(weights[name].contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _spread(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor like this one of which every second element of a larger one is a part."""
    return torch.zeros((*tensor.shape[:-1], tensor.shape[-1] * 2), dtype=tensor.dtype)[..., ::2]


def _random(dtype: torch.dtype, shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    size = torch.empty((), dtype=dtype).element_size()
    count = 1
    for extent in shape:
        count *= extent
    raw = torch.randint(0, 2 if dtype is torch.bool else 256, (count * size,), dtype=torch.uint8, generator=generator)
    return raw.view(dtype).reshape(shape)


def flat_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor's elements, row-major, as bytes."""
    flat = torch.empty(tensor.numel(), dtype=tensor.dtype)
    flat.copy_(tensor.reshape(-1))
    return flat.view(torch.uint8)
