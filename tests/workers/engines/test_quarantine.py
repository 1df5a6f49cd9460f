"""What must not be touched while a READ is in flight. A recording agent stands in for one whose READs hang at will; the
real thing, a stopped process over TCP, is in tests/faults/test_stall.py."""

from __future__ import annotations

import base64
import hashlib
from typing import Any, cast

import torch
from weightcast.contract.names import PullFailure
from weightcast.contract.pulls import ShardSources, Source
from weightcast.contract.workers import SourceAgent, SourceMemory
from weightcast.engines.agent import DisconnectedError, NixlAgent, NixlHandle
from weightcast.engines.peers import PeerTable
from weightcast.engines.staging import Quarantine, Region, StagingArena
from weightcast.errors import TransferError


class RecordingAgent:
    """Notes every call; READs end when they are told to."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []
        self.outcome: dict[NixlHandle, bool | TransferError] = {}

    def add_peer(self, name: str, metadata: bytes) -> None:
        self.calls.append(("add", name))

    def remove_peer(self, name: str) -> None:
        self.calls.append(("remove", name))

    def prepare_read(self, local: int, remote: int, nbytes: int, peer: str) -> NixlHandle:
        return NixlHandle(object(), peer, nbytes)

    def release(self, handle: NixlHandle) -> None:
        assert handle.raw is not None, "released twice"
        handle.raw = None
        self.calls.append(("release", handle.peer))

    def poll(self, handle: NixlHandle) -> bool:
        outcome = self.outcome.get(handle, False)
        if isinstance(outcome, TransferError):
            raise outcome
        return outcome


class RecordingArena:
    """An arena that notes when it is given back."""

    nbytes = 100

    def __init__(self) -> None:
        self.freed = False

    def deregister(self, agent: NixlAgent) -> None:
        self.freed = True


def region() -> Region:
    return Region(1 << 20, 2 << 20, 3 << 20, memoryview(bytes(64)), memoryview(b""), torch.empty(0), memoryview(b""))


def source(agent: str) -> Source:
    metadata = agent.encode()
    return Source(
        worker_id="m:trainer:0",
        epoch=1,
        host="h",
        agent=SourceAgent(
            name=agent,
            purpose="serve",
            metadata=base64.b64encode(metadata).decode(),
            metadata_digest=hashlib.sha256(metadata).hexdigest(),
        ),
        memory=SourceMemory(
            header_address="4096", table_address="8192", table_nbytes=0, data_address="16384", data_nbytes=64
        ),
        bucket_nbytes=64,
        slot_generation=2,
    )


SHARD = ShardSources(shard=0, layout_digest="0" * 64, digest_root="0" * 64, nbytes=64, sources=[])


def test_a_replaced_source_is_kept_until_its_reads_have_ended() -> None:
    recording, peers = RecordingAgent(), PeerTable()
    agent = cast("NixlAgent", cast("Any", recording))
    old = peers.prepare(agent, SHARD, source("old"), region(), set())
    stuck = old.requests[0].handle
    peers.prepare(agent, SHARD, source("new"), region(), {stuck})
    assert recording.calls == [("add", "old"), ("add", "new")], "neither released nor removed"
    assert len(peers) == 2
    peers.keep_only(agent, {"m:trainer:0"}, {stuck})
    assert ("remove", "old") not in recording.calls
    peers.keep_only(agent, {"m:trainer:0"}, set())
    assert recording.calls.count(("release", "old")) == 2
    assert recording.calls[-1] == ("remove", "old")
    assert len(peers) == 1


def test_only_reads_in_flight_survive_a_region() -> None:
    recording, peers = RecordingAgent(), PeerTable()
    agent = cast("NixlAgent", cast("Any", recording))
    here = region()
    prepared = peers.prepare(agent, SHARD, source("old"), here, set())
    stuck = prepared.requests[0].handle
    peers.forget_region(agent, here, {stuck})
    assert recording.calls.count(("release", "old")) == 1
    assert prepared.header.raw is None
    assert stuck.raw is not None


def test_memory_is_freed_by_the_end_of_its_reads_and_by_nothing_else() -> None:
    recording, quarantine, arena = RecordingAgent(), Quarantine(), RecordingArena()
    agent = cast("NixlAgent", cast("Any", recording))
    done, broken, gone = (NixlHandle(object(), "p", 8) for _ in range(3))
    quarantine.add(cast("StagingArena", cast("Any", arena)), [done, broken, gone])
    recording.outcome = {
        done: True,
        broken: TransferError("an error that says nothing about bytes on their way", reason=PullFailure.INTERNAL),
        gone: DisconnectedError("the peer is gone"),
    }
    quarantine.sweep(agent)
    assert quarantine.handles() == {broken}
    assert quarantine.nbytes == arena.nbytes
    recording.outcome[broken] = True
    quarantine.sweep(agent)
    assert arena.freed
    assert quarantine.nbytes == 0
