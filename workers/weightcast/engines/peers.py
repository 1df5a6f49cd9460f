"""Sources as a reading agent knows them: loaded once, with READs prepared once and posted at every version."""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
from dataclasses import dataclass

from weightcast.contract.names import PullFailure
from weightcast.contract.pulls import ShardSources, Source
from weightcast.engines.agent import NixlAgent, NixlHandle
from weightcast.engines.header import HEADER_NBYTES
from weightcast.engines.staging import Region
from weightcast.errors import TransferError

MIN_REQUEST_NBYTES = 8 * 2**20
MAX_REQUESTS = 512
"""Per shard. A READ request costs 2 µs of posting and one Python step; requests grow with the shard instead."""


@dataclass(frozen=True, slots=True)
class Request:
    """One prepared READ and the part of the shard's data that it fills, in bytes."""

    handle: NixlHandle
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class PreparedShard:
    """Everything to be posted for one shard from one slot of one source into one region."""

    header: NixlHandle
    table: NixlHandle | None
    requests: list[Request]

    def handles(self) -> list[NixlHandle]:
        """Every handle, for release."""
        table = [self.table] if self.table is not None else []
        return [self.header, *table, *(request.handle for request in self.requests)]


@dataclass(slots=True)
class _Peer:
    agent: str
    metadata_digest: str
    prepared: dict[tuple[int, ...], PreparedShard]


class PeerTable:
    """The sources that one agent has loaded, by worker id. One agent per worker: a restarted source replaces its entry.

    All methods run on the agent's owner thread.
    """

    def __init__(self) -> None:
        self._peers: dict[str, _Peer] = {}

    def __len__(self) -> int:
        return len(self._peers)

    def prepare(self, agent: NixlAgent, shard: ShardSources, source: Source, region: Region) -> PreparedShard:
        """The READs for this shard from this source, made now or at an earlier version.

        Raises:
            TransferError: the metadata is corrupt, the source cannot be reached, or what it announced cannot hold the
                shard.
        """
        _check_ranges(shard, source, region)
        peer = self._load(agent, source)
        memory = source.memory
        key = (int(memory.header_address), int(memory.data_address), shard.nbytes, region.data_address)
        prepared = peer.prepared.get(key)
        if prepared is None:
            prepared = peer.prepared[key] = _prepare(agent, peer.agent, source, region, shard.nbytes)
        return prepared

    def forget(self, agent: NixlAgent, worker_id: str, in_flight: set[str]) -> None:
        """Drop a source after a failure, unless a READ from it is still in flight."""
        peer = self._peers.get(worker_id)
        if peer is None or peer.agent in in_flight:
            return
        del self._peers[worker_id]
        _release(agent, peer)

    def forget_region(self, agent: NixlAgent, region: Region, in_flight: set[str]) -> None:
        """Drop the READs prepared into a region that is no longer used."""
        for peer in self._peers.values():
            for key in [key for key in peer.prepared if key[-1] == region.data_address]:
                prepared = peer.prepared.pop(key)
                if peer.agent not in in_flight:
                    _release_handles(agent, prepared)

    def keep_only(self, agent: NixlAgent, worker_ids: set[str], in_flight: set[str]) -> None:
        """Drop every source that is not among these, so that a fleet that comes and goes leaves nothing behind."""
        for worker_id in self._peers.keys() - worker_ids:
            self.forget(agent, worker_id, in_flight)

    def clear(self) -> None:
        """Forget everything without a call into NIXL, because the agent is about to be destroyed."""
        self._peers.clear()

    def _load(self, agent: NixlAgent, source: Source) -> _Peer:
        info = source.agent
        peer = self._peers.get(source.worker_id)
        if peer is not None:
            if (peer.agent, peer.metadata_digest) == (info.name, info.metadata_digest):
                return peer
            del self._peers[source.worker_id]
            _release(agent, peer)
        metadata = _decode_metadata(source)
        agent.add_peer(info.name, metadata)
        peer = self._peers[source.worker_id] = _Peer(info.name, info.metadata_digest, {})
        return peer


def _decode_metadata(source: Source) -> bytes:
    """Metadata with flipped bits may be accepted by NIXL or crash the process: only digest-checked bytes reach it."""
    try:
        metadata = base64.b64decode(source.agent.metadata, validate=True)
    except (binascii.Error, ValueError) as error:
        raise TransferError(
            f"its NIXL metadata is not base64: {error}", reason=PullFailure.METADATA_CORRUPT, peer=source.worker_id
        ) from None
    if not metadata or hashlib.sha256(metadata).hexdigest() != source.agent.metadata_digest:
        raise TransferError(
            "its NIXL metadata does not have the announced digest",
            reason=PullFailure.METADATA_CORRUPT,
            peer=source.worker_id,
        )
    return metadata


def _check_ranges(shard: ShardSources, source: Source, region: Region) -> None:
    """NIXL checks no overflow: an absurd address or length would crash the process."""
    memory = source.memory
    for what, address, nbytes in (
        ("header", int(memory.header_address), HEADER_NBYTES),
        ("digest table", int(memory.table_address), memory.table_nbytes),
        ("data", int(memory.data_address), memory.data_nbytes),
    ):
        if nbytes and not 0 < address <= 2**64 - 1 - nbytes:
            raise TransferError(
                f"its {what} cannot lie at {address} with {nbytes} bytes",
                reason=PullFailure.METADATA_CORRUPT,
                peer=source.worker_id,
            )
    if memory.data_nbytes < shard.nbytes or memory.table_nbytes != len(region.table):
        raise TransferError(
            f"its slot of {memory.data_nbytes} bytes cannot hold the shard of {shard.nbytes}",
            reason=PullFailure.METADATA_CORRUPT,
            peer=source.worker_id,
        )


def _prepare(agent: NixlAgent, peer: str, source: Source, region: Region, nbytes: int) -> PreparedShard:
    memory, bucket = source.memory, source.bucket_nbytes
    header = agent.prepare_read(region.header_address, int(memory.header_address), HEADER_NBYTES, peer)
    table = None
    if memory.table_nbytes:
        table = agent.prepare_read(region.table_address, int(memory.table_address), memory.table_nbytes, peer)
    size = -(-max(MIN_REQUEST_NBYTES, nbytes // MAX_REQUESTS) // bucket) * bucket
    base = int(memory.data_address)
    requests = [
        Request(
            agent.prepare_read(region.data_address + start, base + start, min(size, nbytes - start), peer),
            start,
            min(start + size, nbytes),
        )
        for start in range(0, nbytes, size)
    ]
    return PreparedShard(header, table, requests)


def _release(agent: NixlAgent, peer: _Peer) -> None:
    for prepared in peer.prepared.values():
        _release_handles(agent, prepared)
    with contextlib.suppress(TransferError):  # a peer that broke off is gone already
        agent.remove_peer(peer.agent)


def _release_handles(agent: NixlAgent, prepared: PreparedShard) -> None:
    for handle in prepared.handles():
        agent.release(handle)
