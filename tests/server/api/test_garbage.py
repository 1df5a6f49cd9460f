"""Whatever is sent, the answer is a 4xx problem that says why: never a 5xx, never a wrong success."""

from __future__ import annotations

import copy
import json
import re
import socket
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.rest import Member, Rest
from support.server import ServerProcess
from weightcast.contract.problems import CATALOGUE, PROBLEM_MEDIA_TYPE, Code, Problem
from weightcast_server.api import examples
from weightcast_server.api.middleware import SMALL_JSON_NBYTES

Json = Any

# Values that are wrong in any field whose example is of the named type.
WRONG_FOR_ALL: list[Json] = [{}, [[]], {"a": 1}, "\x00", "nul\x00inside", "\ud800", "x" * 5_000_000]
WRONG: dict[type, list[Json]] = {
    str: [*WRONG_FOR_ALL, 1, True, 1.5, [], "\n", "../../etc"],
    int: [*WRONG_FOR_ALL, "1", 1.5, True, -1, 2**53, 10**400, float("nan"), float("inf"), -float("inf")],
    float: [*WRONG_FOR_ALL, "1.0", True, -0.5, 1e300, float("nan"), float("inf"), -float("inf")],
    bool: [*WRONG_FOR_ALL, 0, "true"],
    list: [{}, "x", 1, [1], [None], [{"unknown": 1}], ["\x00"]],
    dict: [[], "x", 1, {"unknown": 1}],
}
FREE_TEXT = {"reason", "transport"}


class Target:
    """A route that reads JSON, and one good body for it."""

    def __init__(self, method: str, path: str, body: Json) -> None:
        self.method, self.path, self.body = method, path, body

    def __repr__(self) -> str:
        return f"{self.method} {self.path}"


TARGETS = [
    Target("POST", "/v1/workers", examples.REGISTER_TRAINER),
    Target("POST", "/v1/workers", {**examples.REGISTER_ROLLOUT, "tainted": False}),
    Target("PUT", "/v1/workers/{trainer}/memory", examples.UPDATE_MEMORY),
    Target("POST", "/v1/models/garbage/versions", {**examples.OPEN_VERSION, "deadline_seconds": 5.5}),
    Target("PUT", "/v1/models/garbage/versions/1/shards/0", examples.PUBLISH_SHARD),
    Target("POST", "/v1/models/garbage/versions/1/abort", examples.ABORT_VERSION),
    Target("POST", "/v1/models/garbage/pulls", {**examples.REQUEST_PULL, "exclude": ["a:trainer:0"]}),
    Target("PATCH", "/v1/pulls/" + "0" * 32, {**examples.PULL_FAILED, "tainted": True}),
    Target("PATCH", "/v1/pulls/" + "0" * 32, examples.PULL_STAGED),
]


@pytest.fixture(scope="module")
def rest(shared_server: ServerProcess) -> Iterator[Rest]:
    client = Rest(shared_server.url)
    yield client
    client.close()


@pytest.fixture(scope="module")
def trainer(rest: Rest) -> Member:
    return rest.trainer("garbage")


def is_problem(answer: httpx.Response, *statuses: int) -> None:
    assert answer.status_code in (statuses or range(400, 500)), (answer.status_code, answer.text[:500])
    assert answer.headers["content-type"] == PROBLEM_MEDIA_TYPE
    problem = Problem.model_validate_json(answer.content)
    assert CATALOGUE[Code(problem.code)].status == problem.status == answer.status_code
    assert problem.request_id == answer.headers["x-request-id"]
    assert len(answer.content) < 120_000


def spoiled(body: Json, path: tuple[Any, ...] = ()) -> Iterator[tuple[str, tuple[tuple[Any, ...], Json]]]:
    """Ways to spoil ``body``: a description, and where to put which wrong value."""
    items = body.items() if isinstance(body, dict) else enumerate(body)
    for key, value in items:
        where = (*path, key)
        for wrong in WRONG.get(type(value), []):
            if not (key in FREE_TEXT and isinstance(wrong, str) and wrong == "../../etc"):
                yield f"{where} = {wrong!r:.40}", (where, wrong)
        if isinstance(value, dict | list):
            yield from spoiled(value, where)
    if isinstance(body, dict):
        yield f"{path} + unknown", ((*path, "unknown_field"), 1)
        yield f"{path} + surrogate", ((*path, "\udfff"), 1)


