"""Assignments, reports, permits and drains, against every store."""

from __future__ import annotations

from typing import Any

import pytest
from support.stores import MODEL, Fleet, Recorder, digest
from weightcast.contract.names import PullFailure, PullState
from weightcast.contract.problems import Code
from weightcast.contract.pulls import UpdatePull
from weightcast_server.domain.keys import PullKey, ReadersTopic, ReplicasTopic, ReplicaTopic
from weightcast_server.store.protocol import Caller, PullUpdated, Store, StoreRefusal

pytestmark = pytest.mark.anyio


async def refusal(call: Any) -> StoreRefusal:
    with pytest.raises(StoreRefusal) as refused:
        await call
    return refused.value


async def ask_permit(store: Store, caller: Caller, pull_id: str) -> PullUpdated:
    return await store.update_pull(caller, pull_id, UpdatePull(state="applying"))


async def test_an_assignment_says_all_that_a_read_needs(store: Store, fleet: Fleet, recorder: Recorder) -> None:
    trainers = [await fleet.trainer(rank, 4, host=f"host-{rank % 2}") for rank in range(4)]
    version = (await fleet.publish(trainers, 5, shards=2)).version
    rollout = await fleet.rollout(host="host-1")
    recorder.take()
    assignment = await fleet.pull(rollout)
    assert (assignment.pull.version, assignment.pull.step, assignment.pull.state) == (version, 5, PullState.ASSIGNED)
    assert (assignment.pull.nbytes, assignment.pull.attempt, assignment.pull.replica) == (1600, 1, "r0")
    assert assignment.revision == (await store.get_target(MODEL)).revision
    assert [shard.shard for shard in assignment.shards] == [0, 1]
    assert assignment.shards[1].digest_root == digest("5/1")
    assert sorted(source.worker_id for source in assignment.shards[1].sources) == [
        trainers[1].worker_id,
        trainers[3].worker_id,
    ]
    source = assignment.shards[1].sources[0]
    assert (source.host, source.agent.purpose, source.bucket_nbytes) == ("host-1", "serve", 64)
    assert source.memory.data_address == "18446744073709551615"
    assert (source.memory.header_address, source.slot_generation) == (str(1000 + version % 2), version)
    assert assignment.pull.sources == [shard.sources[0].worker_id for shard in assignment.shards]
    (changes,) = recorder.take()
    assert [(timer.key, timer.seconds) for timer in changes.timers] == [(PullKey(assignment.pull.pull_id), 300.0)]
    assert [pull.pull_id for pull in changes.pulls] == [assignment.pull.pull_id]
    assert ReplicaTopic(MODEL, "r0") in changes.topics


async def test_nothing_newer_is_no_assignment(store: Store, fleet: Fleet) -> None:
    rollout = await fleet.rollout()
    assert await fleet.assign(rollout) is None
    trainer = await fleet.trainer()
    version = (await fleet.publish([trainer], 1)).version
    assert await fleet.assign(rollout, have=version) is None
    assert (await fleet.pull(rollout)).pull.version == version
    assert (await refusal(fleet.assign(trainer))).code is Code.VALIDATION_FAILED


async def test_a_lost_answer_is_given_again(store: Store, fleet: Fleet) -> None:
    trainers = [await fleet.trainer(rank, 2) for rank in range(2)]
    await fleet.publish(trainers, 1)
    rollout = await fleet.rollout()
    first = await fleet.pull(rollout)
    again = await fleet.pull(rollout)
    assert again == first
    favourite = first.pull.sources[0]
    other = await fleet.pull(rollout, exclude=[favourite])
    assert other.pull.pull_id != first.pull.pull_id
    assert other.pull.attempt == 2
    assert other.shards[0].sources[-1].worker_id == favourite, "the last resort, but not unthinkable"
    old = await store.get_pull(first.pull.pull_id)
    assert (old.state, old.failure) == (PullState.FAILED, PullFailure.SUPERSEDED)


@pytest.mark.parametrize("states", [["fetching"]])
async def test_asking_again_ends_what_was_begun(store: Store, fleet: Fleet, states: list[str]) -> None:
    trainer = await fleet.trainer()
    await fleet.publish([trainer], 1)
    rollout = await fleet.rollout()
    first = (await fleet.pull(rollout)).pull
    await fleet.move(rollout, first, *states)
    second = (await fleet.pull(rollout)).pull
    assert second.pull_id != first.pull_id
    assert (await store.get_pull(first.pull_id)).failure is PullFailure.SUPERSEDED
    assert not (await store.get_worker(rollout.worker_id)).tainted


