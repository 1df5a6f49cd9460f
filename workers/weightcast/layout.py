"""Layouts of real tensors: from a model's weights to the wire form, and back to views.

Only names, dtypes, shapes and addresses are looked at here; no byte of a tensor is read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import torch

from weightcast.contract.layout import DTYPE_NBYTES, FORMAT, MAX_DIMS, MAX_TENSORS, Layout, LayoutError, TensorSpec
from weightcast.errors import LayoutMismatch

TENSOR_ALIGN_NBYTES: Final = 64
"""Every tensor starts on a cache line: views of any dtype are aligned and copies run at full speed."""

Weights = torch.nn.Module | Mapping[str, torch.Tensor] | Callable[[], Mapping[str, torch.Tensor]]
"""A module (its ``state_dict``), a mapping of names to tensors, or a function that returns one."""


def named_tensors(weights: Weights) -> dict[str, torch.Tensor]:
    """The tensors as they are now. Called anew for every refit, because addresses may have moved since the last."""
    if isinstance(weights, torch.nn.Module):
        found: Mapping[str, object] = weights.state_dict(keep_vars=False)
    elif isinstance(weights, Mapping):
        found = weights
    else:
        found = weights()
    return {
        name: tensor.detach() if isinstance(tensor, torch.Tensor) else _reject(name, tensor)
        for name, tensor in found.items()
    }


def build_layout(tensors: Mapping[str, torch.Tensor]) -> Layout:
    """The canonical layout of these tensors. Tensors that are the same storage seen the same way share their bytes.

    Raises:
        LayoutError: listing every tensor that cannot be published (meta, sparse, quantized, unknown dtype…).
    """
    errors = [problem for name, tensor in tensors.items() if (problem := _unsupported(name, tensor))]
    if len(tensors) > MAX_TENSORS:
        errors.append(f"{len(tensors)} tensors are over the limit of {MAX_TENSORS}")
    if errors:
        raise LayoutError(errors)
    specs: list[TensorSpec] = []
    placed: dict[tuple[object, ...], int] = {}
    end = 0
    for name in sorted(tensors):
        tensor = tensors[name]
        shape, dtype = tuple(tensor.shape), dtype_name(tensor.dtype)
        nbytes = tensor.numel() * tensor.element_size()
        identity = (tensor.data_ptr(), tensor.device, dtype, shape, tensor.stride(), tensor.is_conj(), tensor.is_neg())
        offset = placed.get(identity) if nbytes else end
        if offset is None:
            offset = placed[identity] = end
            end = -(-(end + nbytes) // TENSOR_ALIGN_NBYTES) * TENSOR_ALIGN_NBYTES
        specs.append(TensorSpec(name, dtype, shape, offset))
    return Layout(FORMAT, end, tuple(sorted(specs, key=lambda spec: (spec.offset, spec.name))))


def check_stable(first: Mapping[str, torch.Tensor], second: Mapping[str, torch.Tensor]) -> None:
    """Prove that two looks at the same weights, both still alive, saw the same memory.

    A ``state_dict`` hook or a function may return copies; bytes written into those would never reach the model.

    Raises:
        LayoutError: listing every tensor that is a copy.
    """
    copies = [
        f"{name!r} is a copy made for each look (a state_dict hook?): what is written into it does not reach the model"
        for name, tensor in first.items()
        if tensor.numel() and name in second and second[name].data_ptr() != tensor.data_ptr()
    ]
    if copies:
        raise LayoutError(copies)


def compare(published: Mapping[str, TensorSpec], destination: Mapping[str, torch.Tensor], version: int) -> None:
    """Check that every published tensor has its destination and the other way round.

    Raises:
        LayoutMismatch: one error that lists every missing, unexpected, reshaped and re-typed tensor.
    """
    problems = [
        f"{name!r}: published, but the rollout has no such tensor" for name in published.keys() - destination.keys()
    ]
    problems += [
        f"{name!r}: needed by the rollout, but not published" for name in destination.keys() - published.keys()
    ]
    for name in published.keys() & destination.keys():
        spec, tensor = published[name], destination[name]
        if spec.shape != tuple(tensor.shape):
            problems.append(f"{name!r}: published with shape {list(spec.shape)}, the rollout has {list(tensor.shape)}")
        if spec.dtype != dtype_name(tensor.dtype):
            problems.append(f"{name!r}: published as {spec.dtype}, the rollout has {dtype_name(tensor.dtype)}")
        if problem := _unsupported(name, tensor):
            problems.append(problem)
    if problems:
        raise LayoutMismatch(sorted(problems), version=version)


def dtype_name(dtype: torch.dtype) -> str:
    """``torch.bfloat16`` → ``bfloat16``."""
    return str(dtype).removeprefix("torch.")


def contiguous_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The memory of a contiguous tensor as a 1-D uint8 view.

    Not ``reshape(-1).view``: a tensor of one element counts as contiguous with any stride, and views of it as bytes do
    not.
    """
    return tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8)


def typed_view(data: torch.Tensor, spec: TensorSpec) -> torch.Tensor:
    """The tensor that ``spec`` describes as a view of the shard's bytes (1-D uint8)."""
    raw = data[spec.offset : spec.offset + spec.nbytes]
    return raw.view(getattr(torch, spec.dtype)).reshape(spec.shape)


def _reject(name: str, value: object) -> torch.Tensor:
    raise LayoutError([f"{name!r} is a {type(value).__name__}, not a tensor"])


def _unsupported(name: str, tensor: torch.Tensor) -> str | None:
    if not name or len(name) > 1000 or not name.isprintable():
        return f"{name[:80]!r}: the name is empty, over 1000 characters or not printable"
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        # Subclasses (DTensor, quantised wrappers) hold their bytes elsewhere: their addresses mean nothing.
        return f"{name!r} is a {type(tensor).__name__}: only plain tensors can be moved; pass its local or full tensor"
    if tensor.device.type == "meta":
        return f"{name!r} is a meta tensor: it has no bytes"
    if tensor.layout is not torch.strided or tensor.is_quantized:
        return f"{name!r} is {tensor.layout} or quantized: only dense tensors can be moved"
    if dtype_name(tensor.dtype) not in DTYPE_NBYTES:
        return f"{name!r} has dtype {tensor.dtype}, which is not supported"
    if tensor.dim() > MAX_DIMS:
        return f"{name!r} has {tensor.dim()} dimensions, over the limit of {MAX_DIMS}"
    return None
