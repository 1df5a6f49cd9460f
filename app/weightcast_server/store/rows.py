"""Rows of the database as models of the contract."""

from __future__ import annotations

import json
import sqlite3

from weightcast.contract.names import Role, WorkerState
from weightcast.contract.pulls import Pull
from weightcast.contract.workers import Worker

from weightcast_server.store.protocol import WorkerFact


def worker_of(row: sqlite3.Row) -> Worker:
    """A row of ``workers``."""
    return Worker(
        worker_id=row["worker_id"],
        model=row["model"],
        role=row["role"],
        rank=row["rank"],
        world_size=row["world_size"],
        epoch=row["epoch"],
        state=row["state"],
        run=row["run"],
        replica=row["replica"],
        host=row["host"],
        rack=row["rack"],
        zone=row["zone"],
        agents=json.loads(row["agents"]),
        serving_version=row["serving_version"],
        tainted=bool(row["tainted"]),
        registered_at=row["registered_at"],
        heartbeat_age_seconds=None,
    )


def worker_fact(row: sqlite3.Row) -> WorkerFact:
    """A row of ``workers`` as what memory must know of it."""
    return WorkerFact(
        worker_id=row["worker_id"],
        model=row["model"],
        role=Role(row["role"]),
        replica=row["replica"],
        world_size=row["world_size"],
        epoch=row["epoch"],
        state=WorkerState(row["state"]),
    )


def pull_of(row: sqlite3.Row) -> Pull:
    """A row of ``pulls``."""
    return Pull(
        pull_id=row["pull_id"],
        model=row["model"],
        version=row["version"],
        step=row["step"],
        worker_id=row["worker_id"],
        epoch=row["epoch"],
        replica=row["replica"],
        rank=row["rank"],
        attempt=row["attempt"],
        state=row["state"],
        failure=row["failure"],
        reason=row["reason"],
        failed_source=row["failed_source"],
        sources=json.loads(row["sources"]),
        nbytes=row["nbytes"],
        bytes_done=row["bytes_done"],
        fetch_seconds=row["fetch_seconds"],
        pause_seconds=row["pause_seconds"],
        transport=row["transport"],
        assigned_at=row["assigned_at"],
        updated_at=row["updated_at"],
    )
