"""Weightcast: moves model weights from RL trainers to rollout engines.

``Trainer``, ``Rollout`` and ``Hooks`` need the ``worker`` extra (torch, nixl) and are imported when first used, so that
the contract, the client and the CLI work without it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from weightcast.published import PublishedVersion
    from weightcast.rollout import Rollout
    from weightcast.settings import WorkerSettings
    from weightcast.trainer import Trainer
    from weightcast.update import Hooks, Update

_HOMES = {
    "Hooks": "weightcast.update",
    "PublishedVersion": "weightcast.published",
    "Rollout": "weightcast.rollout",
    "Trainer": "weightcast.trainer",
    "Update": "weightcast.update",
    "WorkerSettings": "weightcast.settings",
}

__all__ = ["Hooks", "PublishedVersion", "Rollout", "Trainer", "Update", "WorkerSettings"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'weightcast' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
