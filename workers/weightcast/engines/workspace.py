"""What a reading agent works with, and how it survives a READ that cannot be ended."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import structlog

from weightcast.contract.layout import Layout
from weightcast.contract.names import PullFailure
from weightcast.contract.pulls import ShardSources
from weightcast.engines.agent import NixlAgent, NixlHandle
from weightcast.engines.peers import PeerTable
from weightcast.engines.staging import Quarantine, StagingArena
from weightcast.errors import TransferError

_log = structlog.get_logger("weightcast.engines.workspace")

Shape = tuple[tuple[str, int], ...]
"""(layout digest, bucket size in bytes) of each shard."""

QUARANTINE_ARENAS: Final = 1
"""Quarantined memory allowed, in arenas: a spare is used beside it; past it the agent is destroyed and rebuilt."""


class Workspace:
    """Peers, staging arena and quarantine of one agent. All methods run on the agent's owner thread.

    Args:
        rebuild: destroys the agent and makes a new one.
    """

    def __init__(self, rebuild: Callable[[], NixlAgent]) -> None:
        self.peers = PeerTable()
        self.quarantine = Quarantine()
        self.shared_memory: dict[str, bool] = {}
        """By agent name, whether a source is read through shared memory: found out once per connection."""
        self._rebuild = rebuild
        self._arena: StagingArena | None = None
        self._shape: Shape = ()

    def begin(self, agent: NixlAgent, shards: Sequence[ShardSources], layouts: Mapping[str, Layout]) -> StagingArena:
        """The arena for these shards; sources that they do not name are forgotten."""
        self.quarantine.sweep(agent)
        named = {source.worker_id for shard in shards for source in shard.sources}
        self.peers.keep_only(agent, named, self.quarantine.handles())
        agents = {source.agent.name for shard in shards for source in shard.sources}
        for name in self.shared_memory.keys() - agents:
            del self.shared_memory[name]
        shape = tuple((shard.layout_digest, shard.sources[0].bucket_nbytes) for shard in shards)
        return self.reserve(agent, shape, [layouts[digest] for digest, _bucket in shape])

    def reserve(self, agent: NixlAgent, shape: Shape, layouts: Sequence[Layout]) -> StagingArena:
        """The arena for shards of these (layout digest, bucket size) pairs; made anew when they changed."""
        if self._arena is not None and self._shape != shape:
            self._forget_arena(agent, self._arena, set())
            self._arena.deregister(agent)
            self._arena = None
        if self._arena is None:
            buckets = [bucket for _digest, bucket in shape]
            self._arena = StagingArena(agent, list(zip(layouts, buckets, strict=True)))
            self._shape = shape
        return self._arena

    def after_failure(self, agent: NixlAgent, error: TransferError, in_flight: list[NixlHandle]) -> None:
        """Keep memory out of use that a READ may still write to, and drop a source that broke."""
        arena = self._arena
        if in_flight and arena is not None:
            self._forget_arena(agent, arena, set(in_flight))
            self.quarantine.add(arena, list(in_flight))
            self._arena = None
            nbytes = self.quarantine.nbytes
            _log.warning("staging memory quarantined", source=error.peer, version=error.version, nbytes=nbytes)
            if nbytes > QUARANTINE_ARENAS * arena.nbytes:
                self._start_over()
                return
        stalled = {handle.peer for handle in in_flight}
        broke = error.reason not in (PullFailure.SOURCE_OVERWRITTEN, PullFailure.CANCELLED)
        if error.peer is not None and broke and not stalled & self.peers.agents_of(error.peer):
            self.peers.forget(agent, error.peer, self.quarantine.handles())

    def idle(self, agent: NixlAgent) -> None:
        """Look after the quarantine, and drop what peers may have sent."""
        agent.discard_notifications()
        self.quarantine.sweep(agent)

    def _forget_arena(self, agent: NixlAgent, arena: StagingArena, in_flight: set[NixlHandle]) -> None:
        for region in arena.regions:
            self.peers.forget_region(agent, region, in_flight | self.quarantine.handles())

    def _start_over(self) -> None:
        kept = self.quarantine.drop()
        self.peers.clear()
        self._arena = None
        _log.warning("rebuilding the fetch agent to end READs that cannot be cancelled", arenas=len(kept))
        self._rebuild()
        del kept  # only now may the memory go
