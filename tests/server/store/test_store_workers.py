"""Registration, fences, goodbyes and lost leases, against every store."""

from __future__ import annotations

import pytest
from pydantic import ValidationError
from support.stores import MODEL, RUN, Clock, Fleet, Recorder, agents, memory, rollout_body, shard_body, trainer_body
from weightcast.contract.names import PullFailure, PullState, Role, VersionFailure, VersionState, WorkerState
from weightcast.contract.problems import Code
from weightcast.contract.pulls import RequestPull
from weightcast.contract.versions import OpenVersion
from weightcast.contract.workers import UpdateMemory
from weightcast_server.domain.keys import ReplicasTopic, ReplicaTopic
from weightcast_server.store.protocol import Caller, Store, StoreRefusal

pytestmark = pytest.mark.anyio


async def test_a_fresh_rank_starts_at_epoch_one_and_a_wiped_store_continues_above(store: Store, clock: Clock) -> None:
    fresh = await store.register_worker(trainer_body())
    assert (fresh.worker_id, fresh.epoch, fresh.replayed) == (f"{MODEL}:trainer:0", 1, False)
    assert fresh.registered_at == clock.now
    survivor = await store.register_worker(rollout_body(previous_epoch=7, highest_version=41, serving_version=40))
    assert (survivor.worker_id, survivor.epoch) == (f"{MODEL}:rollout:r0:0", 8)
    opened = await store.open_version(Caller(fresh.worker_id, 1), MODEL, OpenVersion(run=RUN, step=0, world_size=1))
    assert opened.version == 42


async def test_a_repeated_registration_keeps_its_epoch_and_refreshes_its_fields(store: Store, fleet: Fleet) -> None:
    body = rollout_body(host="old", serving_version=None)
    first = await store.register_worker(body)
    again = await store.register_worker(body.model_copy(update={"host": "new", "serving_version": 3}))
    assert (again.epoch, again.replayed, again.registered_at) == (1, True, first.registered_at)
    worker = await store.get_worker(first.worker_id)
    assert (worker.host, worker.serving_version, worker.state) == ("new", 3, WorkerState.LIVE)
    assert [replica.generation for replica in (await store.list_replicas(MODEL, cursor=None, limit=9)).items] == [1]


async def test_a_new_process_fences_the_one_before_which_may_not_come_back(store: Store, fleet: Fleet) -> None:
    zombie = await fleet.rollout()
    await fleet.rollout()
    with pytest.raises(StoreRefusal, match="taken over") as refused:
        await fleet.assign(zombie)
    assert refused.value.code is Code.STALE_EPOCH
    with pytest.raises(StoreRefusal) as refused:
        await store.register_worker(rollout_body(previous_epoch=1))
    assert refused.value.code is Code.STALE_EPOCH
    replicas = await store.list_replicas(MODEL, cursor=None, limit=9)
    assert replicas.items[0].generation == 2


async def test_every_fenced_write_refuses_the_same_callers(store: Store, fleet: Fleet) -> None:
    trainer = await fleet.trainer()
    version = (await fleet.publish([trainer], 1)).version
    rollout = await fleet.rollout()
    pull = (await fleet.pull(rollout)).pull
    cases = {
        Code.UNKNOWN_WORKER: (Caller(f"{MODEL}:trainer:9", 1), Caller(f"{MODEL}:rollout:x:0", 1)),
        Code.STALE_EPOCH: (Caller(trainer.worker_id, 0), Caller(rollout.worker_id, 0)),
        Code.LEASE_EXPIRED: (trainer, rollout),
    }
    ahead = Caller(trainer.worker_id, 5)
    with pytest.raises(StoreRefusal) as refused:
        await store.abort_version(ahead, MODEL, version, "")
    assert refused.value.code is Code.UNKNOWN_WORKER
    for code, (as_trainer, as_rollout) in cases.items():
        if code is Code.LEASE_EXPIRED:
            await store.expire([trainer, rollout])
        calls = [
            store.update_memory(as_trainer, UpdateMemory(agents=agents("a"), memory=memory())),
            store.put_layout(as_trainer, MODEL, "0" * 64, b"", 0),
            store.open_version(as_trainer, MODEL, OpenVersion(run=RUN, step=9, world_size=1)),
            store.publish_shard(as_trainer, MODEL, version, 0, shard_body(9)),
            store.abort_version(as_trainer, MODEL, version, ""),
            store.drain_holding(as_trainer, MODEL, version, as_trainer.worker_id, final=True),
            store.assign_pull(as_rollout, MODEL, RequestPull()),
            fleet.move(as_rollout, pull, "fetching"),
        ]
        if code is not Code.LEASE_EXPIRED:
            calls.append(store.leave(as_trainer))
        for call in calls:
            with pytest.raises(StoreRefusal) as refused:
                await call
            assert refused.value.code is code, call


