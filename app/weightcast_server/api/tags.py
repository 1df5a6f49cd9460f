"""All routes. Paths are matched in this order, so the calls that are made most often come first."""

from __future__ import annotations

from typing import Any, Final

from weightcast_server.api.routes import layouts, models, operations, pulls, versions, workers
from weightcast_server.api.routing import Routes

ALL: Final[tuple[Routes, ...]] = (
    workers.routes,
    pulls.routes,
    models.routes,
    versions.routes,
    layouts.routes,
    operations.routes,
)
TAGS: Final[list[dict[str, Any]]] = [{"name": routes.tag, "description": routes.description} for routes in ALL]
