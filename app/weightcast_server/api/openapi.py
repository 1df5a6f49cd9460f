"""The OpenAPI document. ``python -m weightcast_server.api.openapi docs/openapi.json`` writes it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Final

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from weightcast.contract.names import EPOCH_HEADER, WORKER_HEADER
from weightcast.contract.problems import CATALOGUE, PROBLEM_MEDIA_TYPE, TYPE_PREFIX, Code, Problem

from weightcast_server.api.tags import TAGS

_REFERENCE: Final = "#/components/schemas/{model}"
_DESCRIPTION: Final = f"""\
Control plane of Weightcast: which versions of a model exist, who holds them, who pulls them, who serves them.
The weights themselves never pass through it.

* Writes of workers carry `{WORKER_HEADER}` and `{EPOCH_HEADER}`. A process that was replaced gets `stale_epoch`.
* Every write has a natural key and may be repeated until it is answered.
* Calls with `wait` park: they answer within milliseconds of the commit that they wait for.
* Errors are `{PROBLEM_MEDIA_TYPE}`. Clients branch on `code`; `retryable` says whether the same call may succeed later.
  Besides those of each call: an unknown path is 404 `not_found`, a wrong method 405 `method_not_allowed` with `Allow`.
* Unknown fields and query parameters are refused. `X-Request-Id` is echoed, or made up, and is in the server's log.
"""


def build_openapi(app: FastAPI) -> dict[str, Any]:
    """The document of ``app``."""
    document = get_openapi(
        title="Weightcast",
        version=app.version,
        summary="Moves model weights from RL trainers to rollout engines",
        description=_DESCRIPTION,
        routes=app.routes,
        tags=TAGS,
        license_info={"name": "Apache-2.0", "identifier": "Apache-2.0"},
    )
    components = document.setdefault("components", {})
    schemas = components.setdefault("schemas", {})
    problem = Problem.model_json_schema(ref_template=_REFERENCE)
    schemas.update(problem.pop("$defs", {}))
    problem["properties"]["code"]["enum"] = [code.value for code in Code]
    schemas["Problem"] = problem
    components["schemas"] = dict(sorted(schemas.items()))
    components["examples"] = {code.value: {"summary": CATALOGUE[code].title, "value": _example(code)} for code in Code}
    components["securitySchemes"] = {
        "bearer": {
            "type": "http",
            "scheme": "bearer",
            "description": "A token of the server's settings. `x-weightcast-roles` names the roles a call accepts.",
        }
    }
    return document


def _example(code: Code) -> dict[str, Any]:
    kind = CATALOGUE[code]
    return {
        "type": TYPE_PREFIX + code.value,
        "title": kind.title,
        "status": kind.status,
        "detail": kind.remedy,
        "instance": "/v1/…",
        "code": code.value,
        "retryable": kind.retryable,
        "request_id": "3f9c1b7ad20e4c58",
        "errors": [],
    }


def render() -> str:
    """The document as it is kept in docs/openapi.json."""
    from weightcast_server.api.app import document_app  # the app imports this module

    return json.dumps(build_openapi(document_app()), indent=2, ensure_ascii=False, sort_keys=True) + "\n"


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m weightcast_server.api.openapi FILE")
    Path(sys.argv[1]).write_text(render(), encoding="utf-8")
