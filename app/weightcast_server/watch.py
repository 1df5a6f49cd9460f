"""Parked waiters: requests that sleep until a commit changes what they asked about.

Each parked request has one future of its own and one timer. A commit wakes the waiters of the topics it changed, and
each looks once again; nobody polls the store. Everything here runs on the event loop, so subscribing first and looking
second cannot miss a change.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from enum import Enum
from typing import Any, TypeAlias

from weightcast_server.domain.keys import Topic

Receive: TypeAlias = Callable[[], Awaitable[Mapping[str, Any]]]
"""An ASGI receive channel."""


class Wake(Enum):
    """Why a parked request continues."""

    CHANGED = "changed"
    TIMEOUT = "timeout"
    GONE = "gone"
    CLOSED = "closed"


class HubFullError(Exception):
    """The number of parked requests has reached its limit."""


class Waiter:
    """One request that may park. Changes between two waits are not lost; not parking costs no task and no timer."""

    __slots__ = ("_changed", "_closed", "_deadline", "_future", "_gone", "_hub", "_listener", "_loop", "_receive")

    def __init__(self, hub: Hub, seconds: float, receive: Receive | None) -> None:
        self._hub = hub
        self._loop = asyncio.get_running_loop()
        self._deadline = self._loop.time() + seconds
        self._receive = receive
        self._listener: asyncio.Task[None] | None = None
        self._future: asyncio.Future[Wake] | None = None
        self._changed = False
        self._gone = False
        self._closed = False

    async def wait(self) -> Wake:
        """Sleep until something changed, the time is over, the client has gone, or the server drains.

        Raises:
            HubFullError: too many requests are parked.
        """
        if self._gone:
            return Wake.GONE
        if self._closed or self._hub.closed:
            return Wake.CLOSED
        if self._take_change():
            return Wake.CHANGED
        if self._loop.time() >= self._deadline:
            return Wake.TIMEOUT
        self._hub.enter(self)
        future: asyncio.Future[Wake] = self._loop.create_future()
        self._future = future
        timer = self._loop.call_at(self._deadline, self._end, Wake.TIMEOUT)
        try:
            if self._listener is None and self._receive is not None:
                self._listener = asyncio.create_task(self._listen(self._receive))
            wake: Wake = await future
        finally:
            self._future = None
            self._hub.exit(self)
            timer.cancel()
        # A change that came together with the end of the time is not slept through.
        return Wake.CHANGED if wake in (Wake.CHANGED, Wake.TIMEOUT) and self._take_change() else wake

    def notify(self) -> None:
        """Something changed that the waiter asked about."""
        self._changed = True
        self._end(Wake.CHANGED)

    def close(self) -> None:
        """The server drains."""
        self._closed = True
        self._end(Wake.CLOSED)

    def release(self) -> None:
        """Stop listening for the client's disconnect."""
        if self._listener is not None:
            self._listener.cancel()

    def _take_change(self) -> bool:
        changed, self._changed = self._changed, False
        return changed

    async def _listen(self, receive: Receive) -> None:
        # The body was read before the wait, so all that can still come is the disconnect.
        # More of a body is refused by an exception once it is over the limit; nobody is to be answered then either.
        with contextlib.suppress(Exception):
            while (await receive())["type"] != "http.disconnect":
                pass
        self._gone = True
        self._end(Wake.GONE)

    def _end(self, wake: Wake) -> None:
        if self._future is not None and not self._future.done():
            self._future.set_result(wake)


class Hub:
    """All parked requests of one server, by topic."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._subscribers: dict[Topic, dict[Waiter, None]] = {}
        self._parked: set[Waiter] = set()
        self._closed = False

    @property
    def parked(self) -> int:
        """Requests parked now."""
        return len(self._parked)

    @property
    def closed(self) -> bool:
        """Whether the server drains."""
        return self._closed

    @contextlib.contextmanager
    def subscribe(self, topics: Iterable[Topic], seconds: float, receive: Receive | None = None) -> Iterator[Waiter]:
        """Listen to ``topics`` for at most ``seconds``; with ``receive``, notice a client that hangs up."""
        waiter = Waiter(self, seconds, receive)
        wanted = tuple(topics)
        for topic in wanted:
            self._subscribers.setdefault(topic, {})[waiter] = None
        try:
            yield waiter
        finally:
            waiter.release()
            for topic in wanted:
                subscribers = self._subscribers[topic]
                subscribers.pop(waiter, None)
                if not subscribers:
                    del self._subscribers[topic]

    def publish(self, topics: Iterable[Topic]) -> None:
        """Wake everyone who listens to any of ``topics``."""
        for topic in topics:
            for waiter in self._subscribers.get(topic, ()):
                waiter.notify()

    def publish_all(self) -> None:
        """Wake everyone: what they looked at is gone."""
        self.publish(tuple(self._subscribers))

    def close(self) -> None:
        """Answer every parked request now and park none from now on."""
        self._closed = True
        for waiter in self._parked:
            waiter.close()

    def enter(self, waiter: Waiter) -> None:
        """Count a waiter that goes to sleep.

        Raises:
            HubFullError: too many sleep already.
        """
        if len(self._parked) >= self._limit:
            raise HubFullError
        self._parked.add(waiter)

    def exit(self, waiter: Waiter) -> None:
        """A waiter woke up."""
        self._parked.discard(waiter)
