"""The OpenAPI document: complete, in step with docs/openapi.json, its page without any foreign origin."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from support.rest import Rest
from weightcast.contract import pulls, versions, workers
from weightcast.contract.problems import Code
from weightcast_server.api import examples
from weightcast_server.api.openapi import render
from weightcast_server.api.routing import FENCED

SNAPSHOT = Path(__file__).parents[3] / "docs" / "openapi.json"
DOCUMENT: dict[str, Any] = json.loads(render())
OPERATIONS = [
    pytest.param(method, path, operation, id=operation["operationId"])
    for path, methods in DOCUMENT["paths"].items()
    for method, operation in methods.items()
]


def test_snapshot() -> None:
    command = "python -m weightcast_server.api.openapi docs/openapi.json"
    assert SNAPSHOT.read_text(encoding="utf-8") == render(), f"regenerate it: {command}"


def resolve(reference: str) -> Any:
    place: Any = DOCUMENT
    for part in reference.removeprefix("#/").split("/"):
        place = place[part]
    return place


def references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        for inner in value.values():
            yield from references(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from references(inner)


def test_every_reference_resolves() -> None:
    for reference in references(DOCUMENT):
        assert resolve(reference) is not None


def test_operation_ids_are_unique_and_tags_described() -> None:
    ids = [param.values[2]["operationId"] for param in OPERATIONS]  # type: ignore[index]
    assert len(ids) == len(set(ids))
    assert all(re.fullmatch(r"[a-z_]+", name) for name in ids)
    described = {tag["name"] for tag in DOCUMENT["tags"] if len(tag["description"]) > 20}
    assert {tag for param in OPERATIONS for tag in param.values[2]["tags"]} == described  # type: ignore[index]


@pytest.mark.parametrize(("method", "path", "operation"), OPERATIONS)
def test_every_operation_is_documented(method: str, path: str, operation: dict[str, Any]) -> None:
    assert operation["summary"]
    assert operation["description"]
    for parameter in operation.get("parameters", []):
        assert parameter["description"], parameter["name"]
        assert parameter.get("examples") or parameter["schema"].get("examples") or parameter["name"] == "cursor"
    body = operation.get("requestBody")
    if body:
        for content in body["content"].values():
            assert content.get("examples") or content.get("example")
    problems: set[str] = set()
    for status, response in operation["responses"].items():
        assert response["description"]
        if int(status) >= 400:
            (media_type,) = response["content"]
            assert media_type == "application/problem+json"
            assert response["content"][media_type]["schema"]["$ref"].endswith("/Problem")
            for code, example in response["content"][media_type]["examples"].items():
                assert resolve(example["$ref"])["value"]["status"] == int(status)
                problems.add(code)
        elif "content" in response:
            assert all(content.get("example") for content in response["content"].values())
        else:
            assert status in {"200", "201", "204", "304"}
    assert problems <= {code.value for code in Code}
    if path.startswith("/v1"):
        assert {"unauthorized", "forbidden", "validation_failed", "store_unavailable"} <= problems
        assert operation["security"] == [{"bearer": []}]
        assert operation["x-weightcast-roles"]
    names = {parameter["name"] for parameter in operation.get("parameters", [])}
    if "Weightcast-Epoch" in names:
        assert {code.value for code in FENCED} <= problems
    if "wait" in names:
        assert {"server_draining", "too_many_waiters"} <= problems


MODELS: dict[str, type[BaseModel]] = {
    "AGENT": workers.Agent,
    "SLOT": workers.SlotMemory,
    "MEMORY": workers.WorkerMemory,
    "REGISTER_TRAINER": workers.RegisterWorker,
    "REGISTER_ROLLOUT": workers.RegisterWorker,
    "REGISTRATION": workers.Registration,
    "HEARTBEAT": workers.Heartbeat,
    "UPDATE_MEMORY": workers.UpdateMemory,
    "WORKER": workers.Worker,
    "WORKER_LIST": workers.WorkerList,
    "REPLICA": workers.Replica,
    "REPLICA_LIST": workers.ReplicaList,
    "OPEN_VERSION": versions.OpenVersion,
    "PUBLISH_SHARD": versions.PublishShard,
    "ABORT_VERSION": versions.AbortVersion,
    "VERSION": versions.Version,
    "VERSION_LIST": versions.VersionList,
    "TARGET": versions.Target,
    "DRAINED": versions.Drained,
    "MODEL": versions.Model,
    "MODEL_LIST": versions.ModelList,
    "REQUEST_PULL": pulls.RequestPull,
    "PULL": pulls.Pull,
    "PULL_LIST": pulls.PullList,
    "ASSIGNMENT": pulls.Assignment,
    "PULL_FETCHING": pulls.UpdatePull,
    "PULL_STAGED": pulls.UpdatePull,
    "PULL_APPLYING": pulls.UpdatePull,
    "PULL_APPLIED": pulls.UpdatePull,
    "PULL_FAILED": pulls.UpdatePull,
}


def test_examples_are_of_their_models() -> None:
    shown = {name for name in vars(examples) if name.isupper() and not name.startswith("_")} - {"STATUS"}
    assert shown == set(MODELS)
    for name, model in MODELS.items():
        example = getattr(examples, name)
        parsed = model.model_validate_json(json.dumps(example))
        assert set(example) <= set(model.model_fields), name
        assert parsed.model_dump(mode="json", include=set(example)).keys() == example.keys()


def test_docs_page_is_local(rest: Rest) -> None:
    assert rest.send("GET", "/").headers["location"] == "docs"
    page = rest.send("GET", "/docs")
    assert "script-src 'self'" in page.headers["content-security-policy"]
    sources = re.findall(r'(?:src|href)="([^"]+)"', page.text)
    assert len(sources) == 4
    for source in sources:
        assert "//" not in source
        asset = rest.send("GET", f"/{source}")
        assert asset.status_code == 200
        assert asset.headers["etag"]
    assert "://" not in page.text
    script = rest.send("GET", "/docs/assets/docs.js").text
    assert "openapi.json" in script
    assert "://" not in script
    assert rest.get("/openapi.json") == DOCUMENT