async def test_nothing_is_assigned_to_a_rank_that_may_be_applying(store: Store, fleet: Fleet) -> None:
    trainer, rollout = await fleet.trainer(), await fleet.rollout()
    await fleet.publish([trainer], 1)
    applying = await fleet.move(rollout, (await fleet.pull(rollout)).pull, "staged", "applying")
    await fleet.publish([trainer], 2)
    assert await fleet.assign(rollout) is None
    assert (await store.get_pull(applying.pull_id)).state is PullState.APPLYING
    await fleet.move(rollout, applying, "failed", failure="cancelled", tainted=False)
    assert (await fleet.pull(rollout)).pull.version == 2


async def test_readers_spread_over_equal_sources(store: Store, fleet: Fleet) -> None:
    trainers = [await fleet.trainer(rank, 4) for rank in range(4)]
    version = (await fleet.publish(trainers, 1)).version
    rollouts = [await fleet.rollout(f"r{index}") for index in range(8)]
    firsts = [(await fleet.pull(rollout)).pull.sources[0] for rollout in rollouts]
    assert sorted(firsts) == sorted([trainer.worker_id for trainer in trainers] * 2)
    shown = await store.get_version(MODEL, version)
    assert [holding.readers for holding in shown.holdings] == [8, 8, 8, 8], "every listed source may be read"


async def test_a_pull_goes_its_way_and_repetitions_change_nothing(
    store: Store, fleet: Fleet, recorder: Recorder
) -> None:
    trainer = await fleet.trainer()
    version = (await fleet.publish([trainer], 1)).version
    rollout = await fleet.rollout()
    pull = (await fleet.pull(rollout)).pull
    recorder.take()
    reports: list[dict[str, Any]] = [
        {"state": "fetching", "bytes_done": 100, "transport": "shm"},
        {"state": "staged", "bytes_done": 800, "fetch_seconds": 0.25, "digest": digest(1)},
        {"state": "applying"},
        {"state": "applied", "pause_seconds": 0.125},
    ]
    for report in reports:
        for repeated in (False, True):
            outcome = await store.update_pull(rollout, pull.pull_id, UpdatePull.model_validate(report))
            assert outcome.granted
            assert outcome.changed is not repeated
            assert outcome.pull.state == report["state"]
    shown = await store.get_pull(pull.pull_id)
    assert (shown.bytes_done, shown.fetch_seconds, shown.pause_seconds, shown.transport) == (800, 0.25, 0.125, "shm")
    changes = recorder.take()
    assert [p.state for change in changes for p in change.pulls] == ["fetching", "staged", "applying", "applied"]
    assert ReadersTopic(trainer.worker_id) in {topic for change in changes for topic in change.topics}
    assert ReplicasTopic(MODEL) in changes[-1].topics | changes[-2].topics
    worker = await store.get_worker(rollout.worker_id)
    assert (worker.serving_version, worker.tainted) == (version, False)
    for state in ("fetching", "staged", "applying"):
        refused = await refusal(fleet.move(rollout, pull, state))
        assert refused.code is Code.PULL_STATE
        assert "applied" in refused.detail


async def test_progress_restarts_the_deadline(store: Store, fleet: Fleet, recorder: Recorder) -> None:
    trainer = await fleet.trainer()
    await fleet.publish([trainer], 1)
    rollout = await fleet.rollout()
    pull = (await fleet.pull(rollout)).pull
    await fleet.move(rollout, pull, "fetching")
    recorder.take()
    pull = await fleet.move(rollout, pull, "fetching", bytes_done=400)
    assert pull.bytes_done == 400
    (changes,) = recorder.take()
    assert [(timer.key, timer.seconds) for timer in changes.timers] == [(PullKey(pull.pull_id), 300.0)]
    await store.expire([PullKey(pull.pull_id), PullKey("0" * 32)])
    assert (await store.get_pull(pull.pull_id)).failure is PullFailure.DEADLINE
    staged = (await fleet.pull(rollout)).pull
    await fleet.move(rollout, staged, "staged")
    await store.expire([PullKey(staged.pull_id)])
    assert (await store.get_pull(staged.pull_id)).state is PullState.STAGED


