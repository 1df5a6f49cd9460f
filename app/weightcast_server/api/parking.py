"""How a route parks: subscribe, look, sleep until something changed, look again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Final, TypeVar

from fastapi import Request
from weightcast.contract.problems import Code

from weightcast_server.api.problems import ApiProblem
from weightcast_server.domain.keys import Topic
from weightcast_server.runtime import Runtime
from weightcast_server.watch import HubFullError, Wake

T = TypeVar("T")

PARKED_KEY: Final = "weightcast.parked"
"""Set in the scope of requests that parked: their duration says nothing about the server's speed."""


class ClientGoneError(Exception):
    """The client hung up while its request was parked; nobody reads an answer."""


async def until(
    runtime: Runtime,
    request: Request,
    topics: Iterable[Topic],
    seconds: float,
    attempt: Callable[[], Awaitable[T | None]],
) -> T | None:
    """The first answer of ``attempt`` that is not None; None when the time is over.

    Raises:
        ApiProblem: the server drains, or too many requests are parked.
        ClientGoneError: the client has hung up.
    """
    if seconds <= 0:
        return await attempt()
    with runtime.hub.subscribe(topics, seconds, request.receive) as waiter:
        while True:
            answer = await attempt()
            if answer is not None:
                return answer
            request.scope[PARKED_KEY] = True
            try:
                wake = await waiter.wait()
            except HubFullError:
                limit = runtime.settings.max_waiters
                raise ApiProblem(Code.TOO_MANY_WAITERS, f"{limit} requests are parked already") from None
            if wake is Wake.TIMEOUT:
                return None
            if wake is Wake.CLOSED:
                raise ApiProblem(Code.SERVER_DRAINING, "the server is shutting down; ask again")
            if wake is Wake.GONE:
                raise ClientGoneError
