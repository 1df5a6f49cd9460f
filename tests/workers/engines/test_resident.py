"""The resident engine behind the checkpoint-engine contract, without a control plane."""

from __future__ import annotations

import asyncio
import gc
import hashlib
import json
from collections.abc import Callable, Generator, Iterator, Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from support.weights import make_weights, sha256
from weightcast.contract.names import PullFailure
from weightcast.engines import directory
from weightcast.engines.agent import DisconnectedError
from weightcast.engines.base import CheckpointEngine, create_checkpoint_engine
from weightcast.engines.directory import DirectoryReader, Entry
from weightcast.engines.reader import ResidentReader
from weightcast.engines.resident import ResidentEngine
from weightcast.errors import DeadlineExceeded, InvalidArgument, TransferError


def stream(weights: dict[str, torch.Tensor]) -> Generator[tuple[str, torch.Tensor], None, None]:
    yield from weights.items()


async def receive(engine: CheckpointEngine) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    async for batch in engine.receive_weight_batches():
        found.update({name: tensor.clone() for name, tensor in batch})
    return found


@pytest.fixture
def engines() -> Iterator[tuple[ResidentEngine, list[ResidentEngine]]]:
    policy = ResidentEngine(bucket_size=64 * 1024)
    rollouts = [ResidentEngine(bucket_size=64 * 1024, receive_timeout=5.0) for _ in range(2)]
    # Metadata goes through whatever the framework uses; it survives JSON.
    metadata = json.loads(json.dumps([engine.prepare() for engine in (policy, *rollouts)]))
    policy.init_policy_process_group(worker_rank=0, train_world_size=1, rollout_world_size=2, metadata=metadata)
    for rank, rollout in enumerate(rollouts):
        rollout.init_rollout_process_group(
            rollout_rank=rank, train_world_size=1, rollout_world_size=2, metadata=metadata
        )
    yield policy, rollouts
    for engine in (policy, *rollouts):
        engine.close()


def test_refits_to_several_rollouts(engines: tuple[ResidentEngine, list[ResidentEngine]]) -> None:
    policy, rollouts = engines

    async def refits() -> None:
        for seed in range(4):
            weights = make_weights(seed)
            waiting = [asyncio.create_task(receive(rollout)) for rollout in rollouts]
            await policy.send_weights(stream(weights))
            for task in waiting:
                assert sha256(await task) == sha256(weights)
            policy.finalize()
        # A late reader finds the newest at once; one that has it waits in vain.
        rollouts[0]._receive_timeout = 0.2
        with pytest.raises(DeadlineExceeded):
            await receive(rollouts[0])

    asyncio.run(refits())


def test_prepare_is_idempotent_and_names_may_not_come_twice() -> None:
    engine = ResidentEngine(bucket_size=1024)
    try:
        assert engine.prepare()["agent_name"] == engine.prepare()["agent_name"]

        def twice() -> Generator[tuple[str, torch.Tensor], None, None]:
            yield "a", torch.ones(1)
            yield "a", torch.ones(1)

        with pytest.raises(InvalidArgument, match="come twice"):
            asyncio.run(engine.send_weights(twice()))
    finally:
        engine.close()


def test_create_by_name() -> None:
    engine = create_checkpoint_engine("resident", bucket_size_bytes=4096, engine_kwargs={"slots": 3})
    assert isinstance(engine, ResidentEngine)
    named = create_checkpoint_engine("weightcast.engines.resident:ResidentEngine", bucket_size_bytes=1)
    assert isinstance(named, ResidentEngine)
    for wrong in ("carrier-pigeon", "weightcast.nowhere:Engine", "weightcast.engines.resident:Nothing", ":", "x:"):
        with pytest.raises(ValueError, match=rf"^Unknown checkpoint-engine backend {wrong!r}"):
            create_checkpoint_engine(wrong, bucket_size_bytes=1)
    with pytest.raises(TypeError, match="not a CheckpointEngine"):
        create_checkpoint_engine("json:JSONDecoder", bucket_size_bytes=1)
    with pytest.raises(InvalidArgument):
        ResidentEngine(bucket_size=0)


