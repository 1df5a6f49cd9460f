"""What every typed call shares: paths, deadlines, and parsing of answers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Final, Self, TypeVar
from urllib.parse import quote

from pydantic import BaseModel, ValidationError

from weightcast.client.backoff import check_seconds
from weightcast.client.identity import Identity, fencing_headers
from weightcast.client.problems import excerpt
from weightcast.client.pulse import Pulse
from weightcast.client.transport import Answer, Http
from weightcast.contract.names import MAX_WAIT_SECONDS
from weightcast.errors import ContractError, InvalidArgument

Model = TypeVar("Model", bound=BaseModel)
Query = Mapping[str, str | int | None]

_SEGMENT: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,199}")
_NO_QUERY: Final[Query] = {}


class Calls:
    """The connection, and the one way that all calls go.

    Threads may share an instance. ``deadline`` is the longest that a call may take, retries included, in seconds from
    now; a call that may be parked by the server for ``wait`` seconds gets that time on top when no deadline is given.
    A wait is cut to what the server allows (60 s): callers loop.
    """

    def __init__(
        self,
        url: str,
        token: str | None = None,
        *,
        deadline_seconds: float = 30.0,
        answer_seconds: float = 10.0,
        connect_seconds: float = 3.0,
        ca_file: Path | None = None,
    ) -> None:
        self._deadline_seconds = check_seconds("deadline_seconds", deadline_seconds)
        self._http = Http(url, token, answer_seconds=answer_seconds, connect_seconds=connect_seconds, ca_file=ca_file)

    @property
    def url(self) -> str:
        """Where the server is."""
        return self._http.url

    def pulse(self) -> Pulse:
        """A connection of its own for the heartbeats of one thread; the caller closes it."""
        return self._http.pulse()

    def close(self) -> None:
        """Close the connections. Calls that other threads make at the time end with an error."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _send(
        self,
        method: str,
        path: str,
        *,
        me: Identity | None = None,
        body: BaseModel | bytes | None = None,
        media_type: str = "application/json",
        query: Query = _NO_QUERY,
        wait: float | None = None,
        deadline: float | None = None,
        once: bool = False,
    ) -> Answer:
        if wait is not None:
            wait = min(check_seconds("wait", wait), MAX_WAIT_SECONDS)
        if deadline is None:
            deadline = self._deadline_seconds + (wait or 0.0)
        headers = fencing_headers(me) if me is not None else {}
        if body is not None:
            headers["Content-Type"] = media_type
        return self._http.call(
            method,
            path,
            deadline=check_seconds("deadline", deadline),
            wait=wait,
            worker=me.worker_id if me else "",
            params={key: value for key, value in query.items() if value is not None},
            headers=headers,
            content=body.model_dump_json().encode() if isinstance(body, BaseModel) else body,
            once=once,
        )


def path(*segments: str | int) -> str:
    """``/v1/…`` of the given segments; a name that no path can carry is refused here, before anything is sent."""
    for segment in segments:
        if not _SEGMENT.fullmatch(str(segment)):
            raise InvalidArgument(
                f"{segment!r} is not a name: letters, digits and ._:- only, beginning with one of the former."
            )
    return "/v1/" + "/".join(quote(str(segment), safe=":") for segment in segments)


def parse(kind: type[Model], answer: Answer) -> Model:
    """The answer as its model.

    Raises:
        ContractError: it is not JSON, or lacks what this build needs.
    """
    try:
        return kind.model_validate_json(answer.content)
    except ValidationError as error:
        problems = [f"{'.'.join(map(str, item['loc'])) or 'body'}: {item['msg']}" for item in error.errors()[:5]]
        raise ContractError(
            f"the answer from {answer.url} is no {kind.__name__}: {excerpt(answer.media_type, answer.content)}",
            status=answer.status,
            call=answer.call,
            errors=problems,
        ) from None
