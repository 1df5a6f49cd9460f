"""Leases of the running server: fed by commits, renewed by heartbeats, ended by the sweep."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence

import pytest
from weightcast.contract.names import Role, WorkerState
from weightcast.contract.problems import Code
from weightcast_server.domain.keys import ClockKey, VersionKey, WorkerKey
from weightcast_server.leases import Leases
from weightcast_server.store.protocol import Changes, StoreRefusal, StoreUnavailable, Timer, WorkerFact


def fact(rank: int, epoch: int = 1, state: WorkerState = WorkerState.LIVE) -> WorkerFact:
    return WorkerFact(f"m:trainer:{rank}", "m", Role.TRAINER, None, 2, epoch, state)


def key(rank: int, epoch: int = 1) -> WorkerKey:
    return WorkerKey(f"m:trainer:{rank}", epoch)


def refused(leases: Leases, caller: WorkerKey) -> Code:
    with pytest.raises(StoreRefusal) as caught:
        leases.heartbeat(caller)
    return caught.value.code


def test_heartbeats_are_fenced_like_writes() -> None:
    leases = Leases(10, 1000)
    assert refused(leases, key(0)) is Code.UNKNOWN_WORKER
    leases.apply(Changes(workers=(fact(0, epoch=3), fact(1, state=WorkerState.LOST))))
    assert leases.heartbeat(key(0, 3)).epoch == 3
    assert refused(leases, key(0, 2)) is Code.STALE_EPOCH
    assert refused(leases, key(0, 4)) is Code.UNKNOWN_WORKER
    assert refused(leases, key(1)) is Code.LEASE_EXPIRED
    assert leases.age("m:trainer:0", 3) == pytest.approx(0, abs=1)
    assert leases.age("m:trainer:0", 2) is None
    assert leases.age("m:trainer:1", 1) is None
    leases.apply(Changes(reset=True))
    assert refused(leases, key(0, 3)) is Code.UNKNOWN_WORKER
    assert leases.facts() == ()


def test_the_interval_grows_with_the_live_fleet() -> None:
    leases = Leases(12, 1)
    assert leases.heartbeat_seconds == 2
    leases.apply(Changes(workers=tuple(fact(rank) for rank in range(3))))
    assert leases.heartbeat_seconds == 3
    leases.apply(Changes(workers=(fact(0, 2), fact(1, 1, WorkerState.LEFT), fact(1, 1, WorkerState.LEFT))))
    assert leases.heartbeat_seconds == 2


def test_the_sweep_ends_what_is_silent_and_tries_again() -> None:
    async def main() -> None:
        leases = Leases(0.25, 1000)
        leases.apply(Changes(workers=(fact(0), fact(1)), timers=(Timer(VersionKey("m", 1), 0.05),)))
        asked: list[list[ClockKey]] = []

        async def expire(keys: Sequence[ClockKey]) -> None:
            asked.append(list(keys))
            if len(asked) == 1:
                raise StoreUnavailable("disk full")
            lost = [fact(int(item.worker_id[-1]), 1, WorkerState.LOST) for item in keys if isinstance(item, WorkerKey)]
            timers = tuple(Timer(item, None) for item in keys if isinstance(item, VersionKey))
            leases.apply(Changes(workers=tuple(lost), timers=timers))

        lags: list[float] = []
        sweep = asyncio.create_task(leases.sweep_forever(expire, lags.append))
        for _ in range(12):
            await asyncio.sleep(0.05)
            leases.heartbeat(key(0))
        sweep.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await sweep
        assert asked[0] == asked[1] == [VersionKey("m", 1)]
        assert asked[2:] == [[key(1)]]
        assert len(lags) >= 5
        assert leases.fact("m:trainer:1") == fact(1, 1, WorkerState.LOST)

    asyncio.run(main())


def test_one_that_cannot_be_ended_keeps_nobody_alive() -> None:
    async def main() -> None:
        leases = Leases(0.25, 1000)
        leases.apply(Changes(workers=(fact(0), fact(1))))
        ended: set[ClockKey] = set()

        async def expire(keys: Sequence[ClockKey]) -> None:
            if key(0) in keys:
                raise ValueError("a row that nobody foresaw")
            ended.update(keys)

        sweep = asyncio.create_task(leases.sweep_forever(expire, lambda _: None))
        await asyncio.sleep(0.6)
        assert not sweep.done()
        assert ended == {key(1)}
        sweep.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await sweep

    asyncio.run(main())