def put(body: Json, path: tuple[Any, ...], value: Json) -> Json:
    copied = copy.deepcopy(body)
    place = copied
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return copied


@pytest.mark.parametrize("target", TARGETS, ids=repr)
def test_every_field_is_checked(rest: Rest, trainer: Member, target: Target) -> None:
    path = target.path.format(trainer=trainer.worker_id)
    tried = 0
    for text, (where, value) in spoiled(target.body):
        content = json.dumps(put(target.body, where, value)).encode()
        answer = rest.send(
            target.method, path, content=content, headers={**trainer.headers, "Content-Type": "application/json"}
        )
        # A body that cannot be of this call is refused before it is read.
        expected = 413 if len(content) > SMALL_JSON_NBYTES and "workers" not in path else 422
        assert answer.status_code == expected, (text, answer.status_code, answer.text[:300])
        is_problem(answer, expected)
        tried += 1
    assert tried > 10


BODIES = [b"", b"{", b"[]", b"null", b"1", b'"x"', b"\xff\xfe", b"[" * 100_000, b"nan", b'{"a": 1e999}', b"9" * 6000]


@pytest.mark.parametrize("target", TARGETS[:7], ids=repr)
def test_bodies_that_are_no_object(rest: Rest, trainer: Member, target: Target) -> None:
    path = target.path.format(trainer=trainer.worker_id)
    for content in BODIES:
        headers = {**trainer.headers, "Content-Type": "application/json"}
        is_problem(rest.send(target.method, path, content=content, headers=headers), 400, 422)
    for media_type in ("text/plain", "application/xml", "multipart/form-data", "application/octet-stream", ";"):
        headers = {**trainer.headers, "Content-Type": media_type}
        is_problem(rest.send(target.method, path, content=b"{}", headers=headers), 415)
    is_problem(rest.send(target.method, path, content=b"{}", headers=trainer.headers), 415)


def test_malformed_json_is_400(rest: Rest) -> None:
    answer = rest.send("POST", "/v1/workers", content=b"{", headers={"Content-Type": "application/json"})
    is_problem(answer, 400)
    assert answer.json()["code"] == "bad_request"


NUMBERS = ["-1", "nan", "inf", "-inf", "1e400", "true", "", "x", "9" * 5000, "0x10", "%00", "1;2"]


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/v1/models/garbage/target", "wait"),
        ("/v1/models/garbage/target", "rev"),
        ("/v1/models/garbage/versions", "limit"),
        ("/v1/models/garbage/versions", "state"),
        ("/v1/models/garbage/versions/1", "wait"),
        ("/v1/models/garbage/versions/1", "replicas"),
        ("/v1/models/garbage/versions/1", "wait_for"),
        ("/v1/models/garbage/replicas", "min_version"),
        ("/v1/workers", "role"),
        ("/v1/workers", "limit"),
    ],
)
def test_query_numbers_are_bounded(rest: Rest, trainer: Member, path: str, name: str) -> None:
    for value in [*NUMBERS, str(2**53), "100000"]:
        if (name, value) == ("rev", "100000") or (name, value) == ("min_version", "100000"):
            continue
        if name == "replicas" and value == "100000":
            value = "65537"
        is_problem(rest.send("GET", f"{path}?{name}={value}"), 422)


@pytest.mark.parametrize(
    "query", ["cursor=%00", "cursor=%ED%A0%80", "cursor=;", "nope=1", "limit=1&limti=2", "cursor=a:b"]
)
def test_queries_are_closed(rest: Rest, trainer: Member, query: str) -> None:
    is_problem(rest.send("GET", f"/v1/models/garbage/versions?{query}"), 422)


