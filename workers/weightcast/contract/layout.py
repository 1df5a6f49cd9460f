"""The wire form of a layout: what tensors a shard holds and where their bytes lie.

A layout is canonical (sorted by offset, then name), so equal content has equal bytes and one digest. It travels as
zstd-compressed msgpack, is uploaded once, and never changes.
"""

from __future__ import annotations

import hashlib
import math
from typing import Annotated, Final

import msgspec
import zstandard

MAX_TENSORS: Final = 200_000
MAX_LAYOUT_NBYTES: Final = 64 * 2**20
"""Largest decompressed layout, in bytes."""

MAX_SHARD_NBYTES: Final = 2**46
MAX_DIMS: Final = 16
LAYOUT_MEDIA_TYPE: Final = "application/vnd.weightcast.layout+zstd"
FORMAT: Final = 1

DTYPE_NBYTES: Final[dict[str, int]] = {
    "bool": 1, "uint8": 1, "int8": 1, "uint16": 2, "int16": 2, "uint32": 4, "int32": 4, "uint64": 8, "int64": 8,
    "float8_e4m3fn": 1, "float8_e4m3fnuz": 1, "float8_e5m2": 1, "float8_e5m2fnuz": 1, "float8_e8m0fnu": 1,
    "float4_e2m1fn_x2": 1, "float16": 2, "bfloat16": 2, "float32": 4, "float64": 8,
    "complex32": 4, "complex64": 8, "complex128": 16,
}  # fmt: skip
"""Torch dtype name (without ``torch.``) to bytes per element."""


class LayoutError(ValueError):
    """A layout that is not valid; ``errors`` lists everything that is wrong with it."""

    def __init__(self, errors: list[str]) -> None:
        self.errors = errors
        more = f" (and {len(errors) - 5} more)" if len(errors) > 5 else ""
        super().__init__("; ".join(errors[:5]) + more)


Name = Annotated[str, msgspec.Meta(max_length=1000)]
Shape = Annotated[tuple[int, ...], msgspec.Meta(max_length=MAX_DIMS)]
"""Bounded while it is decoded: a few kilobytes of zstd can unpack to millions of elements."""


class TensorSpec(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One tensor: ``shape`` in elements, ``offset`` in bytes from the start of the shard's data."""

    name: Name
    dtype: str
    shape: Shape
    offset: int

    @property
    def nbytes(self) -> int:
        """Bytes the tensor takes; 0 for zero-size tensors."""
        return math.prod(self.shape) * DTYPE_NBYTES[self.dtype]


class Layout(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A shard's tensors in canonical order. Names that share an offset are tied: one storage, several names."""

    format: int
    nbytes: int
    tensors: Annotated[tuple[TensorSpec, ...], msgspec.Meta(max_length=MAX_TENSORS)]


_decoder = msgspec.msgpack.Decoder(Layout)


def canonical(layout: Layout) -> bytes:
    """The uncompressed bytes that the digest is taken over."""
    return msgspec.msgpack.encode(layout)


def layout_digest(layout: Layout) -> str:
    """SHA-256 (hex) of the canonical form."""
    return hashlib.sha256(canonical(layout)).hexdigest()


def pack_layout(layout: Layout) -> bytes:
    """Canonical form, zstd-compressed, ready to upload."""
    return zstandard.ZstdCompressor(level=1, write_content_size=True).compress(canonical(layout))


def unpack_layout(blob: bytes, digest: str | None = None) -> Layout:
    """Decode and fully validate an uploaded or downloaded layout.

    Raises:
        LayoutError: not zstd, too large, not a layout, not canonical, or not the layout that ``digest`` names.
    """
    try:
        size = zstandard.frame_content_size(blob)
    except zstandard.ZstdError as error:
        raise LayoutError([f"not a zstd frame: {error}"]) from None
    if not 0 <= size <= MAX_LAYOUT_NBYTES:
        raise LayoutError([f"decompressed size {size} is unknown or over {MAX_LAYOUT_NBYTES} bytes"])
    try:
        raw = zstandard.ZstdDecompressor().decompress(blob, max_output_size=MAX_LAYOUT_NBYTES, allow_extra_data=False)
        layout = _decoder.decode(raw)
    except (zstandard.ZstdError, msgspec.MsgspecError, RecursionError, UnicodeDecodeError, MemoryError) as error:
        raise LayoutError([f"not a layout: {error}"]) from None
    check_layout(layout)
    if canonical(layout) != raw:
        raise LayoutError(["the encoding is not canonical"])
    if digest is not None and layout_digest(layout) != digest:
        raise LayoutError([f"the content has digest {layout_digest(layout)}, not {digest}"])
    return layout


def check_layout(layout: Layout) -> None:
    """Prove that every tensor lies inside the shard, aligned, and overlaps no other (exact ties excepted).

    Raises:
        LayoutError: listing every violation.
    """
    errors: list[str] = []
    if layout.format != FORMAT:
        raise LayoutError([f"layout format {layout.format} is not supported (this build knows {FORMAT})"])
    if not 0 <= layout.nbytes <= MAX_SHARD_NBYTES:
        errors.append(f"nbytes {layout.nbytes} is outside 0..{MAX_SHARD_NBYTES}")
    if len(layout.tensors) > MAX_TENSORS:
        raise LayoutError([f"{len(layout.tensors)} tensors are over the limit of {MAX_TENSORS}"])
    names: set[str] = set()
    end = 0
    previous: TensorSpec | None = None
    for tensor in layout.tensors:
        problem = _check_tensor(tensor)
        if problem:
            errors.append(problem)
            continue
        if tensor.name in names:
            errors.append(f"{tensor.name!r} appears twice")
        names.add(tensor.name)
        if previous is not None and (tensor.offset, tensor.name) < (previous.offset, previous.name):
            errors.append(f"{tensor.name!r} is out of order")
        if tensor.offset + tensor.nbytes > layout.nbytes:
            errors.append(f"{tensor.name!r} ends at {tensor.offset + tensor.nbytes}, past {layout.nbytes}")
        tied = (
            previous is not None
            and previous.offset == tensor.offset
            and (previous.dtype, previous.shape) == (tensor.dtype, tensor.shape)
        )
        if tensor.nbytes and tensor.offset < end and not tied:
            errors.append(f"{tensor.name!r} at {tensor.offset} overlaps the tensor before it")
        end = max(end, tensor.offset + tensor.nbytes)
        if tensor.nbytes:
            previous = tensor
    if errors:
        raise LayoutError(errors)


def _check_tensor(tensor: TensorSpec) -> str | None:
    if not 1 <= len(tensor.name) <= 1000 or not tensor.name.isprintable():
        return f"tensor name {tensor.name[:80]!r} is empty, too long or not printable"
    if tensor.dtype not in DTYPE_NBYTES:
        return f"{tensor.name!r} has unknown dtype {tensor.dtype[:40]!r}"
    if len(tensor.shape) > MAX_DIMS or any(not 0 <= extent <= MAX_SHARD_NBYTES for extent in tensor.shape):
        return f"{tensor.name!r} has an impossible shape {tensor.shape[:MAX_DIMS]}"
    if tensor.nbytes > MAX_SHARD_NBYTES or not 0 <= tensor.offset <= MAX_SHARD_NBYTES:
        return f"{tensor.name!r} has an impossible size or offset"
    if tensor.offset % DTYPE_NBYTES[tensor.dtype]:
        return f"{tensor.name!r} at {tensor.offset} is not aligned to its {tensor.dtype} elements"
    return None
