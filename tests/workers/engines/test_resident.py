"""The resident engine behind the checkpoint-engine contract, without a control plane."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Generator, Iterator

import pytest
import torch
from support.weights import make_weights, sha256
from weightcast.engines.base import CheckpointEngine, create_checkpoint_engine
from weightcast.engines.resident import ResidentEngine
from weightcast.errors import DeadlineExceeded, InvalidArgument


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
