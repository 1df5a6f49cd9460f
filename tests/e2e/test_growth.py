"""A hundred refits with changed values leave nothing behind in any process, nor much in the database."""

from __future__ import annotations

from typing import Any

import psutil
from support.fleet import Fleet
from support.server import ServerProcess
from support.workers import WorkerProcess

WARM_UP = 20
REFITS = 100
NOISE_NBYTES = 8 * 2**20
"""An allocator's own moods. The weights are 1 MiB: a leak of a tenth of them at each refit would be above it."""
NOISE_FDS = 3
"""Connections that an HTTP client keeps, or does not, for a while."""


def test_hundred_refits_leave_nothing_behind(fleet: Fleet, shared_server: ServerProcess) -> None:
    trainer, rollout = fleet.trainer(mib=1), fleet.rollout(mib=1)
    trainer.ready()
    run(fleet, trainer, rollout, range(WARM_UP))
    before = observe(trainer, rollout, shared_server)
    run(fleet, trainer, rollout, range(WARM_UP, WARM_UP + REFITS))
    after = observe(trainer, rollout, shared_server)

    for who in ("trainer", "rollout", "server"):
        grown = after[who].pop("rss") - before[who].pop("rss")
        assert grown <= NOISE_NBYTES, f"{who} grew by {grown:,} bytes"
        opened = after[who].pop("fds") - before[who].pop("fds")
        assert opened <= NOISE_FDS, f"{who} has {opened} more file descriptors"
        assert all(after[who][what] <= before[who][what] for what in before[who]), (who, before[who], after[who])
    assert after["rollout"]["peers"] == 1
    assert after["database"] - before["database"] <= REFITS * 8192, "a version is a few rows"
    assert after["log"] <= 8 * 2**20, "written back again and again"


def run(fleet: Fleet, trainer: WorkerProcess, rollout: WorkerProcess, steps: range) -> None:
    """Publish and refit once for every step."""
    for step in steps:
        version = fleet.publish(trainer, step=step, seed=step)
        fleet.refit(rollout, version)
    assert len({fleet.published[version] for version in fleet.published}) == len(fleet.published), "values change"


def observe(trainer: WorkerProcess, rollout: WorkerProcess, server: ServerProcess) -> dict[str, Any]:
    """What may not grow."""
    process = psutil.Process(server.pid)
    used = {"trainer": trainer.call("usage"), "rollout": rollout.call("usage")}
    for usage in used.values():
        del usage["cpu"]
    used["trainer"]["metadata_nbytes"] = trainer.call("state")["metadata_nbytes"]
    used["rollout"] |= rollout.call("nixl")
    used["server"] = {
        "rss": process.memory_info().rss,
        "threads": process.num_threads(),
        "fds": process.num_fds(),
    }
    log = server.database.with_name(server.database.name + "-wal")
    return {**used, "database": server.database.stat().st_size, "log": log.stat().st_size}
