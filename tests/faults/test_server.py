"""A server that is killed, stopped, or loses its database in the middle of a refit."""

from __future__ import annotations

import signal
from functools import partial

from support.fleet import Fleet
from support.server import ServerProcess
from support.workers import until

BUCKET = 65536


def test_killed_while_weights_are_read_the_same_pull_goes_on(fleet: Fleet, server: ServerProcess) -> None:
    trainer = fleet.trainer(bucket_nbytes=BUCKET)
    reader = fleet.rollout(request_nbytes=BUCKET).ready()
    version = fleet.publish(trainer, step=1, seed=1)
    reader.call("hold")
    reader.begin("refit")
    until("a reader in the middle", partial(reader.call, "held"))
    server.kill()
    reader.call("release")
    server.start()
    found = reader.finish()
    assert (found["version"], found["sha256"]) == (version, fleet.published[version])
    assert [pull.state for pull in fleet.pulls()] == ["applied"]
    assert (trainer.call("identity")[1], reader.call("identity")[1]) == (1, 1)


def test_killed_between_permit_and_applied(fleet: Fleet, server: ServerProcess) -> None:
    trainer, reader = fleet.trainer(), fleet.rollout().ready()
    version = fleet.publish(trainer, step=1, seed=1)
    reader.call("hold_load")
    reader.begin("refit")
    until("in the middle of applying", partial(reader.call, "held"))
    server.kill()
    reader.call("release")
    server.start()
    assert reader.finish()["sha256"] == fleet.published[version]
    assert (fleet.replica().servable, fleet.replica().serving_version) == (True, version)
    assert [pull.state for pull in fleet.pulls()] == ["applied"]


def test_killed_while_a_version_is_published_the_call_survives(fleet: Fleet, server: ServerProcess) -> None:
    trainer, reader = fleet.trainer(), fleet.rollout()
    reader.call("follow")
    fleet.settled(fleet.publish(trainer, step=1, seed=1), reader)
    trainer.call("hold")
    trainer.begin("publish", step=2, seed=2)
    until("in the middle of publishing", partial(trainer.call, "held"))
    server.kill()
    trainer.call("release")
    server.start()
    found = trainer.finish()
    fleet.published[found["version"]] = found["sha256"]
    fleet.settled(found["version"], reader)


def test_stopped_longer_than_every_lease_nobody_is_lost(fleet: Fleet, server: ServerProcess) -> None:
    trainer, reader = fleet.trainer(bucket_nbytes=BUCKET), fleet.rollout(request_nbytes=BUCKET)
    old = fleet.publish(trainer, step=1, seed=1)
    fleet.refit(reader, old)
    version = fleet.publish(trainer, step=2, seed=2)
    reader.call("hold")
    reader.begin("refit")
    until("a reader in the middle", partial(reader.call, "held"))
    server.signal(signal.SIGSTOP)
    # The clock is what is tested here: three leases pass.
    trainer.call("spin", seconds=6, threads=1)
    server.signal(signal.SIGCONT)
    reader.call("release")
    found = reader.finish()
    assert (found["version"], found["sha256"]) == (version, fleet.published[version])
    assert (trainer.call("identity")[1], reader.call("identity")[1]) == (1, 1)
    fleet.refit(reader, fleet.publish(trainer, step=3, seed=3))


def test_database_lost_with_the_server_numbers_go_on_above(fleet: Fleet, server: ServerProcess) -> None:
    trainer, reader = fleet.trainer(), fleet.rollout()
    reader.call("follow")
    for step in range(1, 4):
        old = fleet.publish(trainer, step=step, seed=step)
    fleet.settled(old, reader)
    server.kill()
    forget(server)
    server.start()
    until("all have registered again", lambda: len(fleet.control.workers("policy").items) == 2)
    newest = fleet.publish(trainer, step=4, seed=4)
    assert newest > old
    fleet.settled(newest, reader)


def test_database_deleted_under_a_running_server(fleet: Fleet, server: ServerProcess) -> None:
    trainer, reader = fleet.trainer(), fleet.rollout()
    reader.call("follow")
    for step in range(1, 4):
        old = fleet.publish(trainer, step=step, seed=step)
    fleet.settled(old, reader)
    forget(server)
    newest = fleet.publish(trainer, step=4, seed=4)
    assert newest > old
    fleet.settled(newest, reader)
    assert server.running
    server.restart()
    fleet.settled(fleet.publish(trainer, step=5, seed=5), reader)


def test_database_lost_in_the_middle_of_a_fetch(fleet: Fleet, server: ServerProcess) -> None:
    trainer, reader = fleet.trainer(bucket_nbytes=BUCKET), fleet.rollout(request_nbytes=BUCKET)
    old = fleet.publish(trainer, step=1, seed=1)
    fleet.refit(reader, old)
    lost = fleet.publish(trainer, step=2, seed=2)
    reader.call("hold")
    reader.begin("refit", timeout=5)
    until("a reader in the middle", partial(reader.call, "held"))
    server.kill()
    forget(server)
    server.start()
    reader.call("release")
    assert reader.finish() is None, "nobody knows of the version any more"
    state = reader.call("state")
    assert (state["serving"], state["sha256"]) == (old, fleet.published[old])
    newest = fleet.publish(trainer, step=3, seed=3)
    assert newest > lost
    fleet.refit(reader, newest)
    assert fleet.replica().servable


def forget(server: ServerProcess) -> None:
    """Delete the database with its log."""
    for suffix in ("", "-wal", "-shm"):
        server.database.with_name(server.database.name + suffix).unlink(missing_ok=True)