async def test_the_end_of_a_lease_ends_everything_of_the_epoch(store: Store, fleet: Fleet) -> None:
    trainers = [await fleet.trainer(rank, 2) for rank in range(2)]
    ready = await fleet.publish(trainers, 1)
    staging = await fleet.open(trainers[0], 2, 2)
    untouched = await fleet.open(trainers[0], 3, 2)
    await store.publish_shard(trainers[0], MODEL, staging, 0, shard_body(2))
    rollout = await fleet.rollout()
    pull = (await fleet.pull(rollout)).pull
    await store.expire([trainers[0], rollout])
    assert (await store.get_worker(trainers[0].worker_id)).state is WorkerState.LOST
    version = await store.get_version(MODEL, ready.version)
    assert version.available
    assert [holding.worker_id for holding in version.holdings] == [trainers[1].worker_id]
    failed = await store.get_version(MODEL, staging)
    assert (failed.state, failed.failure) == (VersionState.FAILED, VersionFailure.PUBLISHER_LOST)
    assert trainers[0].worker_id in (failed.reason or "")
    assert (await store.get_version(MODEL, untouched)).state is VersionState.STAGING
    assert (await store.get_pull(pull.pull_id)).failure is PullFailure.WORKER_LOST
    assert not (await store.get_worker(rollout.worker_id)).tainted


async def test_a_rank_lost_while_applying_is_tainted_until_its_next_apply(store: Store, fleet: Fleet) -> None:
    trainer = await fleet.trainer()
    await fleet.publish([trainer], 1)
    rollout = await fleet.rollout()
    await fleet.move(rollout, (await fleet.pull(rollout)).pull, "staged", "applying")
    await store.expire([rollout])
    worker = await store.get_worker(rollout.worker_id)
    assert (worker.tainted, worker.serving_version) == (True, None)
    again = await fleet.rollout(previous_epoch=rollout.epoch, tainted=True)
    assert (await store.get_worker(again.worker_id)).tainted
    await fleet.apply(again)
    worker = await store.get_worker(again.worker_id)
    assert (worker.tainted, worker.serving_version) == (False, 1)


async def test_a_lease_that_moved_on_is_not_ended(store: Store, fleet: Fleet) -> None:
    old = await fleet.rollout()
    new = await fleet.rollout()
    await store.expire([old, Caller("policy:rollout:other:0", 1)])
    assert (await store.get_worker(new.worker_id)).state is WorkerState.LIVE


async def test_a_goodbye_may_be_repeated_and_a_worker_may_return(store: Store, fleet: Fleet) -> None:
    body = rollout_body()
    first = await fleet.register(body)
    await store.leave(first)
    await store.leave(first)
    assert (await store.get_worker(first.worker_id)).state is WorkerState.LEFT
    with pytest.raises(StoreRefusal) as refused:
        await fleet.assign(first)
    assert refused.value.code is Code.LEASE_EXPIRED
    back = await fleet.register(body.model_copy(update={"previous_epoch": 1}))
    assert back.epoch == 2


