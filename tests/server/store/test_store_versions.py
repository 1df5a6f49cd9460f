"""Versions from opening to READY or FAILED, and the target they become, against every store."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from support.stores import MODEL, RUN, Clock, Fleet, Recorder, agents, digest, memory, shard_body
from weightcast.contract.names import VersionFailure, VersionState
from weightcast.contract.problems import Code
from weightcast.contract.versions import OpenVersion
from weightcast_server.domain.keys import RevisionTopic, TargetTopic, VersionKey, VersionTopic
from weightcast_server.store.protocol import Caller, Store, StoreRefusal

pytestmark = pytest.mark.anyio


async def refusal(call: Any) -> StoreRefusal:
    with pytest.raises(StoreRefusal) as refused:
        await call
    return refused.value


async def test_every_rank_that_opens_gets_the_same_version(store: Store, fleet: Fleet) -> None:
    trainers = [await fleet.trainer(rank, 4) for rank in range(4)]
    body = OpenVersion(run=RUN, step=7, world_size=4)
    opened = await asyncio.gather(*[store.open_version(trainer, MODEL, body) for trainer in trainers])
    assert {outcome.version for outcome in opened} == {1}
    assert sorted(outcome.created for outcome in opened) == [False, False, False, True]
    assert await fleet.open(trainers[0], 7, 4, attempt=1) == 2
    assert await fleet.open(trainers[0], 3, 4) == 3, "the step may go back, the version may not"


async def test_the_same_key_with_other_parameters_is_a_conflict(store: Store, fleet: Fleet) -> None:
    trainer = await fleet.trainer(0, 2)
    await fleet.open(trainer, 1, 2)
    assert (await refusal(fleet.open(trainer, 1, 3))).code is Code.VERSION_CONFLICT
    assert (await refusal(fleet.open(trainer, 1, 2, shards=2))).code is Code.VERSION_CONFLICT
    assert (await refusal(fleet.open(trainer, 2, 2, shards=3))).code is Code.VALIDATION_FAILED
    assert (await refusal(fleet.open(trainer, 2, 2, run="other"))).code is Code.MODEL_OWNED
    rollout = await fleet.rollout()
    assert (await refusal(fleet.open(rollout, 2))).code is Code.VALIDATION_FAILED


async def test_ready_comes_with_the_last_slot_and_changes_the_target(
    store: Store, fleet: Fleet, recorder: Recorder, clock: Clock
) -> None:
    trainers = [await fleet.trainer(rank, 2) for rank in range(2)]
    recorder.take()
    version = await fleet.open(trainers[0], 5, 2, deadline_seconds=9.0)
    (changes,) = recorder.take()
    assert [(timer.key, timer.seconds) for timer in changes.timers] == [(VersionKey(MODEL, version), 9.0)]
    assert changes.topics == {VersionTopic(MODEL, version)}
    first = await store.publish_shard(trainers[0], MODEL, version, 0, shard_body())
    assert first.state is VersionState.STAGING
    assert not recorder.take_topics()
    before = await store.get_target(MODEL)
    clock.now += 10
    last = await store.publish_shard(trainers[1], MODEL, version, 1, shard_body())
    assert last.state is VersionState.READY
    (changes,) = recorder.take()
    assert {TargetTopic(MODEL), RevisionTopic(MODEL), VersionTopic(MODEL, version)} <= changes.topics
    assert [(timer.key, timer.seconds) for timer in changes.timers] == [(VersionKey(MODEL, version), None)]
    target = await store.get_target(MODEL)
    assert changes.targets == {MODEL: target}
    assert (target.version, target.step, target.ready_at) == (version, 5, clock.now)
    assert target.revision == before.revision + 1
    shown = await store.get_version(MODEL, version)
    assert (shown.state, shown.available, shown.published, shown.nbytes) == (VersionState.READY, True, [0, 1], 800)
    assert [(holding.worker_id, holding.shard) for holding in shown.holdings] == [
        (trainer.worker_id, 0) for trainer in trainers
    ]


async def test_a_publication_may_be_repeated_but_not_changed(store: Store, fleet: Fleet) -> None:
    trainers = [await fleet.trainer(rank, 2) for rank in range(2)]
    version = await fleet.open(trainers[0], 1, 2)
    for _ in range(2):
        outcome = await store.publish_shard(trainers[0], MODEL, version, 0, shard_body())
        assert outcome.state is VersionState.STAGING
    assert outcome.replayed
    other = store.publish_shard(trainers[0], MODEL, version, 0, shard_body(slot_generation=2))
    assert (await refusal(other)).code is Code.SHARD_CONFLICT
    await store.publish_shard(trainers[1], MODEL, version, 1, shard_body())
    outcome = await store.publish_shard(trainers[0], MODEL, version, 0, shard_body())
    assert (outcome.state, outcome.replayed) == (VersionState.READY, True)
    other = store.publish_shard(trainers[0], MODEL, version, 0, shard_body(slot_generation=2))
    assert (await refusal(other)).code is Code.VERSION_STATE


async def test_a_ready_shard_may_be_offered_again_under_a_newer_epoch_unchanged_only(
    store: Store, fleet: Fleet
) -> None:
    trainer = await fleet.trainer()
    version = (await fleet.publish([trainer], 1)).version
    successor = await fleet.trainer()
    assert not (await store.get_version(MODEL, version)).available, "the holding ended with its epoch"
    changed: list[dict[str, Any]] = [{"nbytes": 799}, {"digest_root": "0" * 64}]
    for changes in changed:
        other = store.publish_shard(successor, MODEL, version, 0, shard_body("1/0", **changes))
        assert (await refusal(other)).code is Code.VERSION_STATE
    again = shard_body("1/0", memory_slot=1, slot_generation=8)
    for replayed in (False, True):
        outcome = await store.publish_shard(successor, MODEL, version, 0, again)
        assert (outcome.state, outcome.replayed) == (VersionState.READY, replayed)
    found = await store.get_version(MODEL, version)
    assert found.available
    assert [(held.worker_id, held.epoch) for held in found.holdings] == [(successor.worker_id, successor.epoch)]
    assignment = await fleet.pull(await fleet.rollout())
    (source,) = assignment.shards[0].sources
    assert (source.epoch, source.slot_generation) == (successor.epoch, 8)
    assert (await refusal(store.publish_shard(trainer, MODEL, version, 0, shard_body("1/0")))).code is Code.STALE_EPOCH


@pytest.mark.parametrize(
    ("slot", "fields", "code"),
    [
        (1, {}, Code.VALIDATION_FAILED),
        (2, {}, Code.VERSION_CONFLICT),
        (0, {"shard": 1}, Code.VALIDATION_FAILED),
        (0, {"layout_digest": "f" * 64}, Code.UNKNOWN_LAYOUT),
        (0, {"nbytes": 799}, Code.VALIDATION_FAILED),
        (0, {"memory_slot": 2}, Code.VALIDATION_FAILED),
    ],
)
async def test_a_publication_must_fit(
    store: Store, fleet: Fleet, slot: int, fields: dict[str, Any], code: Code
) -> None:
    trainer = await fleet.trainer(0, 2)
    version = await fleet.open(trainer, 1, 2)
    refused = await refusal(store.publish_shard(trainer, MODEL, version, slot, shard_body(**fields)))
    assert refused.code is code
    assert (await store.get_version(MODEL, version)).published == []


@pytest.mark.parametrize(
    "fields", [{"memory": None}, {"memory": memory(1, 799)}, {"agents": agents("blind", ["fetch"])}]
)
async def test_a_publisher_must_have_memory_to_read(store: Store, fleet: Fleet, fields: dict[str, Any]) -> None:
    trainer = await fleet.trainer(**fields)
    version = await fleet.open(trainer, 1)
    assert (await refusal(store.publish_shard(trainer, MODEL, version, 0, shard_body()))).code is Code.VALIDATION_FAILED


@pytest.mark.parametrize(
    ("fields", "failure"),
    [
        ({"digest_root": digest("other bytes")}, VersionFailure.REPLICA_DIGEST_MISMATCH),
        ({"layout_digest": digest("other layout")}, VersionFailure.REPLICA_LAYOUT_MISMATCH),
    ],
)
async def test_replicas_of_a_shard_must_be_equal(
    store: Store, fleet: Fleet, fields: dict[str, Any], failure: VersionFailure
) -> None:
    trainers = [await fleet.trainer(rank, 3) for rank in range(3)]
    await store.put_layout(trainers[0], MODEL, digest("other layout"), b"other", 800)
    version = await fleet.open(trainers[0], 1, 3)
    await store.publish_shard(trainers[0], MODEL, version, 0, shard_body())
    refused = await refusal(store.publish_shard(trainers[2], MODEL, version, 2, shard_body(**fields)))
    assert refused.code is Code.VERSION_STATE
    assert "slots 0 and 2" in refused.detail
    shown = await store.get_version(MODEL, version)
    assert (shown.state, shown.failure, shown.holdings) == (VersionState.FAILED, failure, [])
    assert shown.failed_at is not None
    late = await refusal(store.publish_shard(trainers[1], MODEL, version, 1, shard_body()))
    assert late.code is Code.VERSION_STATE


async def test_slots_that_leave_a_shard_uncovered_fail_the_version(store: Store, fleet: Fleet) -> None:
    trainers = [await fleet.trainer(rank, 2) for rank in range(2)]
    version = await fleet.open(trainers[0], 1, 2, shards=2)
    await store.publish_shard(trainers[0], MODEL, version, 0, shard_body())
    refused = await refusal(store.publish_shard(trainers[1], MODEL, version, 1, shard_body()))
    assert refused.code is Code.VERSION_STATE
    assert (await store.get_version(MODEL, version)).failure is VersionFailure.SHARDS_INCOMPLETE


async def test_abort_is_final_and_may_be_repeated(store: Store, fleet: Fleet) -> None:
    trainer = await fleet.trainer()
    version = await fleet.open(trainer, 1)
    for _ in range(2):
        await store.abort_version(trainer, MODEL, version, "loss is NaN")
    shown = await store.get_version(MODEL, version)
    assert (shown.state, shown.failure, shown.reason) == (VersionState.FAILED, VersionFailure.ABORTED, "loss is NaN")
    assert (await refusal(store.publish_shard(trainer, MODEL, version, 0, shard_body()))).code is Code.VERSION_STATE
    ready = (await fleet.publish([trainer], 2)).version
    assert (await refusal(store.abort_version(trainer, MODEL, ready, ""))).code is Code.VERSION_STATE
    assert (await refusal(store.abort_version(trainer, MODEL, 99, ""))).code is Code.UNKNOWN_VERSION


async def test_a_deadline_fails_what_is_staging_only(store: Store, fleet: Fleet, recorder: Recorder) -> None:
    trainer = await fleet.trainer()
    ready = (await fleet.publish([trainer], 1)).version
    staging = await fleet.open(trainer, 2)
    recorder.take()
    await store.expire([VersionKey(MODEL, ready), VersionKey(MODEL, staging), VersionKey("nobody", 1)])
    (changes,) = recorder.take()
    assert {timer.key for timer in changes.timers if timer.seconds is None} == {
        VersionKey(MODEL, ready),
        VersionKey(MODEL, staging),
        VersionKey("nobody", 1),
    }
    assert (await store.get_version(MODEL, ready)).state is VersionState.READY
    shown = await store.get_version(MODEL, staging)
    assert (shown.state, shown.failure) == (VersionState.FAILED, VersionFailure.DEADLINE)


async def test_the_target_is_the_newest_version_that_can_be_had(store: Store, fleet: Fleet) -> None:
    trainer = await fleet.trainer()
    for step in (1, 2):
        await fleet.publish([trainer], step)
    assert (await store.get_target(MODEL)).version == 2
    await fleet.publish([trainer], 3, slot=0)
    assert (await store.get_target(MODEL)).version == 3
    assert not (await store.get_version(MODEL, 2)).available, "its memory slot was filled anew"
    assert (await store.get_version(MODEL, 1)).available
    await store.drain_holding(trainer, MODEL, 3, trainer.worker_id, final=False)
    assert (await store.get_target(MODEL)).version == 1
    await store.leave(trainer)
    assert (await store.get_target(MODEL)).version is None


async def test_a_version_survives_a_trainer_while_others_hold_it(store: Store, fleet: Fleet) -> None:
    trainers = [await fleet.trainer(rank, 4) for rank in range(4)]
    version = (await fleet.publish(trainers, 1, shards=2)).version
    await store.expire([trainers[0], trainers[1]])
    assert (await store.get_version(MODEL, version)).available
    await store.leave(trainers[2])
    shown = await store.get_version(MODEL, version)
    assert (shown.state, shown.available) == (VersionState.READY, False)


async def test_unknown_things_are_named(store: Store, fleet: Fleet) -> None:
    assert (await refusal(store.get_target("nobody"))).code is Code.UNKNOWN_MODEL
    assert (await refusal(store.get_version("nobody", 1))).code is Code.UNKNOWN_MODEL
    trainer = await fleet.trainer()
    assert (await refusal(store.get_version(MODEL, 1))).code is Code.UNKNOWN_VERSION
    assert (await refusal(store.get_layout(MODEL, "f" * 64))).code is Code.UNKNOWN_LAYOUT
    assert (await refusal(store.publish_shard(trainer, MODEL, 1, 0, shard_body()))).code is Code.UNKNOWN_VERSION
    assert (await refusal(store.get_worker("x"))).code is Code.UNKNOWN_WORKER
    assert (await refusal(store.get_pull("0" * 32))).code is Code.UNKNOWN_PULL
    foreign = store.put_layout(trainer, "nobody", "f" * 64, b"", 0)
    assert (await refusal(foreign)).code is Code.VALIDATION_FAILED


async def test_a_layout_is_kept_as_it_came(store: Store, fleet: Fleet) -> None:
    trainer = await fleet.trainer()
    assert not await store.put_layout(trainer, MODEL, digest("layout"), b"other bytes", 1)
    assert await store.get_layout(MODEL, digest("layout")) == b"blob"


async def test_models_do_not_see_each_other(store: Store, fleet: Fleet) -> None:
    trainer = await fleet.trainer()
    await fleet.publish([trainer], 1)
    other = await fleet.trainer(model="critic")
    assert (await store.get_target("critic")).version is None
    assert (await refusal(fleet.open(other, 1))).code is Code.VALIDATION_FAILED
    stranger = Caller(other.worker_id, other.epoch)
    assert (await refusal(store.abort_version(stranger, MODEL, 1, ""))).code is Code.VALIDATION_FAILED
