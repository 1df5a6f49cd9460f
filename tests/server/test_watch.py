"""The hub of parked waiters."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest
from weightcast_server.domain.keys import ReplicaTopic, TargetTopic, Topic, VersionTopic
from weightcast_server.watch import Hub, HubFullError, Waiter, Wake

A, B = TargetTopic("a"), TargetTopic("b")


def test_only_the_topic_wakes() -> None:
    async def main() -> None:
        hub = Hub(10)
        with hub.subscribe([A, VersionTopic("a", 1)], 5) as waiter:
            task = asyncio.create_task(waiter.wait())
            await asyncio.sleep(0)
            assert hub.parked == 1
            hub.publish([B, ReplicaTopic("a", "r")])
            await asyncio.sleep(0)
            assert not task.done()
            hub.publish([VersionTopic("a", 1)])
            assert await task is Wake.CHANGED
            assert hub.parked == 0

    asyncio.run(main())


def test_a_change_between_two_waits_is_kept() -> None:
    async def main() -> None:
        hub = Hub(10)
        with hub.subscribe([A], 5) as waiter:
            hub.publish([A])
            hub.publish([A])
            assert await waiter.wait() is Wake.CHANGED
            task = asyncio.create_task(waiter.wait())
            await asyncio.sleep(0.01)
            assert not task.done(), "two changes before one look are one wake-up"
            hub.publish([A])
            assert await task is Wake.CHANGED

    asyncio.run(main())


def test_the_deadline_is_of_all_waits_together() -> None:
    async def main() -> None:
        hub = Hub(10)
        loop = asyncio.get_running_loop()
        started = loop.time()
        with hub.subscribe([A], 0.1) as waiter:
            loop.call_later(0.05, hub.publish, [A])
            assert await waiter.wait() is Wake.CHANGED
            assert await waiter.wait() is Wake.TIMEOUT
            assert await waiter.wait() is Wake.TIMEOUT
        assert 0.09 < loop.time() - started < 1

    asyncio.run(main())


def test_close_ends_all_waits_for_good() -> None:
    async def main() -> None:
        hub = Hub(10)
        with hub.subscribe([A], 5) as waiter, hub.subscribe([B], 5) as other:
            task = asyncio.create_task(waiter.wait())
            await asyncio.sleep(0)
            hub.close()
            assert hub.closed
            assert await task is Wake.CLOSED
            assert await waiter.wait() is Wake.CLOSED
            assert await other.wait() is Wake.CLOSED

    asyncio.run(main())


def test_a_client_that_hangs_up() -> None:
    async def main() -> None:
        hub = Hub(10)
        messages: asyncio.Queue[Mapping[str, Any]] = asyncio.Queue()
        with hub.subscribe([A], 5, messages.get) as waiter:
            task = asyncio.create_task(waiter.wait())
            messages.put_nowait({"type": "http.request", "body": b""})
            await asyncio.sleep(0.01)
            assert not task.done()
            messages.put_nowait({"type": "http.disconnect"})
            assert await task is Wake.GONE
            hub.publish([A])
            assert await waiter.wait() is Wake.GONE

    asyncio.run(main())


def test_the_limit_counts_those_who_sleep() -> None:
    async def main() -> None:
        hub = Hub(1)
        with hub.subscribe([A], 5) as first, hub.subscribe([A], 5) as second:
            task = asyncio.create_task(first.wait())
            await asyncio.sleep(0)
            with pytest.raises(HubFullError):
                await second.wait()
            hub.publish([A])
            assert await task is Wake.CHANGED
            assert await second.wait() is Wake.CHANGED

    asyncio.run(main())


def test_nothing_is_left_behind() -> None:
    async def main() -> None:
        hub = Hub(100)

        async def park(topic: Topic) -> Wake:
            with hub.subscribe([topic, A], 5, asyncio.Queue[Mapping[str, Any]]().get) as waiter:
                return await waiter.wait()

        tasks = [asyncio.create_task(park(VersionTopic("a", number % 7))) for number in range(50)]
        await asyncio.sleep(0.01)
        assert hub.parked == 50
        for task in tasks[:10]:
            task.cancel()
        await asyncio.sleep(0.01)
        assert hub.parked == 40
        hub.publish_all()
        assert set(await asyncio.gather(*tasks[10:])) == {Wake.CHANGED}
        await asyncio.sleep(0)
        assert hub.parked == 0
        assert not hub._subscribers
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(main())


def test_a_change_wins_over_the_end_of_the_time() -> None:
    async def main() -> None:
        hub = Hub(10)
        with hub.subscribe([A], 0.02) as waiter:
            assert isinstance(waiter, Waiter)
            task = asyncio.create_task(waiter.wait())
            await asyncio.sleep(0)
            waiter._end(Wake.TIMEOUT)
            waiter.notify()
            assert await task is Wake.CHANGED
            assert await waiter.wait() in (Wake.TIMEOUT, Wake.CHANGED)

    asyncio.run(main())


def test_a_body_over_the_limit_ends_the_wait() -> None:
    async def main() -> None:
        async def receive() -> Mapping[str, Any]:
            raise ValueError("the body is over the limit")

        hub = Hub(10)
        with hub.subscribe([A], 5, receive) as waiter:
            assert await asyncio.wait_for(waiter.wait(), 1) is Wake.GONE
        assert hub.parked == 0

    asyncio.run(main())