def test_the_base_class_says_what_is_missing() -> None:
    class Sharded(ResidentEngine):
        shard_expert_weights = True

    assert ResidentEngine(bucket_size=1).get_target_weight_layout() is None
    with pytest.raises(NotImplementedError, match="get_target_weight_layout"):
        Sharded(bucket_size=1).get_target_weight_layout()


def test_ranks_are_checked() -> None:
    engine = ResidentEngine(bucket_size=1)
    cases: list[tuple[int, int, int, list[object]]] = [
        (0, 0, 1, []),
        (1, 1, 1, [{}, {}]),
        (-1, 1, 1, [{}, {}]),
        (0, 1, 1, [{}]),
    ]
    for rank, train, rollout, metadata in cases:
        with pytest.raises(InvalidArgument):
            engine.init_rollout_process_group(
                rollout_rank=rank, train_world_size=train, rollout_world_size=rollout, metadata=metadata
            )


def pair_up(rollout: ResidentEngine, policy: Mapping[str, str]) -> None:
    metadata = [dict(policy), {}]
    rollout.init_rollout_process_group(rollout_rank=0, train_world_size=1, rollout_world_size=1, metadata=metadata)


def pages_of(rollout: ResidentEngine) -> int:
    reader = rollout._reader
    assert reader is not None
    return reader.call(lambda agent: len(directory._pages.get(agent, [])), 10.0, "counting pages")


def test_a_rebuilt_agent_and_a_repeated_init_go_on_where_they_were(
    engines: tuple[ResidentEngine, list[ResidentEngine]],
) -> None:
    policy, (rollout, _other) = engines
    pair_up(rollout, policy.prepare())

    def refit(seed: int) -> None:
        weights = make_weights(seed)
        asyncio.run(policy.send_weights(stream(weights)))
        assert sha256(asyncio.run(receive(rollout))) == sha256(weights)

    refit(0)
    reader, peer = rollout._reader, rollout._peer
    assert reader is not None
    name = reader.agent_info().name
    reader.call(lambda _agent: reader._workspace._start_over(), 30.0, "rebuilding the agent")
    assert reader.agent_info().name != name
    refit(1)
    pair_up(rollout, policy.prepare())
    assert rollout._peer is peer
    refit(2)
    assert pages_of(rollout) == 1
    gc.collect()
    held = [
        page for pages in directory._pages.values() for page in pages if peer is not None and page.peer == peer.peer
    ]
    assert len(held) == 1, "the page of the destroyed agent is gone with it"


def test_versions_of_a_restarted_policy_count_anew_and_its_predecessor_leaves_nothing() -> None:
    rollout = ResidentEngine(bucket_size=64 * 1024, receive_timeout=5.0)
    try:
        for life in range(2):
            policy = ResidentEngine(bucket_size=64 * 1024)
            try:
                pair_up(rollout, policy.prepare())
                for seed in range(2 - life):
                    weights = make_weights(10 * life + seed)
                    asyncio.run(policy.send_weights(stream(weights)))
                    assert sha256(asyncio.run(receive(rollout))) == sha256(weights)
                assert pages_of(rollout) == 1
            finally:
                policy.close()
    finally:
        rollout.close()


@pytest.mark.parametrize("stable", [False, True])
def test_reused_buffers_are_cloned_and_stable_tensors_are_not(stable: bool) -> None:
    policy = ResidentEngine(bucket_size=1024, stable_tensors=stable)
    rollout = ResidentEngine(bucket_size=1024, receive_timeout=5.0)
    buffer = torch.empty(8)

    def reusing() -> Generator[tuple[str, torch.Tensor], None, None]:
        for index in range(3):
            yield f"t{index}", buffer.fill_(index)

    tied = {"t0": buffer, "t1": buffer, "t2": torch.ones(8)}
    try:
        pair_up(rollout, policy.prepare())
        asyncio.run(policy.send_weights(stream(tied) if stable else reusing()))
        found = asyncio.run(receive(rollout))
        expected = tied if stable else {f"t{index}": torch.full((8,), float(index)) for index in range(3)}
        assert sha256(found) == sha256(expected)
        assert policy._source is not None
        offsets = {spec.offset for spec in policy._source.layout.tensors}
        assert len(offsets) == (2 if stable else 3)
    finally:
        rollout.close()
        policy.close()