async def test_a_model_has_one_run_at_a_time(store: Store, fleet: Fleet) -> None:
    trainer = await fleet.trainer()
    ready = (await fleet.publish([trainer], 1)).version
    staging = await fleet.open(trainer, 2)
    with pytest.raises(StoreRefusal) as refused:
        await fleet.trainer(1, 2, run="run-b")
    assert refused.value.code is Code.MODEL_OWNED
    assert RUN in refused.value.detail
    assert trainer.worker_id in refused.value.detail
    await store.expire([trainer])
    other = await fleet.trainer(1, 2, run="run-b")
    assert (await store.get_version(MODEL, staging)).failure is VersionFailure.RUN_REPLACED
    assert (await store.get_version(MODEL, ready)).state is VersionState.READY
    with pytest.raises(StoreRefusal) as refused:
        await fleet.trainer(run=RUN, previous_epoch=1)
    assert refused.value.code is Code.MODEL_OWNED
    with pytest.raises(StoreRefusal) as refused:
        await fleet.open(other, 5)
    assert refused.value.code is Code.MODEL_OWNED


async def test_live_ranks_of_a_replica_agree_on_its_size(store: Store, fleet: Fleet) -> None:
    first = await fleet.rollout("r0", 0, 2)
    with pytest.raises(StoreRefusal) as refused:
        await fleet.rollout("r0", 1, 3)
    assert refused.value.code is Code.REPLICA_CONFLICT
    await store.leave(first)
    await fleet.rollout("r0", 2, 3)
    replica = (await store.list_replicas(MODEL, cursor=None, limit=9)).items[0]
    assert (replica.world_size, replica.live_ranks) == (3, 1)


async def test_new_memory_drops_the_holdings_that_no_longer_fit(store: Store, fleet: Fleet) -> None:
    trainer = await fleet.trainer()
    await fleet.publish([trainer], 1, slot=0)
    await fleet.publish([trainer], 2, slot=1)
    await store.update_memory(trainer, UpdateMemory(agents=agents("moved"), memory=memory(1)))
    assert (await store.get_target(MODEL)).version == 1
    rollout = await fleet.rollout()
    source = (await fleet.pull(rollout)).shards[0].sources[0]
    assert source.agent.name == "moved-serve"
    worker = await store.update_memory(trainer, UpdateMemory(agents=agents("blind", ["fetch"]), memory=memory()))
    assert worker.agents == ["blind-fetch"]
    assert (await store.get_target(MODEL)).version is None


async def test_what_a_worker_remembers_leaves_room_above(store: Store, fleet: Fleet) -> None:
    for field in ("previous_epoch", "highest_version"):
        with pytest.raises(ValidationError):
            await fleet.trainer(**{field: 2**40 + 1})
    trainer = await fleet.trainer(previous_epoch=2**40, highest_version=2**40)
    assert trainer.epoch == 2**40 + 1
    assert await fleet.open(trainer, 1) == 2**40 + 1


async def test_a_registration_tells_memory_and_the_siblings(store: Store, fleet: Fleet, recorder: Recorder) -> None:
    recorder.take()
    rollout = await fleet.rollout("r0", 1, 2)
    (changes,) = recorder.take()
    (fact,) = changes.workers
    assert (fact.worker_id, fact.epoch, fact.state, fact.role) == (rollout.worker_id, 1, WorkerState.LIVE, Role.ROLLOUT)
    assert {ReplicaTopic(MODEL, "r0"), ReplicasTopic(MODEL)} <= changes.topics
    assert changes.targets[MODEL].version is None
    await store.expire([rollout])
    (changes,) = recorder.take()
    assert [fact.state for fact in changes.workers] == [WorkerState.LOST]
    assert {ReplicaTopic(MODEL, "r0"), ReplicasTopic(MODEL)} <= changes.topics


async def test_registration_ends_the_pull_of_the_epoch_before(store: Store, fleet: Fleet) -> None:
    trainer = await fleet.trainer()
    await fleet.publish([trainer], 1)
    rollout = await fleet.rollout()
    pull = (await fleet.pull(rollout)).pull
    again = await fleet.rollout()
    old = await store.get_pull(pull.pull_id)
    assert (old.state, old.failure) == (PullState.FAILED, PullFailure.WORKER_LOST)
    with pytest.raises(StoreRefusal) as refused:
        await fleet.move(again, pull, "fetching")
    assert refused.value.code is Code.PULL_STATE
