"""Builds the ASGI application around a runtime."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from importlib.metadata import PackageNotFoundError, version

from fastapi import FastAPI
from starlette.middleware import Middleware

from weightcast_server.api.auth import Authenticator
from weightcast_server.api.docs import install_docs
from weightcast_server.api.handlers import install_handlers
from weightcast_server.api.middleware import BodyLimitMiddleware, RequestMiddleware
from weightcast_server.api.tags import ALL
from weightcast_server.runtime import Runtime
from weightcast_server.settings import Settings
from weightcast_server.store.protocol import StoreOptions
from weightcast_server.store.sqlite import SQLiteStore


def package_version() -> str:
    """Version of the installed distribution."""
    try:
        return version("weightcast")
    except PackageNotFoundError:
        return "0"


def create_runtime(settings: Settings) -> Runtime:
    """The parts of a server on its SQLite store; nothing is opened yet."""
    options = StoreOptions(
        synchronous=settings.synchronous,
        pull_timeout_seconds=settings.pull_timeout_seconds,
        broken_reports=settings.broken_reports,
    )
    return Runtime(settings, SQLiteStore(settings.database, options), package_version())


def create_app(runtime: Runtime) -> FastAPI:
    """The application. Its lifespan starts and stops the runtime, under any ASGI server."""

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await runtime.start()
        try:
            yield
        finally:
            await runtime.stop()

    settings = runtime.settings
    app = FastAPI(
        title="Weightcast",
        version=package_version(),
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        lifespan=lifespan,
        middleware=[
            Middleware(RequestMiddleware, metrics=runtime.metrics, access_log=settings.access_log),
            Middleware(
                BodyLimitMiddleware,
                json_nbytes=settings.max_body_nbytes,
                layout_nbytes=settings.max_layout_nbytes,
            ),
        ],
    )
    app.state.runtime = runtime
    app.state.authenticator = Authenticator(settings)
    install_handlers(app, runtime)
    for routes in ALL:
        routes.install(app)
    install_docs(app)
    return app


def document_app() -> FastAPI:
    """Only the routes, for the OpenAPI document: no settings are read and no store is made."""
    app = FastAPI(title="Weightcast", version=package_version(), openapi_url=None, docs_url=None, redoc_url=None)
    for routes in ALL:
        routes.install(app)
    return app
