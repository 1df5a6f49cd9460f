"""A store that cannot answer, and errors that nobody foresaw: the application around a store made to fail."""

from __future__ import annotations

import asyncio
import json
from typing import Any, cast

import httpx
import pytest
from support.rest import LAYOUT_DIGEST
from weightcast.contract.problems import Problem
from weightcast_server.api import examples
from weightcast_server.api.app import create_app
from weightcast_server.logs import configure_logs
from weightcast_server.runtime import Runtime
from weightcast_server.settings import Settings
from weightcast_server.store.protocol import Store, StoreUnavailable

CALLER = {"Weightcast-Worker": "policy:trainer:0", "Weightcast-Epoch": "1"}
CALLS: list[tuple[str, str, Any]] = [
    ("GET", "/readyz", None),
    ("GET", "/metrics", None),
    ("GET", "/v1/models", None),
    ("GET", "/v1/workers", None),
    ("GET", "/v1/models/policy/versions", None),
    ("GET", "/v1/models/policy/versions/1?wait_for=applied&wait=10", None),
    ("GET", "/v1/models/policy/pulls", None),
    ("GET", "/v1/models/policy/replicas", None),
    ("GET", f"/v1/models/policy/layouts/{LAYOUT_DIGEST}", None),
    ("POST", "/v1/workers", examples.REGISTER_TRAINER),
    ("POST", "/v1/models/policy/pulls?wait=10", examples.REQUEST_PULL),
    ("DELETE", "/v1/models/policy/versions/1/holdings/policy:trainer:0?wait=10", None),
]


class BrokenStore:
    """Every call ends with the same error."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def __getattr__(self, name: str) -> Any:
        async def fail(*args: Any, **options: Any) -> None:
            raise self._error

        return fail


def answers(error: Exception) -> list[httpx.Response]:
    runtime = Runtime(Settings(access_log=True), cast("Store", BrokenStore(error)), "0")
    app = create_app(runtime)
    configure_logs("info", "json")

    async def main() -> list[httpx.Response]:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://test", headers=CALLER) as client:
            return [await client.request(method, path, json=body) for method, path, body in CALLS]

    return asyncio.run(main())


@pytest.mark.usefixtures("kept_logging")
def test_an_outage_is_503_and_never_an_empty_list() -> None:
    for answer in answers(StoreUnavailable("disk full")):
        assert answer.status_code == 503, answer.url
        assert answer.headers["retry-after"] == "1"
        problem = Problem.model_validate_json(answer.content)
        assert (problem.code, problem.retryable, problem.detail) == ("store_unavailable", True, "disk full")


@pytest.mark.usefixtures("kept_logging")
def test_the_unforeseen_is_a_500_problem_that_hides_its_cause(capsys: pytest.CaptureFixture[str]) -> None:
    for answer in answers(RuntimeError("a secret path")):
        assert answer.status_code == 500, answer.url
        problem = Problem.model_validate_json(answer.content)
        assert problem.code == "internal"
        assert problem.request_id == answer.headers["x-request-id"]
        assert "secret" not in json.dumps(answer.json())
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    errors = [line for line in lines if line["event"] == "unhandled error"]
    assert len(errors) == len([line for line in lines if line["event"] == "request"]) == len(CALLS)
    assert all(len(line["request_id"]) == 16 and line["exception"] for line in errors)
