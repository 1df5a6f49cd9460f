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

REQUEST_NBYTES = 8 * 2**20
"""Bytes of one READ, rounded up to whole buckets: posting costs nothing beside it, and a slow network ends one soon
enough to tell slow from stopped."""


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

    All methods run on the agent's owner thread. ``in_flight`` are READs that have not ended: neither they nor their
    peers are released, because bytes of theirs may still land.
    """

    def __init__(self) -> None:
        self._peers: dict[str, _Peer] = {}
        self._orphans: list[_Peer] = []

    def __len__(self) -> int:
        return len(self._peers) + len(self._orphans)

    def prepare(
        self, agent: NixlAgent, shard: ShardSources, source: Source, region: Region, in_flight: set[NixlHandle]
    ) -> PreparedShard:
        """The READs for this shard from this source, made now or at an earlier version.

        Raises:
            TransferError: the metadata is corrupt, the source cannot be reached, or what it announced cannot hold the
                shard.
        """
        _check_ranges(shard, source, region)
        peer = self._load(agent, source, in_flight)
        memory = source.memory
        key = (int(memory.header_address), int(memory.data_address), shard.nbytes, region.data_address)
        prepared = peer.prepared.get(key)
        if prepared is None:
            prepared = peer.prepared[key] = _prepare(agent, peer.agent, source, region, shard.nbytes)
        return prepared

    def agents_of(self, worker_id: str) -> set[str]:
        """The agent loaded for a worker, if any."""
        peer = self._peers.get(worker_id)
        return set() if peer is None else {peer.agent}

    def forget(self, agent: NixlAgent, worker_id: str, in_flight: set[NixlHandle]) -> None:
        """Drop a source: after a failure, or because it has been replaced."""
        peer = self._peers.pop(worker_id, None)
        if peer is not None:
            self._orphans.append(peer)
            self._release_orphans(agent, in_flight)

    def forget_region(self, agent: NixlAgent, region: Region, in_flight: set[NixlHandle]) -> None:
        """Drop the READs prepared into a region that is no longer used."""
        for peer in self._peers.values():
            for key in [key for key in peer.prepared if key[-1] == region.data_address]:
                _release_handles(agent, peer.prepared.pop(key), in_flight)

    def keep_only(self, agent: NixlAgent, worker_ids: set[str], in_flight: set[NixlHandle]) -> None:
        """Drop every source that is not among these, so that a fleet that comes and goes leaves nothing behind."""
        for worker_id in self._peers.keys() - worker_ids:
            self._orphans.append(self._peers.pop(worker_id))
        self._release_orphans(agent, in_flight)

    def clear(self) -> None:
        """Forget everything without a call into NIXL, because the agent is about to be destroyed."""
        self._peers.clear()
        self._orphans.clear()

    def _load(self, agent: NixlAgent, source: Source, in_flight: set[NixlHandle]) -> _Peer:
        info = source.agent
        peer = self._peers.get(source.worker_id)
        if peer is not None:
            if (peer.agent, peer.metadata_digest) == (info.name, info.metadata_digest):
                return peer
            self.forget(agent, source.worker_id, in_flight)
        metadata = _decode_metadata(source)
        agent.add_peer(info.name, metadata)
        peer = self._peers[source.worker_id] = _Peer(info.name, info.metadata_digest, {})
        return peer

    def _release_orphans(self, agent: NixlAgent, in_flight: set[NixlHandle]) -> None:
        busy = {handle.peer for handle in in_flight}
        waiting = [peer for peer in self._orphans if peer.agent in busy]
        for peer in self._orphans:
            if peer not in waiting:
                _release(agent, peer)
        self._orphans = waiting


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
    size = -(-REQUEST_NBYTES // bucket) * bucket
    base = int(memory.data_address)
    made: list[NixlHandle] = []

    def read(local: int, remote: int, length: int) -> NixlHandle:
        handle = agent.prepare_read(local, remote, length, peer)
        made.append(handle)
        return handle

    try:
        header = read(region.header_address, int(memory.header_address), HEADER_NBYTES)
        table = None
        if memory.table_nbytes:
            table = read(region.table_address, int(memory.table_address), memory.table_nbytes)
        requests = [
            Request(
                read(region.data_address + start, base + start, min(size, nbytes - start)),
                start,
                min(start + size, nbytes),
            )
            for start in range(0, nbytes, size)
        ]
    except BaseException:
        for handle in made:
            agent.release(handle)
        raise
    return PreparedShard(header, table, requests)


def _release(agent: NixlAgent, peer: _Peer) -> None:
    for prepared in peer.prepared.values():
        _release_handles(agent, prepared, set())
    with contextlib.suppress(TransferError):  # a peer that broke off is gone already
        agent.remove_peer(peer.agent)


def _release_handles(agent: NixlAgent, prepared: PreparedShard, in_flight: set[NixlHandle]) -> None:
    for handle in prepared.handles():
        if handle not in in_flight:
            with contextlib.suppress(TransferError):  # freed with its peer in any case
                agent.release(handle)
