"""Drains: a holding is let go when nobody reads it any more, against every store."""

from __future__ import annotations

from typing import Any

import pytest
from support.stores import MODEL, Fleet, Recorder
from weightcast.contract.problems import Code
from weightcast_server.domain.keys import ReadersTopic
from weightcast_server.store.protocol import Store, StoreRefusal

pytestmark = pytest.mark.anyio


async def refusal(call: Any) -> StoreRefusal:
    with pytest.raises(StoreRefusal) as refused:
        await call
    return refused.value


async def test_a_drain_ends_when_nobody_reads(store: Store, fleet: Fleet, recorder: Recorder) -> None:
    trainer = await fleet.trainer()
    version = (await fleet.publish([trainer], 1)).version
    reader, late = await fleet.rollout("r0"), await fleet.rollout("r1")
    pull = (await fleet.pull(reader)).pull
    assert await store.drain_holding(trainer, MODEL, version, trainer.worker_id, final=False) is None
    assert await fleet.assign(late) is None, "nobody new is sent there"
    assert (await store.get_target(MODEL)).version is None
    recorder.take()
    await fleet.move(reader, pull, "staged")
    assert ReadersTopic(trainer.worker_id) in recorder.take_topics()
    drained = await store.drain_holding(trainer, MODEL, version, trainer.worker_id, final=False)
    assert drained is not None
    assert (drained.drained, drained.readers) == (True, 0)
    again = await store.drain_holding(None, MODEL, version, trainer.worker_id, final=False)
    assert again is not None
    assert again.drained
    assert (await store.get_version(MODEL, version)).holdings == []


async def test_a_drain_at_its_end_tells_who_is_left(store: Store, fleet: Fleet) -> None:
    trainers = [await fleet.trainer(rank, 2) for rank in range(2)]
    version = (await fleet.publish(trainers, 1)).version
    await fleet.pull(await fleet.rollout())
    forbidden = store.drain_holding(trainers[0], MODEL, version, trainers[1].worker_id, final=True)
    assert (await refusal(forbidden)).code is Code.FORBIDDEN
    drained = await store.drain_holding(trainers[0], MODEL, version, trainers[0].worker_id, final=True)
    assert drained is not None
    assert (drained.drained, drained.readers) == (False, 1)
    unknown = store.drain_holding(None, MODEL, 99, trainers[0].worker_id, final=True)
    assert (await refusal(unknown)).code is Code.UNKNOWN_VERSION


async def test_a_drain_does_not_wait_for_readers_of_another_version(store: Store, fleet: Fleet) -> None:
    trainer = await fleet.trainer()
    await fleet.publish([trainer], 1)
    await fleet.publish([trainer], 2)
    await fleet.pull(await fleet.rollout())
    drained = await store.drain_holding(trainer, MODEL, 1, trainer.worker_id, final=False)
    assert drained is not None
    assert drained.drained