@pytest.mark.parametrize(
    "name", ["%00", "%ff", "a%00b", "-x", "x" * 64, "%ED%A0%80", "a b", "..%2f..", "é", "{model}", "a%0a"]
)
def test_names_in_paths(rest: Rest, name: str) -> None:
    is_problem(rest.send("GET", f"/v1/models/{name}/target"), 404, 422)
    is_problem(rest.send("GET", f"/v1/workers/{name * 4}"), 404, 422)
    is_problem(rest.send("GET", f"/v1/models/garbage/versions/{name}"), 404, 422)
    is_problem(rest.send("GET", f"/v1/pulls/{name}"), 404, 422)


@pytest.mark.parametrize(
    "headers",
    [
        {"Weightcast-Epoch": "0"},
        {"Weightcast-Epoch": "-1"},
        {"Weightcast-Epoch": "x"},
        {"Weightcast-Epoch": "9" * 5000},
        {"Weightcast-Epoch": "1.5"},
        {"Weightcast-Worker": ""},
        {"Weightcast-Worker": "a b"},
        {"Weightcast-Worker": b"\xff\xfe"},
    ],
    ids=str,
)
def test_identity_headers(rest: Rest, trainer: Member, headers: dict[str, Any]) -> None:
    body = examples.OPEN_VERSION
    is_problem(rest.send("POST", "/v1/models/garbage/versions", json=body, headers={**trainer.headers, **headers}), 422)
    is_problem(rest.send("POST", "/v1/models/garbage/versions", json=body), 422)


def test_unknown_paths_and_methods(rest: Rest) -> None:
    for path in ("/nope", "/v1", "/v1/", "/v1/models/", "/v1/models/x", "/docs/assets/nope", "/v1/workers/"):
        is_problem(rest.send("GET", path), 404)
    for method, path, allowed in (
        ("DELETE", "/v1/workers", "GET, POST"),
        ("POST", "/v1/models/x/target", "GET"),
        ("POST", "/v1/workers/x:trainer:0", "DELETE, GET"),
        ("PATCH", "/v1/models/x/pulls", "GET, POST"),
        ("PUT", "/healthz", "GET"),
        ("DELETE", "/docs", "GET, HEAD"),
    ):
        answer = rest.send(method, path)
        is_problem(answer, 405)
        assert answer.headers["allow"] == allowed


def test_request_ids_are_echoed_or_made(rest: Rest) -> None:
    assert rest.send("GET", "/healthz", headers={"X-Request-Id": "abc-1.2_3"}).headers["x-request-id"] == "abc-1.2_3"
    for bad in ("", "x" * 65, 'a"b', "a b"):
        made = rest.send("GET", "/healthz", headers={"X-Request-Id": bad}).headers["x-request-id"]
        assert re.fullmatch(r"[0-9a-f]{16}", made)


def raw(rest: Rest, head: str, body: bytes = b"") -> bytes:
    url = rest.client.base_url
    with socket.create_connection((url.host, url.port or 80), timeout=10) as connection:
        connection.sendall(head.encode() + body)
        answer = b""
        while not answer.endswith(b"}"):
            chunk = connection.recv(65536)
            if not chunk:
                break
            answer += chunk
        return answer


def test_a_large_body_is_refused_before_it_is_read(rest: Rest) -> None:
    head = "POST /v1/workers HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\n"
    answer = raw(rest, head + "Content-Length: 100000000\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b'"code":"payload_too_large"' in answer
    assert b"connection: close" in answer.lower()


def test_a_large_body_without_length_is_cut_off(rest: Rest, trainer: Member) -> None:
    def drip() -> Iterator[bytes]:
        for _ in range(10):
            yield b" " * 2**20

    head = {**trainer.headers, "Content-Type": "application/json"}
    answer = rest.send("POST", "/v1/models/garbage/versions", content=drip(), headers=head)
    is_problem(answer, 413)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(
    body=st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=20),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
        max_leaves=12,
    ),
    target=st.sampled_from(TARGETS),
)
def test_any_json(rest: Rest, trainer: Member, body: Json, target: Target) -> None:
    content = json.dumps(body).encode()
    headers = {**trainer.headers, "Content-Type": "application/json"}
    path = target.path.format(trainer=trainer.worker_id)
    is_problem(rest.send(target.method, path, content=content, headers=headers))
