"""Tokens and roles: who may call what, route by route."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import SecretStr, ValidationError
from support.rest import Rest
from support.server import ServerProcess
from weightcast_server.api import examples
from weightcast_server.api.auth import Access
from weightcast_server.api.tags import ALL
from weightcast_server.settings import Settings

TOKENS = {role: f"secret-of-{role}" for role in Access}

READERS = set(Access)
TRAINERS = {Access.TRAINER, Access.OPERATOR}
ROLLOUTS = {Access.ROLLOUT, Access.OPERATOR}
OPEN: set[Access] = set()

# Operation → a request that gets past parsing, and who may make it.
CALLS: dict[str, tuple[str, Any, set[Access]]] = {
    "register_worker": ("/v1/workers", {**examples.REGISTER_TRAINER, "model": "other"}, TRAINERS),
    "heartbeat": ("/v1/workers/m:trainer:0/heartbeat", None, TRAINERS),
    "leave_worker": ("/v1/workers/m:rollout:r:0", None, ROLLOUTS),
    "update_memory": ("/v1/workers/m:trainer:0/memory", examples.UPDATE_MEMORY, TRAINERS),
    "list_workers": ("/v1/workers", None, READERS),
    "get_worker": ("/v1/workers/m:trainer:0", None, READERS),
    "put_layout": ("/v1/models/m/layouts/" + "0" * 64, b"x", TRAINERS),
    "get_layout": ("/v1/models/m/layouts/" + "0" * 64, None, READERS),
    "open_version": ("/v1/models/m/versions", examples.OPEN_VERSION, TRAINERS),
    "publish_shard": ("/v1/models/m/versions/1/shards/0", examples.PUBLISH_SHARD, TRAINERS),
    "abort_version": ("/v1/models/m/versions/1/abort", examples.ABORT_VERSION, TRAINERS),
    "list_versions": ("/v1/models/m/versions", None, READERS),
    "get_version": ("/v1/models/m/versions/1", None, READERS),
    "drain_holding": ("/v1/models/m/versions/1/holdings/m:trainer:0", None, TRAINERS),
    "request_pull": ("/v1/models/m/pulls", examples.REQUEST_PULL, ROLLOUTS),
    "update_pull": ("/v1/pulls/" + "0" * 32, examples.PULL_APPLYING, ROLLOUTS),
    "list_pulls": ("/v1/models/m/pulls", None, READERS),
    "get_pull": ("/v1/pulls/" + "0" * 32, None, READERS),
    "list_models": ("/v1/models", None, READERS),
    "get_target": ("/v1/models/m/target", None, READERS),
    "list_replicas": ("/v1/models/m/replicas", None, READERS),
    "healthz": ("/healthz", None, OPEN),
    "readyz": ("/readyz", None, OPEN),
    "metrics": ("/metrics", None, READERS),
}
OPERATIONS = {route.handler.__name__: route for routes in ALL for route in routes.declared}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    env = {f"WEIGHTCAST_{role.upper()}_TOKENS": f"other-{role}, {token}" for role, token in TOKENS.items()}
    with ServerProcess(tmp_path_factory.mktemp("auth"), env=env) as process:
        yield process


def test_every_route_is_in_the_matrix() -> None:
    assert set(CALLS) == set(OPERATIONS)


@pytest.mark.parametrize("operation", CALLS)
def test_roles(server: ServerProcess, operation: str) -> None:
    path, body, allowed = CALLS[operation]
    rest = Rest(server.url)
    method = OPERATIONS[operation].method
    worker = path.split("/")[3] if path.startswith("/v1/workers/") else "m:trainer:0"
    headers = {"Weightcast-Worker": worker, "Weightcast-Epoch": "1"}
    options: dict[str, Any] = {}
    if isinstance(body, bytes):
        options = {"content": body}
        headers["Content-Type"] = "application/vnd.weightcast.layout+zstd"
    elif body is not None:
        options = {"json": body}

    def status(authorization: str | None) -> tuple[int, str]:
        with_token = headers if authorization is None else {**headers, "Authorization": authorization}
        answer = rest.send(method, path, headers=with_token, **options)
        problem = answer.headers.get("content-type") == "application/problem+json"
        return answer.status_code, answer.json()["code"] if problem else ""

    for wrong in (
        None,
        "Bearer nope",
        "Bearer",
        "Basic abc",
        "Bearer secret-of-viewe",
        f"Basic {TOKENS[Access.OPERATOR]}",
    ):
        assert status(wrong) == ((401, "unauthorized") if allowed else (200, "")), wrong
    for role, token in TOKENS.items():
        code, problem = status(f"Bearer {token}")
        assert problem != "unauthorized"
        if allowed:
            assert (code == 403) == (role not in allowed), (role, code, problem)
        assert code < 500
    rest.close()


def test_a_token_opens_nothing_of_the_other_role(server: ServerProcess) -> None:
    trainer = Rest(server.url, TOKENS[Access.TRAINER])
    rollout = Rest(server.url, TOKENS[Access.ROLLOUT])
    body = {**examples.REGISTER_ROLLOUT, "incarnation": uuid.uuid4().hex}
    assert trainer.send("POST", "/v1/workers", json=body).status_code == 403
    assert rollout.send("POST", "/v1/workers", json=body).status_code == 201
    assert rollout.send("POST", "/v1/workers", json={**examples.REGISTER_TRAINER}).status_code == 403
    # Draining without the worker headers is for operators.
    where = "/v1/models/policy/versions/1/holdings/policy:trainer:0"
    assert trainer.send("DELETE", where).status_code == 403
    operator = Rest(server.url, TOKENS[Access.OPERATOR])
    assert operator.send("DELETE", where).status_code == 404
    for client in (trainer, rollout, operator):
        client.close()


def test_documentation_is_open_and_refusals_name_the_scheme(server: ServerProcess) -> None:
    rest = Rest(server.url)
    for path in ("/docs", "/openapi.json", "/docs/assets/swagger-ui.css"):
        assert rest.send("GET", path).status_code == 200
    assert rest.send("GET", "/v1/models").headers["www-authenticate"] == "Bearer"
    rest.close()


def test_secrets_do_not_reach_the_log(server: ServerProcess) -> None:
    rest = Rest(server.url, "a-wrong-token")
    assert rest.send("GET", "/v1/models").status_code == 401
    rest.close()
    log = server.tail(10**6)
    assert not any(token in log for token in [*TOKENS.values(), "a-wrong-token", "other-viewer"])


def test_off_loopback_needs_tokens() -> None:
    for host in ("0.0.0.0", "::", "10.0.0.1", "example.org"):
        with pytest.raises(ValidationError, match="refusing to listen"):
            Settings(host=host)
        with pytest.raises(ValidationError, match="refusing to listen"):
            Settings(host=host, viewer_tokens=SecretStr(" , "))
        assert Settings(host=host, viewer_tokens=SecretStr("secret")).authenticated
        assert not Settings(host=host, allow_unauthenticated=True).authenticated
    for host in ("127.0.0.1", "127.8.8.8", "localhost", "::1"):
        assert not Settings(host=host).authenticated
