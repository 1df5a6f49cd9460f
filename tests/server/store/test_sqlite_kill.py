"""kill -9 at any moment: whatever was acknowledged is there afterwards."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.stores import MODEL, Recorder
from weightcast.contract.names import VersionState
from weightcast_server.store.sqlite import SQLiteStore

pytestmark = pytest.mark.anyio

STATES = ["assigned", "fetching", "staged", "applying", "applied"]


def start_child(path: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("durability_child.py")), str(path)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )


async def live_until_killed(path: Path, seconds: float) -> list[dict[str, Any]]:
    """Run the child, kill it some time after its first acknowledgement; everything it acknowledged."""
    child = start_child(path)
    assert child.stdout is not None
    try:
        first = await asyncio.wait_for(asyncio.to_thread(child.stdout.readline), 60)
        killer = asyncio.get_running_loop().call_later(seconds, child.send_signal, signal.SIGKILL)
        rest = await asyncio.wait_for(asyncio.to_thread(child.stdout.read), 60)
        killer.cancel()
    finally:
        child.kill()
        child.stdout.close()
        assert child.wait(30) == -signal.SIGKILL
    return [json.loads(line) for line in (first + rest).splitlines() if line.endswith(b"}")]


async def test_whatever_was_acknowledged_survives_kill_9(tmp_path: Path) -> None:
    path = tmp_path / "weightcast.db"
    chance = random.Random(os.urandom(8))
    epochs: dict[str, int] = {}
    for _ in range(4):
        acknowledged = await live_until_killed(path, chance.uniform(0.0, 0.5))
        store = SQLiteStore(path)
        await store.start(Recorder())
        for fact in acknowledged:
            if "version" in fact:
                assert (await store.get_version(MODEL, fact["version"])).state is VersionState.READY
            elif "layout" in fact:
                assert len(await store.get_layout(MODEL, fact["layout"])) == 2000
            elif "pull" in fact:
                kept = (await store.get_pull(fact["pull"])).state
                assert STATES.index(kept) >= STATES.index(fact["state"])
            else:
                worker = await store.get_worker(fact["worker"])
                assert worker.epoch >= fact["epoch"] > epochs.get(fact["worker"], 0)
                epochs[fact["worker"]] = worker.epoch
        await store.close()
    with sqlite3.connect(path) as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert db.execute("PRAGMA foreign_key_check").fetchall() == []
    db.close()
