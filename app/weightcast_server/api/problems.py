"""problem+json: every error answer of the server is built here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from starlette.responses import Response
from weightcast.contract.problems import CATALOGUE, PROBLEM_MEDIA_TYPE, TYPE_PREFIX, Code

MAX_ERRORS = 100
MAX_TEXT = 500
RETRY_AFTER_SECONDS = 1


class ApiProblem(Exception):  # noqa: N818 - named after what it becomes
    """Raised anywhere under a route to answer with a problem."""

    def __init__(
        self,
        code: Code,
        detail: str = "",
        errors: Sequence[tuple[str, str]] = (),
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.code = code
        self.detail = detail or CATALOGUE[code].title
        self.errors = errors
        self.headers = headers or {}
        super().__init__(f"{code.value}: {self.detail}")


def clean(text: str) -> str:
    """Bounded text that can be encoded whatever the caller sent (lone surrogates are written as escapes)."""
    return text[:MAX_TEXT].encode("utf-8", "backslashreplace").decode()


def problem_response(
    code: Code,
    detail: str = "",
    *,
    request_id: str = "",
    instance: str = "",
    errors: Sequence[tuple[str, str]] = (),
    headers: Mapping[str, str] | None = None,
) -> Response:
    """The answer for ``code``."""
    kind = CATALOGUE[code]
    shown = [{"location": clean(location), "message": clean(message)} for location, message in errors[:MAX_ERRORS]]
    if len(errors) > MAX_ERRORS:
        shown.append({"location": "", "message": f"and {len(errors) - MAX_ERRORS} more"})
    body = {
        "type": TYPE_PREFIX + code.value,
        "title": kind.title,
        "status": kind.status,
        "detail": clean(detail or kind.title),
        "instance": clean(instance),
        "code": code.value,
        "retryable": kind.retryable,
        "request_id": request_id,
        "errors": shown,
    }
    extra = dict(headers or {})
    if kind.status == 503:
        extra.setdefault("Retry-After", str(RETRY_AFTER_SECONDS))
    if code is Code.UNAUTHORIZED:
        extra.setdefault("WWW-Authenticate", "Bearer")
    return Response(msgspec.json.encode(body), kind.status, extra, PROBLEM_MEDIA_TYPE)
