"""A source and a reader with real NIXL agents in this process."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
import torch
from support.weights import make_weights
from weightcast.contract.layout import Layout
from weightcast.contract.pulls import ShardSources, Source
from weightcast.contract.workers import SourceAgent, SourceMemory
from weightcast.engines.reader import ResidentReader, Staged
from weightcast.engines.source import ResidentSource, WrittenSlot
from weightcast.layout import build_layout, typed_view

BUCKET = 64 * 1024
EPOCH = 3


@dataclass
class Pair:
    """One source, one reader, and the assignment between them."""

    source: ResidentSource
    reader: ResidentReader
    weights: dict[str, torch.Tensor] = field(default_factory=dict)

    def write(self, version: int, seed: int) -> WrittenSlot:
        self.weights = make_weights(seed)
        return self.source.write(version % 2, version, EPOCH, self.weights)

    def shard(self, written: WrittenSlot, **changes: object) -> ShardSources:
        """What the control plane would assign; ``changes`` to the source."""
        info = self.source.agent_info()
        memory = self.source.memory()
        source = Source(
            worker_id="policy:trainer:0",
            epoch=EPOCH,
            host="localhost",
            agent=SourceAgent(**info.model_dump()),
            memory=SourceMemory(**memory.slots[written.slot].model_dump()),
            bucket_nbytes=memory.bucket_nbytes,
            slot_generation=written.generation,
        )
        return ShardSources(
            shard=0,
            layout_digest=self.source.layout_digest,
            digest_root=written.digest_root,
            nbytes=written.nbytes,
            sources=[source.model_copy(update=changes)],
        )

    @property
    def layouts(self) -> dict[str, Layout]:
        return {self.source.layout_digest: self.source.layout}

    def fetch(self, version: int, shard: ShardSources) -> Staged:
        return self.reader.fetch(version, [shard], self.layouts, 20.0)


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    source = ResidentSource("policy", build_layout(make_weights(0)), bucket_nbytes=BUCKET)
    reader = ResidentReader("policy", "localhost")
    yield Pair(source, reader)
    reader.close()
    source.close()


def staged_tensors(staged: Staged) -> dict[str, torch.Tensor]:
    return {spec.name: typed_view(shard.data, spec) for shard in staged.shards for spec in shard.layout.tensors}