async def test_a_pull_belongs_to_its_worker(store: Store, fleet: Fleet) -> None:
    trainer = await fleet.trainer()
    await fleet.publish([trainer], 1)
    mine, yours = await fleet.rollout("r0"), await fleet.rollout("r1")
    pull = (await fleet.pull(mine)).pull
    assert (await refusal(fleet.move(yours, pull, "fetching"))).code is Code.FORBIDDEN
    missing = store.update_pull(mine, "0" * 32, UpdatePull(state="fetching"))
    assert (await refusal(missing)).code is Code.UNKNOWN_PULL
    for fields in ({"failure": "deadline"}, {"failure": "source_stalled", "failed_source": "policy:trainer:7"}):
        refused = await refusal(fleet.move(mine, pull, "failed", **fields))
        assert refused.code is Code.VALIDATION_FAILED


@pytest.mark.parametrize(
    ("states", "fields", "tainted"),
    [
        (["fetching"], {}, False),
        (["staged"], {}, False),
        (["staged"], {"tainted": True}, True),
        (["staged", "applying"], {}, True),
        (["staged", "applying"], {"tainted": True}, True),
        (["staged", "applying"], {"tainted": False}, False),
    ],
)
async def test_a_failed_apply_taints(
    store: Store, fleet: Fleet, states: list[str], fields: dict[str, Any], tainted: bool
) -> None:
    trainer = await fleet.trainer()
    await fleet.publish([trainer], 1)
    rollout = await fleet.rollout(serving_version=1)
    pull = (await fleet.pull(rollout)).pull
    failed = await fleet.move(rollout, pull, *states, "failed", failure="apply_failed", reason="no memory", **fields)
    assert (failed.state, failed.failure, failed.reason) == (PullState.FAILED, PullFailure.APPLY_FAILED, "no memory")
    worker = await store.get_worker(rollout.worker_id)
    assert (worker.tainted, worker.serving_version) == (tainted, None if tainted else 1)
    replica = (await store.list_replicas(MODEL, cursor=None, limit=1)).items[0]
    assert replica.servable is not tainted


async def test_a_holding_that_enough_workers_report_broken_is_dropped(store: Store, fleet: Fleet) -> None:
    trainers = [await fleet.trainer(rank, 2) for rank in range(2)]
    version = (await fleet.publish(trainers, 1)).version
    bad = trainers[0].worker_id

    async def report(replica: str, failure: str, times: int = 1) -> list[str]:
        rollout = await fleet.rollout(replica)
        for _ in range(times):
            pull = (await fleet.pull(rollout)).pull
            await fleet.move(rollout, pull, "failed", failure=failure, failed_source=bad)
        return [holding.worker_id for holding in (await store.get_version(MODEL, version)).holdings]

    assert bad in await report("r0", "digest_mismatch", 3), "one reader proves nothing, however often it says so"
    assert bad in await report("r1", "source_stalled")
    assert bad in await report("r2", "cancelled"), "that says nothing about the source"
    assert bad not in await report("r3", "metadata_corrupt")
    assert (await fleet.pull(await fleet.rollout("r4"))).pull.sources == [trainers[1].worker_id]


async def test_ranks_of_a_replica_meet_at_one_version(store: Store, fleet: Fleet) -> None:
    trainer = await fleet.trainer()
    await fleet.publish([trainer], 1)
    first, second = [await fleet.rollout("tp", rank, 2) for rank in range(2)]
    early = (await fleet.pull(first)).pull
    await fleet.publish([trainer], 2)
    assert (await fleet.pull(second)).pull.version == 1, "its sibling is on its way to 1"
    await fleet.publish([trainer], 3)
    assert not (await store.get_version(MODEL, 1)).available
    assert (await fleet.pull(second)).pull.version == 3, "1 cannot be had any more"
    await fleet.move(first, early, "staged")
    for _ in range(2):
        refused = await refusal(ask_permit(store, first, early.pull_id))
        assert refused.code is Code.PULL_SUPERSEDED
    assert (await fleet.pull(first)).pull.version == 3


