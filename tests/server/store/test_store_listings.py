"""Listings: filters, cursors and derived fields, against every store."""

from __future__ import annotations

from typing import Any

import pytest
from support.stores import MODEL, RUN, Fleet
from weightcast.contract.names import PullState, Role, VersionState, WorkerState
from weightcast.contract.problems import Code
from weightcast_server.store.protocol import Store, StoreRefusal

pytestmark = pytest.mark.anyio


async def test_workers_page_by_page(store: Store, fleet: Fleet) -> None:
    ids = [(await fleet.rollout(f"r{index}")).worker_id for index in range(5)]
    trainer = await fleet.trainer()
    other = await fleet.trainer(model="critic")
    seen: list[str] = []
    cursor: str | None = None
    while True:
        page = await store.list_workers(model=MODEL, role=None, state=None, cursor=cursor, limit=2)
        seen += [worker.worker_id for worker in page.items]
        cursor = page.next_cursor
        if cursor is None:
            break
    assert seen == sorted([*ids, trainer.worker_id])
    trainers = await store.list_workers(model=None, role=Role.TRAINER, state=None, cursor=None, limit=9)
    assert [worker.worker_id for worker in trainers.items] == [other.worker_id, trainer.worker_id]
    await store.leave(trainer)
    left = await store.list_workers(model=None, role=None, state=WorkerState.LEFT, cursor=None, limit=9)
    assert [worker.worker_id for worker in left.items] == [trainer.worker_id]
    assert left.items[0].heartbeat_age_seconds is None


async def test_versions_newest_first(store: Store, fleet: Fleet) -> None:
    trainer = await fleet.trainer()
    for step in range(1, 6):
        await fleet.publish([trainer], step)
    await fleet.open(trainer, 6)
    first = await store.list_versions(MODEL, state=None, cursor=None, limit=4)
    assert [version.version for version in first.items] == [6, 5, 4, 3]
    assert [version.available for version in first.items] == [False, True, True, False]
    rest = await store.list_versions(MODEL, state=None, cursor=first.next_cursor, limit=4)
    assert [version.version for version in rest.items] == [2, 1]
    assert rest.next_cursor is None
    staging = await store.list_versions(MODEL, state=VersionState.STAGING, cursor=None, limit=4)
    assert [version.version for version in staging.items] == [6]
    ready = await store.list_versions(MODEL, state=VersionState.READY, cursor="4", limit=2)
    assert [version.version for version in ready.items] == [3, 2]


async def test_pulls_newest_first_by_every_filter(store: Store, fleet: Fleet) -> None:
    trainer = await fleet.trainer()
    rollouts = [await fleet.rollout(f"r{index}") for index in range(3)]
    for step in (1, 2):
        await fleet.publish([trainer], step)
        for rollout in rollouts:
            await fleet.apply(rollout, have=step - 1)
    await fleet.publish([trainer], 3)
    waiting = (await fleet.pull(rollouts[1], have=2)).pull

    async def listed(limit: int = 9, cursor: str | None = None, **given: Any) -> list[tuple[str, int]]:
        filters: dict[str, Any] = {"state": None, "version": None, "worker_id": None, **given}
        page = await store.list_pulls(MODEL, **filters, cursor=cursor, limit=limit)
        found = [(pull.replica, pull.version) for pull in page.items]
        return found + (await listed(limit, page.next_cursor, **given) if page.next_cursor else [])

    everything = [("r1", 3), ("r2", 2), ("r1", 2), ("r0", 2), ("r2", 1), ("r1", 1), ("r0", 1)]
    assert await listed() == everything
    assert await listed(limit=2) == everything
    assert await listed(state=PullState.ASSIGNED) == [("r1", 3)]
    assert await listed(version=2) == [("r2", 2), ("r1", 2), ("r0", 2)]
    assert await listed(worker_id=waiting.worker_id) == [("r1", 3), ("r1", 2), ("r1", 1)]
    assert await listed(worker_id=waiting.worker_id, state=PullState.APPLIED, version=1) == [("r1", 1)]


async def test_replicas_lag_and_serve(store: Store, fleet: Fleet) -> None:
    trainer = await fleet.trainer()
    fast, slow, fresh = [await fleet.rollout(name) for name in ("fast", "slow", "zzz")]
    await fleet.publish([trainer], 1)
    await fleet.apply(slow)
    for step in (2, 3):
        await fleet.publish([trainer], step)
        await fleet.apply(fast, have=step - 1)
    await fleet.open(trainer, 4)
    page = await store.list_replicas(MODEL, cursor=None, limit=2)
    assert [(r.replica, r.serving_version, r.lag, r.servable) for r in page.items] == [
        ("fast", 3, 0, True),
        ("slow", 1, 2, True),
    ]
    page = await store.list_replicas(MODEL, cursor=page.next_cursor, limit=2)
    assert [(r.replica, r.serving_version, r.lag, r.servable) for r in page.items] == [("zzz", None, None, False)]
    assert page.next_cursor is None
    version = await store.get_version(MODEL, 1)
    assert (version.applied, version.live_replicas) == (["fast", "slow"], 3)
    assert (await store.get_version(MODEL, 2)).applied == ["fast"]
    await store.leave(fresh)
    await store.leave(fast)
    version = await store.get_version(MODEL, 1)
    assert (version.applied, version.live_replicas) == (["slow"], 1)


async def test_models_by_name_and_versions_by_state(store: Store, fleet: Fleet) -> None:
    await fleet.rollout(model="critic")
    trainer = await fleet.trainer()
    await fleet.publish([trainer], 7)
    await fleet.open(trainer, 8)
    await store.abort_version(trainer, MODEL, await fleet.open(trainer, 9), "")
    page = await store.list_models(cursor=None, limit=1)
    assert [(model.model, model.run, model.version) for model in page.items] == [("critic", None, None)]
    page = await store.list_models(cursor=page.next_cursor, limit=1)
    assert [(model.model, model.run, model.version, model.step) for model in page.items] == [(MODEL, RUN, 1, 7)]
    assert page.next_cursor is None
    assert await store.count_versions() == dict.fromkeys(VersionState, 1)


async def test_a_cursor_of_something_else_is_refused(store: Store, fleet: Fleet) -> None:
    await fleet.trainer()
    for cursor in ("x", "-1", "9" * 30, "٣"):
        with pytest.raises(StoreRefusal) as refused:
            await store.list_versions(MODEL, state=None, cursor=cursor, limit=1)
        assert refused.value.code is Code.VALIDATION_FAILED
    with pytest.raises(StoreRefusal) as refused:
        await store.list_replicas("nobody", cursor=None, limit=1)
    assert refused.value.code is Code.UNKNOWN_MODEL
