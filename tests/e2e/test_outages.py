"""The server goes away and comes back: what is served stays, what was acknowledged is still true."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.fleet import Fleet, Pool
from support.server import ServerProcess
from support.workers import ChildError, until


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    """A server that this test may hurt."""
    with ServerProcess(tmp_path, lease_seconds=10.0) as running:
        yield running


@pytest.fixture
def workers(pool: Pool, server: ServerProcess) -> Iterator[Fleet]:
    """Workers at it."""
    with Fleet(pool, server.url) as fleet:
        yield fleet


def test_restarts_between_refits_change_no_identity(workers: Fleet, server: ServerProcess) -> None:
    trainer, rollout = workers.trainer(), workers.rollout()
    for step in range(1, 4):
        version = workers.publish(trainer, step=step, seed=step)
        server.restart()
        workers.refit(rollout, version)
        server.stop()
        server.start()
        assert workers.replica().serving_version == version
    assert (trainer.call("identity")[1], rollout.call("identity")[1]) == (1, 1)


def test_followers_serve_on_while_the_server_is_away_and_catch_up(workers: Fleet, server: ServerProcess) -> None:
    trainer, rollouts = workers.trainer(call_seconds=3), [workers.rollout(replica=name) for name in ("r0", "r1")]
    for rollout in rollouts:
        rollout.call("follow")
    old = workers.publish(trainer, step=1, seed=1)
    workers.settled(old, *rollouts)

    server.kill()
    trainer.begin("publish", step=2, seed=2)
    with pytest.raises(ChildError) as told:
        trainer.finish()
    assert told.value.error == "ServerUnavailable"
    for rollout in rollouts:
        state = rollout.call("state")
        assert (state["serving"], state["sha256"], state["following"]) == (old, workers.published[old], True)

    server.start()
    newest = workers.publish(trainer, step=2, seed=2)
    workers.settled(newest, *rollouts)


def test_applied_while_the_server_is_away_is_reported_later(workers: Fleet, server: ServerProcess) -> None:
    trainer, rollout = workers.trainer(), workers.rollout(call_seconds=3)
    version = workers.publish(trainer, step=1, seed=1)
    rollout.call("hold_load")
    rollout.begin("refit")
    until("in the middle of applying", lambda: rollout.call("held"))
    server.kill()
    rollout.call("release")
    assert rollout.finish(timeout=40)["sha256"] == workers.published[version], "applying does not need the server"
    server.start()
    assert rollout.call("stage", timeout=0.2) is None
    assert (workers.replica().serving_version, workers.replica().tainted) == (version, False)