def test_an_overwritten_source_is_asked_again_with_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = ResidentEngine(bucket_size=1, receive_timeout=0.2)
    asked: list[object] = []

    def overwritten(*args: object) -> None:
        asked.append(args)
        raise TransferError("overwritten", reason=PullFailure.SOURCE_OVERWRITTEN)

    monkeypatch.setattr(engine, "_fetch", overwritten)
    reader = SimpleNamespace(call=lambda job, _timeout, _what: job(None))
    peer = SimpleNamespace(peer="p", read=lambda _agent, _newer: cast("Entry", object()))
    with pytest.raises(TransferError, match="overwritten"):
        engine._receive(cast("ResidentReader", reader), cast("DirectoryReader", peer))
    assert 3 <= len(asked) <= 25


class ScriptedAgent:
    """Stands for a NixlAgent; READs end as told."""

    def __init__(self) -> None:
        self.ending: Callable[[], bool] = lambda: True
        self.handles: set[object] = set()
        self.registered: set[object] = set()
        self.peers: list[str] = []

    def register(self, buffer: object) -> object:
        self.registered.add(buffer)
        return buffer

    def deregister(self, registration: object) -> None:
        self.registered.remove(registration)

    def add_peer(self, name: str, _metadata: bytes) -> None:
        self.peers.append(name)

    def remove_peer(self, name: str) -> None:
        self.peers.remove(name)

    def prepare_read(self, *_args: object) -> object:
        handle = object()
        self.handles.add(handle)
        return handle

    def post(self, handle: object) -> bool:
        assert handle in self.handles
        return self.ending()

    poll = post

    def release(self, handle: object) -> None:
        self.handles.remove(handle)


def broken(kind: type[TransferError]) -> Callable[[], bool]:
    def end() -> bool:
        raise kind("broken", reason=PullFailure.SOURCE_UNREACHABLE)

    return end


def scripted(name: str = "peer") -> tuple[Any, DirectoryReader]:
    digest = hashlib.sha256(b"").hexdigest()
    metadata = {"agent_name": name, "agent_metadata": "", "agent_metadata_digest": digest}
    return ScriptedAgent(), DirectoryReader(metadata | {"directory_address": "4096"})


@pytest.mark.parametrize("failure", ["stall", "error"])
def test_a_page_stays_until_its_reads_have_ended(failure: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory, "STALL_SECONDS", 0.01)
    agent, reader = scripted()
    agent.ending = (lambda: False) if failure == "stall" else broken(TransferError)
    for _ in range(directory._MOST_IN_FLIGHT + 3):
        with pytest.raises(TransferError):
            reader.read(agent, 0)
    assert len(agent.registered) == 1
    assert len(agent.handles) == directory._MOST_IN_FLIGHT
    reader.close(agent)
    assert (len(agent.registered), len(agent.peers)) == (1, 1), "READs are in flight"
    _unused, following = scripted("following")
    agent.ending = lambda: True
    assert following.read(agent, 0) is None
    assert len(agent.registered) == len(agent.handles) == 1
    assert agent.peers == ["following"]
    following.close(agent)
    assert not agent.registered and not agent.handles and not agent.peers  # noqa: PT018
    with pytest.raises(TransferError, match="no longer read"):
        reader.read(agent, 0)


def test_a_disconnect_ends_a_read_and_the_peer_is_loaded_again() -> None:
    agent, reader = scripted()
    agent.ending = broken(DisconnectedError)
    with pytest.raises(DisconnectedError):
        reader.read(agent, 0)
    assert not agent.handles
    agent.ending = lambda: True
    assert reader.read(agent, 0) is None
    assert agent.peers == ["peer"]
    assert len(agent.registered) == len(agent.handles) == 1
    other: Any = ScriptedAgent()
    assert reader.read(other, 0) is None, "another agent: everything is prepared anew"
    assert len(other.registered) == len(other.handles) == len(other.peers) == 1