async def test_the_permit_waits_for_every_rank(store: Store, fleet: Fleet, recorder: Recorder) -> None:
    trainer = await fleet.trainer()
    version = (await fleet.publish([trainer], 1)).version
    first, second = [await fleet.rollout("tp", rank, 2) for rank in range(2)]
    one, two = [(await fleet.pull(rank)).pull for rank in (first, second)]
    await fleet.move(first, one, "staged")
    waiting = await ask_permit(store, first, one.pull_id)
    assert (waiting.granted, waiting.changed, waiting.pull.state) == (False, False, PullState.STAGED)
    recorder.take()
    await fleet.move(second, two, "staged")
    assert ReplicaTopic(MODEL, "tp") in recorder.take_topics()
    replica = (await store.list_replicas(MODEL, cursor=None, limit=1)).items[0]
    assert (replica.staged_version, replica.serving_version, replica.servable) == (version, None, False)
    assert (await ask_permit(store, first, one.pull_id)).granted
    await fleet.move(first, one, "applied", pause_seconds=0.25)
    replica = (await store.list_replicas(MODEL, cursor=None, limit=1)).items[0]
    assert (replica.serving_version, replica.servable) == (None, False)
    assert (await store.get_version(MODEL, version)).applied == []
    await fleet.move(second, two, "applying", "applied", pause_seconds=0.75)
    replica = (await store.list_replicas(MODEL, cursor=None, limit=1)).items[0]
    assert (replica.serving_version, replica.servable, replica.lag) == (version, True, 0)
    assert (replica.staged_version, replica.pause_seconds) == (None, 0.75)
    assert (await store.get_version(MODEL, version)).applied == ["tp"]


async def test_a_rank_that_is_not_live_grants_nothing(store: Store, fleet: Fleet) -> None:
    trainer = await fleet.trainer()
    await fleet.publish([trainer], 1)
    first, second = [await fleet.rollout("tp", rank, 2) for rank in range(2)]
    one = (await fleet.pull(first)).pull
    await fleet.move(second, (await fleet.pull(second)).pull, "staged")
    await fleet.move(first, one, "staged")
    await store.leave(second)
    assert not (await ask_permit(store, first, one.pull_id)).granted
    back = await fleet.rollout("tp", 1, 2, previous_epoch=second.epoch)
    await fleet.move(back, (await fleet.pull(back)).pull, "staged")
    assert (await ask_permit(store, first, one.pull_id)).granted


async def test_a_rank_that_missed_an_apply_catches_up_with_its_siblings(store: Store, fleet: Fleet) -> None:
    trainer = await fleet.trainer()
    await fleet.publish([trainer], 1)
    first, second = [await fleet.rollout("tp", rank, 2) for rank in range(2)]
    one, two = [(await fleet.pull(rank)).pull for rank in (first, second)]
    for caller, pull in ((first, one), (second, two)):
        await fleet.move(caller, pull, "staged")
    await fleet.move(first, one, "applying", "applied")
    await fleet.move(second, two, "failed", failure="internal")
    await fleet.publish([trainer], 2)
    again = (await fleet.pull(second)).pull
    assert again.version == 1
    await fleet.move(second, again, "staged", "applying", "applied")
    assert (await store.list_replicas(MODEL, cursor=None, limit=1)).items[0].serving_version == 1


async def test_a_staged_pull_ends_only_when_something_newer_is_assigned(store: Store, fleet: Fleet) -> None:
    trainer, rollout = await fleet.trainer(), await fleet.rollout()
    await fleet.publish([trainer], 1)
    staged = await fleet.move(rollout, (await fleet.pull(rollout)).pull, "fetching", "staged")
    assert await fleet.assign(rollout, have=1) is None
    assert (await store.get_pull(staged.pull_id)).state is PullState.STAGED
    await fleet.publish([trainer], 2)
    newer = await fleet.pull(rollout, have=1)
    assert newer.pull.version == 2
    ended = await store.get_pull(staged.pull_id)
    assert (ended.state, ended.failure) == (PullState.FAILED, PullFailure.SUPERSEDED)
    # One that is being read has ended for its rank as soon as the rank asks for another.
    assert await fleet.assign(rollout, have=2) is None
    assert (await store.get_pull(newer.pull.pull_id)).state is PullState.FAILED
