"""The resident engine as a checkpoint engine: for frameworks that pair ranks themselves and run no control plane.

Each policy rank keeps its newest versions in a registered arena; each rollout rank reads the newest one whenever it
likes. Late, slow and repeated readers cost the policy ranks nothing, and any number of rollouts may read one rank.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import time
from collections.abc import AsyncGenerator, Generator, Iterator, Mapping, Sequence
from typing import Any, Final

import torch

from weightcast.client.backoff import check_seconds
from weightcast.contract.layout import Layout, pack_layout, unpack_layout
from weightcast.contract.pulls import ShardSources, Source
from weightcast.contract.workers import SourceAgent, SourceMemory
from weightcast.engines.base import CheckpointEngine, WeightBatch
from weightcast.engines.directory import DirectoryReader, DirectoryWriter, Entry
from weightcast.engines.reader import DEFAULT_STALL_SECONDS, ResidentReader, Staged
from weightcast.engines.source import DEFAULT_SLOTS, ResidentSource
from weightcast.errors import DeadlineExceeded, InvalidArgument, TransferError
from weightcast.layout import build_layout, typed_view

_MODEL: Final = "standalone"
_EPOCH: Final = 1
_FIRST_NAP: Final = 0.001
_LONGEST_NAP: Final = 0.02
_CLOSE_SECONDS: Final = 10.0


class ResidentEngine(CheckpointEngine):
    """Paired ranks over resident arenas; see the module.

    Every policy rank must hold all weights (data parallel). Rollout rank i reads policy rank ``i % train_world_size``.

    Args:
        bucket_size: bytes covered by one digest, and about the size of the batches that are yielded.
        slots: versions that a policy rank keeps readable. Memory: ``slots`` copies of the weights in host memory.
        receive_timeout: seconds that :meth:`receive_weight_batches` waits for a version newer than the last.
        stall_seconds: a policy rank that delivers nothing for so long is given up.
        stable_tensors: a promise about the iterators given to :meth:`send_weights`: no memory that one has yielded is
            written to before that call returns, as with live parameters. Nothing is cloned then, and tied tensors are
            stored once. By default every tensor is cloned on its device as it comes, because an iterator may fill one
            buffer again and again: that costs a second copy of the weights, and tied tensors are stored once each.
    """

    def __init__(
        self,
        bucket_size: int,
        *,
        slots: int = DEFAULT_SLOTS,
        receive_timeout: float = 600.0,
        stall_seconds: float = DEFAULT_STALL_SECONDS,
        stable_tensors: bool = False,
    ) -> None:
        if bucket_size < 1:
            raise InvalidArgument(f"bucket_size must be at least 1 byte, not {bucket_size}")
        self._bucket_nbytes = bucket_size
        self._slots = slots
        self._receive_timeout = check_seconds("receive_timeout", receive_timeout)
        self._stall_seconds = check_seconds("stall_seconds", stall_seconds)
        self._stable_tensors = stable_tensors
        self._directory: DirectoryWriter | None = None
        self._source: ResidentSource | None = None
        self._reader: ResidentReader | None = None
        self._peer: DirectoryReader | None = None
        self._sent = 0
        self._received = ("", 0)  # the policy rank's agent, and the newest version received from it
        self._layout: tuple[str, Layout] | None = None

    def prepare(self) -> dict[str, str]:
        """Create the directory that peers will read; returns its metadata, which survives JSON. Idempotent."""
        if self._directory is None:
            self._directory = DirectoryWriter()
        return self._directory.metadata()

    def init_policy_process_group(
        self, *, worker_rank: int, train_world_size: int, rollout_world_size: int, metadata: Sequence[Any]
    ) -> None:
        """Become policy rank ``worker_rank``: readers come by themselves."""
        _check_ranks(worker_rank, train_world_size, train_world_size, rollout_world_size, metadata)
        if self._directory is None:
            raise InvalidArgument("call prepare() before init_policy_process_group()")

    def init_rollout_process_group(
        self, *, rollout_rank: int, train_world_size: int, rollout_world_size: int, metadata: Sequence[Any]
    ) -> None:
        """Become rollout rank ``rollout_rank`` and know which policy rank to read.

        May be called again. A policy rank with another agent (restarted, or another rank) counts its versions anew.
        """
        _check_ranks(rollout_rank, rollout_world_size, train_world_size, rollout_world_size, metadata)
        peer: Mapping[str, Any] = metadata[rollout_rank % train_world_size]
        if self._reader is None:
            self._reader = ResidentReader(_MODEL, "localhost", stall_seconds=self._stall_seconds)
        known, fresh = self._peer, DirectoryReader(peer)
        if known is not None and known.same_as(fresh):
            return
        self._peer = fresh
        if known is not None:
            # Where the owner thread is busy or broken, what is registered stays referenced until its agent is gone.
            with contextlib.suppress(DeadlineExceeded, TransferError):
                self._reader.call(known.close, _CLOSE_SECONDS, "closing the directory of the peer before")

    async def send_weights(self, weights: Generator[tuple[str, torch.Tensor], None, None]) -> None:
        """Copy one version into the arena and make it the newest. Readers of older slots are cut off by the header.

        Raises:
            InvalidArgument: a name comes twice.
            LayoutMismatch: the tensors are not those of the first version.
        """
        if self._directory is None:
            raise InvalidArgument("call prepare() before send_weights()")
        tensors: dict[str, torch.Tensor] = {}
        twice = []
        for name, tensor in weights:
            twice += [name] if name in tensors else []
            # A tensor may be a buffer that the iterator reuses for the next one: it is copied before going on.
            tensors[name] = tensor.detach() if self._stable_tensors else tensor.detach().clone()
        if twice:
            raise InvalidArgument(f"These names come twice: {sorted(set(twice))}")
        entry = await asyncio.to_thread(self._write, tensors)
        await asyncio.to_thread(self._directory.write, entry)

    async def receive_weight_batches(self) -> AsyncGenerator[WeightBatch, None]:
        """Wait for a version newer than the last received, verify all of it, then yield it in batches.

        The tensors are views of the staging arena, valid until the next call of this method.

        Raises:
            DeadlineExceeded: no newer version came in time.
            TransferError: it could not be read, or is not what the policy rank wrote.
        """
        if self._reader is None or self._peer is None:
            raise InvalidArgument("call init_rollout_process_group() before receive_weight_batches()")
        staged = await asyncio.to_thread(self._receive, self._reader, self._peer)
        for batch in _batches(staged, self._bucket_nbytes):
            yield batch

    def close(self) -> None:
        """End the agents and free the arenas."""
        for part in (self._reader, self._source, self._directory):
            if part is not None:
                part.close()
        self._reader = self._source = self._directory = self._peer = None

    def _write(self, tensors: Mapping[str, torch.Tensor]) -> Entry:
        if self._source is None:
            layout = build_layout(tensors)
            self._source = ResidentSource(_MODEL, layout, slots=self._slots, bucket_nbytes=self._bucket_nbytes)
        source = self._source
        version = self._sent + 1
        written = source.write(version % source.slots, version, _EPOCH, tensors)
        self._sent = version
        info, memory = source.agent_info(), source.memory().slots[written.slot]
        return Entry(
            version=version,
            layout=pack_layout(source.layout),
            layout_digest=source.layout_digest,
            digest_root=written.digest_root,
            nbytes=written.nbytes,
            bucket_nbytes=source.bucket_nbytes,
            generation=written.generation,
            agent=info.name,
            metadata=base64.b64decode(info.metadata),
            header_address=int(memory.header_address),
            table_address=int(memory.table_address),
            table_nbytes=memory.table_nbytes,
            data_address=int(memory.data_address),
        )

    def _receive(self, reader: ResidentReader, peer: DirectoryReader) -> Staged:
        ends = time.monotonic() + self._receive_timeout
        nap = _FIRST_NAP
        received_from, received = self._received
        newest = received if received_from == peer.peer else 0
        while True:
            entry = reader.call(lambda agent: peer.read(agent, newest), self._receive_timeout, "a directory READ")
            if entry is not None:
                try:
                    staged = self._fetch(reader, entry, max(1.0, ends - time.monotonic()))
                except TransferError as error:
                    # A newer version replaced it meanwhile: its entry follows.
                    if error.reason != "source_overwritten" or time.monotonic() >= ends:
                        raise
                else:
                    self._received = (peer.peer, entry.version)
                    return staged
            if time.monotonic() >= ends:
                raise DeadlineExceeded(f"A version after {newest}", self._receive_timeout)
            time.sleep(nap)
            nap = min(nap * 1.5, _LONGEST_NAP)

    def _fetch(self, reader: ResidentReader, entry: Entry, timeout: float) -> Staged:
        if self._layout is None or self._layout[0] != entry.layout_digest:
            self._layout = (entry.layout_digest, unpack_layout(entry.layout, entry.layout_digest))
        source = Source(
            worker_id=f"{_MODEL}:trainer:0",
            epoch=_EPOCH,
            host="localhost",
            agent=SourceAgent(
                name=entry.agent,
                purpose="serve",
                metadata=base64.b64encode(entry.metadata).decode(),
                metadata_digest=hashlib.sha256(entry.metadata).hexdigest(),
            ),
            memory=SourceMemory(
                header_address=str(entry.header_address),
                table_address=str(entry.table_address),
                table_nbytes=entry.table_nbytes,
                data_address=str(entry.data_address),
                data_nbytes=entry.nbytes,
            ),
            bucket_nbytes=entry.bucket_nbytes,
            slot_generation=entry.generation,
        )
        shard = ShardSources(
            shard=0,
            layout_digest=entry.layout_digest,
            digest_root=entry.digest_root,
            nbytes=entry.nbytes,
            sources=[source],
        )
        return reader.fetch(entry.version, [shard], {entry.layout_digest: self._layout[1]}, timeout)


def _batches(staged: Staged, nbytes: int) -> Iterator[WeightBatch]:
    batch: WeightBatch = []
    size = 0
    for shard in staged.shards:
        for spec in shard.layout.tensors:
            if batch and size + spec.nbytes > nbytes:
                yield batch
                batch, size = [], 0
            batch.append((spec.name, typed_view(shard.data, spec)))
            size += spec.nbytes
    if batch:
        yield batch


def _check_ranks(
    rank: int, world_size: int, train_world_size: int, rollout_world_size: int, metadata: Sequence[Any]
) -> None:
    if train_world_size < 1 or rollout_world_size < 1:
        raise InvalidArgument(f"world sizes must be at least 1, not {train_world_size} and {rollout_world_size}")
    if not 0 <= rank < world_size:
        raise InvalidArgument(f"rank {rank} is not in 0..{world_size - 1}")
    if len(metadata) != train_world_size + rollout_world_size:
        raise InvalidArgument(
            f"metadata has {len(metadata)} entries for {train_world_size} policy and {rollout_world_size} rollout ranks"
        )
