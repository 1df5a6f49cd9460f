"""The 64-byte header beside every arena slot: what makes a one-sided READ safe.

A source cannot refuse a READ, so safety is in the memory itself. The writer invalidates the header before the first
byte of a slot changes and sets it after the last. A reader READs it before and after its data and drops everything on
any difference. A checksum over the header exposes a header that was itself read half-written.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass, replace
from typing import Final

import xxhash

HEADER_NBYTES: Final = 64
MAGIC: Final = b"WCSLOT\x00\x01"

_FIELDS: Final = struct.Struct("<8sQQQQIIQ")
"""magic, model, version, epoch, generation, buckets ready, digests ready, data bytes."""

_CHECKSUM: Final = struct.Struct("<Q")


class HeaderInvalidError(ValueError):
    """The bytes are not a complete header."""


@dataclass(frozen=True, slots=True)
class SlotHeader:
    """Contents of a slot's header.

    ``generation`` grows at every write of the slot: odd while it is being written, even while it is valid, so equal
    headers before and after a READ mean that no write began or ended in between.
    """

    model: int
    version: int
    epoch: int
    generation: int
    buckets_ready: int
    digests_ready: int
    data_nbytes: int

    @property
    def valid(self) -> bool:
        """Whether the slot's bytes are complete and immutable."""
        return self.generation > 0 and self.generation % 2 == 0

    def writing(self) -> SlotHeader:
        """The header to set before the first byte of the slot changes."""
        return replace(self, generation=self.generation // 2 * 2 + 1, buckets_ready=0, digests_ready=0)

    def pack(self) -> bytes:
        """64 bytes, little-endian, ending with an XXH3-64 checksum over the fields."""
        fields = _FIELDS.pack(
            MAGIC,
            self.model,
            self.version,
            self.epoch,
            self.generation,
            self.buckets_ready,
            self.digests_ready,
            self.data_nbytes,
        )
        return fields + _CHECKSUM.pack(xxhash.xxh3_64_intdigest(fields))

    @classmethod
    def unpack(cls, raw: bytes | memoryview) -> SlotHeader:
        """Decode 64 bytes.

        Raises:
            HeaderInvalidError: wrong size, magic or checksum (a torn read, or memory that was never a header).
        """
        if len(raw) != HEADER_NBYTES:
            raise HeaderInvalidError(f"a header has {HEADER_NBYTES} bytes, not {len(raw)}")
        data = bytes(raw)
        magic, *values = _FIELDS.unpack_from(data)
        if magic != MAGIC:
            raise HeaderInvalidError("no slot header at this address")
        if _CHECKSUM.unpack_from(data, _FIELDS.size)[0] != xxhash.xxh3_64_intdigest(data[: _FIELDS.size]):
            raise HeaderInvalidError("the header's checksum is wrong: it was read while being written")
        return cls(*values)


def model_key(model: str) -> int:
    """The model's name as it stands in headers: the first 8 bytes of its SHA-256."""
    return int.from_bytes(hashlib.sha256(model.encode()).digest()[:8], "little")
