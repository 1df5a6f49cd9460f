"""Who makes a fenced call."""

from __future__ import annotations

from typing import NamedTuple

from weightcast.contract.names import EPOCH_HEADER, WORKER_HEADER


class Identity(NamedTuple):
    """A worker as of one registration."""

    worker_id: str
    epoch: int


def fencing_headers(me: Identity) -> dict[str, str]:
    """The headers that say who calls."""
    return {WORKER_HEADER: me.worker_id, EPOCH_HEADER: str(me.epoch)}
