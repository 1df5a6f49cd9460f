"""The API's pages: the OpenAPI document and Swagger UI, from files of this package only."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec
from fastapi import FastAPI, Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.staticfiles import StaticFiles

from weightcast_server.api.openapi import build_openapi

ASSETS: Final = Path(__file__).with_name("assets")

# No inline script and no foreign origin: the page works without internet, and nothing foreign runs in it.
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_PAGE: Final = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Weightcast API</title>
<link rel="icon" type="image/png" href="docs/assets/favicon-32x32.png">
<link rel="stylesheet" href="docs/assets/swagger-ui.css">
</head>
<body>
<div id="swagger-ui"></div>
<script src="docs/assets/swagger-ui-bundle.js"></script>
<script src="docs/assets/docs.js"></script>
</body>
</html>
"""


def install_docs(app: FastAPI) -> None:
    """Add ``/``, ``/docs``, its assets and ``/openapi.json``."""

    async def root(_: Request) -> Response:
        return RedirectResponse("docs")

    async def docs(_: Request) -> Response:
        return HTMLResponse(_PAGE, headers={"Content-Security-Policy": _POLICY})

    async def openapi(_: Request) -> Response:
        if app.openapi_schema is None:
            app.openapi_schema = build_openapi(app)
        return Response(msgspec.json.encode(app.openapi_schema), media_type="application/json")

    app.router.add_route("/", root, methods=["GET"], include_in_schema=False)
    app.router.add_route("/docs", docs, methods=["GET"], include_in_schema=False)
    app.router.add_route("/openapi.json", openapi, methods=["GET"], include_in_schema=False)
    app.router.mount("/docs/assets", StaticFiles(directory=ASSETS), name="assets")
