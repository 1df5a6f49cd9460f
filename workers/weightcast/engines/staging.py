"""The reading side's memory: where a version is assembled before it is applied."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from weightcast.contract.layout import Layout
from weightcast.engines.agent import DisconnectedError, NixlAgent, NixlHandle
from weightcast.engines.digest import DIGEST_NBYTES, bucket_count
from weightcast.engines.header import HEADER_NBYTES
from weightcast.errors import TransferError
from weightcast.memory import ALIGN_NBYTES, HostBuffer


@dataclass(frozen=True, slots=True)
class Region:
    """Where one shard is staged: addresses for READs, views for digests and copies."""

    header_address: int
    table_address: int
    data_address: int
    header: memoryview
    table: memoryview
    data: torch.Tensor
    bytes: memoryview


class StagingArena:
    """One registered buffer with a region per shard: header, digest table and data.

    Memory: the shards' bytes plus a page and 16 bytes a bucket for each.
    """

    def __init__(self, agent: NixlAgent, shards: Sequence[tuple[Layout, int]]) -> None:
        spans: list[tuple[int, int, int]] = []
        end = 0
        for layout, bucket_nbytes in shards:
            table_nbytes = bucket_count(layout.nbytes, bucket_nbytes) * DIGEST_NBYTES
            data_offset = _align(end + HEADER_NBYTES + table_nbytes)
            spans.append((end, table_nbytes, data_offset))
            end = _align(data_offset + layout.nbytes)
        self.nbytes = end
        self._buffer = HostBuffer(end, f"a staging arena for {len(shards)} shard(s)")
        self.regions = [
            self._region(start, table_nbytes, data_offset, layout.nbytes)
            for (start, table_nbytes, data_offset), (layout, _bucket) in zip(spans, shards, strict=True)
        ]
        self._registration: Any = agent.register(self._buffer)

    def deregister(self, agent: NixlAgent) -> None:
        """Give the memory back to the process. Never while a READ into it is in flight."""
        agent.deregister(self._registration)

    def _region(self, start: int, table_nbytes: int, data_offset: int, data_nbytes: int) -> Region:
        base, view = self._buffer.address, self._buffer.view
        table = start + HEADER_NBYTES
        return Region(
            header_address=base + start,
            table_address=base + table,
            data_address=base + data_offset,
            header=view[start:table],
            table=view[table : table + table_nbytes],
            data=self._buffer.tensor[data_offset : data_offset + data_nbytes],
            bytes=view[data_offset : data_offset + data_nbytes],
        )


class Quarantine:
    """Arenas into which a READ may still land.

    A READ in flight cannot be cancelled: its bytes can arrive minutes later, when a stopped source is continued. Until
    every handle is done or broken, the memory is neither read, reused nor freed. When it would grow past its bound, the
    agent has to be destroyed, which is the only thing that ends such a READ.
    """

    def __init__(self) -> None:
        self._items: list[tuple[StagingArena, list[NixlHandle]]] = []

    @property
    def nbytes(self) -> int:
        """Bytes that cannot be used now."""
        return sum(arena.nbytes for arena, _handles in self._items)

    def add(self, arena: StagingArena, in_flight: list[NixlHandle]) -> None:
        """Take an arena and the handles that may still write into it."""
        self._items.append((arena, in_flight))

    def handles(self) -> set[NixlHandle]:
        """READs in flight: neither they nor their peers may be released."""
        return {handle for _arena, handles in self._items for handle in handles}

    def sweep(self, agent: NixlAgent) -> None:
        """Free every arena whose READs have ended."""
        for item in list(self._items):
            arena, handles = item
            for handle in list(handles):
                if _ended(agent, handle):
                    handles.remove(handle)
                    agent.release(handle)
            if not handles:
                self._items.remove(item)
                arena.deregister(agent)

    def drop(self) -> list[StagingArena]:
        """Forget every handle, for the agent to be destroyed; the arenas are to be kept until it is."""
        arenas = [arena for arena, _handles in self._items]
        self._items = []
        return arenas


def _ended(agent: NixlAgent, handle: NixlHandle) -> bool:
    """Only DONE and a disconnect end a READ. Any other error says nothing about bytes that are still on their way."""
    try:
        return agent.poll(handle)
    except DisconnectedError:
        return True
    except TransferError:
        return False


def _align(offset: int) -> int:
    return -(-offset // ALIGN_NBYTES) * ALIGN_NBYTES
