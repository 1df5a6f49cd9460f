"""Leases and deadlines as the running server keeps them: fed by commits, renewed by heartbeats, ended by a sweep."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

from weightcast.contract.names import WorkerState

from weightcast_server.domain.keys import ClockKey, WorkerKey
from weightcast_server.domain.leases import LeaseClock, heartbeat_seconds, sweep_seconds
from weightcast_server.domain.registration import check_fence
from weightcast_server.logs import get_logger
from weightcast_server.store.protocol import Changes, StoreRefusal, StoreUnavailable, WorkerFact

_log = get_logger(__name__)

Expire = Callable[[Sequence[ClockKey]], Awaitable[None]]


class Leases:
    """Who is live, by the newest commit. A heartbeat is checked and counted here: it asks the store nothing."""

    def __init__(self, lease_seconds: float, max_heartbeats_per_second: float) -> None:
        self.lease_seconds = lease_seconds
        self._max_rate = max_heartbeats_per_second
        self._interval = sweep_seconds(lease_seconds)
        self._clock = LeaseClock(self._interval)
        self._facts: dict[str, WorkerFact] = {}
        self._live = 0

    def apply(self, changes: Changes) -> None:
        """Take one committed batch: leases start, timers start and end."""
        now = time.monotonic()
        if changes.reset:
            self._clock.clear()
            self._facts.clear()
            self._live = 0
        for fact in changes.workers:
            old = self._facts.get(fact.worker_id)
            if old is not None:
                self._live -= old.state is WorkerState.LIVE
                self._clock.stop(WorkerKey(old.worker_id, old.epoch))
            self._facts[fact.worker_id] = fact
            if fact.state is WorkerState.LIVE:
                self._live += 1
                self._clock.start(WorkerKey(fact.worker_id, fact.epoch), self.lease_seconds, now)
        for timer in changes.timers:
            if timer.seconds is None:
                self._clock.stop(timer.key)
            else:
                self._clock.start(timer.key, timer.seconds, now)

    @property
    def heartbeat_seconds(self) -> float:
        """Interval that workers should keep now."""
        return heartbeat_seconds(self.lease_seconds, self._live, self._max_rate)

    def fact(self, worker_id: str) -> WorkerFact | None:
        """What the newest commit says about a worker."""
        return self._facts.get(worker_id)

    def facts(self) -> Sequence[WorkerFact]:
        """All workers."""
        return tuple(self._facts.values())

    def check(self, caller: WorkerKey) -> WorkerFact:
        """Whether a worker may act, by what the newest commit says: no query.

        Raises:
            StoreRefusal: unknown_worker, stale_epoch or lease_expired, as for every fenced write.
        """
        fact = self._facts.get(caller.worker_id)
        epoch, state = (None, None) if fact is None else (fact.epoch, fact.state)
        refusal = check_fence(caller.worker_id, caller.epoch, epoch, state)
        if refusal is not None:
            raise StoreRefusal(refusal.code, refusal.detail)
        assert fact is not None  # noqa: S101 - an unknown worker was refused
        return fact

    def heartbeat(self, caller: WorkerKey) -> WorkerFact:
        """Renew a lease.

        Raises:
            StoreRefusal: unknown_worker, stale_epoch or lease_expired, as for every fenced write.
        """
        fact = self.check(caller)
        self._clock.renew(caller, time.monotonic())
        return fact

    def age(self, worker_id: str, epoch: int) -> float | None:
        """Seconds since the last heartbeat; None for a worker that is not live."""
        return self._clock.age(WorkerKey(worker_id, epoch), time.monotonic())

    async def sweep_forever(self, expire: Expire, lag: Callable[[float], None]) -> None:
        """End what ran out, a few times per lease. ``lag`` is told how late each round began."""
        self._clock.sweep(time.monotonic())
        while True:
            due = time.monotonic() + self._interval
            await asyncio.sleep(self._interval)
            now = time.monotonic()
            lag(max(0.0, now - due))
            expired = self._clock.sweep(now)
            if not expired:
                continue
            if not await _end(expire, expired) and len(expired) > 1:
                # One that cannot be ended must not keep the others alive.
                for key in expired:
                    await _end(expire, [key])


async def _end(expire: Expire, keys: Sequence[ClockKey]) -> bool:
    """End leases and deadlines; False for an error that may be the fault of one of them."""
    try:
        await expire(keys)
    except StoreUnavailable as error:
        # The keys stay in the clock and are tried again by the next round.
        _log.warning("leases cannot be ended now", count=len(keys), reason=str(error))
    except Exception:
        _log.exception("ending leases failed", keys=[str(key) for key in keys[:10]], count=len(keys))
        return False
    return True
