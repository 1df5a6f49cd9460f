"""Layouts: immutable, named by their digest, never parsed when read."""

from __future__ import annotations

import asyncio

from fastapi import Request
from starlette.responses import Response
from weightcast.contract.layout import LAYOUT_MEDIA_TYPE, unpack_layout
from weightcast.contract.problems import Code

from weightcast_server.api.auth import READ, TRAINERS, require_role_of
from weightcast_server.api.params import CallerHeader, DigestPath, EpochHeader, ModelPath
from weightcast_server.api.routing import FENCED, Responses, Routes, empty, runtime_of
from weightcast_server.domain.keys import WorkerKey

routes = Routes("layouts", "What tensors a shard holds and where their bytes lie. Uploaded once, immutable.")

_BINARY = {"schema": {"type": "string", "format": "binary"}, "example": "(zstd-compressed msgpack)"}
_BLOB: Responses = {200: {"description": "The layout.", "content": {LAYOUT_MEDIA_TYPE: _BINARY}}}


@routes.add(
    "PUT",
    "/v1/models/{model}/layouts/{digest}",
    "Upload a layout",
    roles=TRAINERS,
    answers=empty(201, "Kept.") | empty(200, "It was here already."),
    problems=[*FENCED, Code.LAYOUT_INVALID],
    media_type=LAYOUT_MEDIA_TYPE,
    body=_BINARY,
)
async def put_layout(
    request: Request, model: ModelPath, digest: DigestPath, caller: CallerHeader, epoch: EpochHeader
) -> Response:
    """Canonical msgpack, zstd-compressed with its size in the frame. `errors` lists all that is wrong with one."""
    require_role_of(request.scope, caller)
    runtime = runtime_of(request)
    runtime.leases.check(WorkerKey(caller, epoch))  # before the work of unpacking; the store checks again
    blob = await request.body()
    loop = asyncio.get_running_loop()
    layout = await loop.run_in_executor(runtime.layout_threads, unpack_layout, blob, digest)
    new = await runtime.timed(runtime.store.put_layout(WorkerKey(caller, epoch), model, digest, blob, layout.nbytes))
    return Response(status_code=201 if new else 200, headers={"ETag": f'"{digest}"'})


@routes.add(
    "GET",
    "/v1/models/{model}/layouts/{digest}",
    "Download a layout",
    roles=READ,
    answers=_BLOB | empty(304, "The caller's copy is good: a layout never changes."),
    problems=[Code.UNKNOWN_LAYOUT],
)
async def get_layout(request: Request, model: ModelPath, digest: DigestPath) -> Response:
    """The bytes as they were uploaded."""
    runtime = runtime_of(request)
    blob = await runtime.timed(runtime.store.get_layout(model, digest))
    etag = f'"{digest}"'
    headers = {"ETag": etag, "Cache-Control": "private, max-age=31536000, immutable"}
    known = [tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")]
    if etag in known or "*" in known:
        return Response(status_code=304, headers=headers)
    return Response(blob, headers=headers, media_type=LAYOUT_MEDIA_TYPE)
