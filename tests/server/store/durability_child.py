"""Writes to a store as fast as it can and says on standard output what was acknowledged. It is killed from outside."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import uuid
from pathlib import Path

from support.stores import MODEL, Fleet, Recorder, digest
from weightcast_server.store.protocol import Caller, Store
from weightcast_server.store.sqlite import SQLiteStore


def acknowledge(**facts: object) -> None:
    os.write(1, (json.dumps(facts) + "\n").encode())


async def publish_forever(store: Store, fleet: Fleet, caller: Caller) -> None:
    for step in range(1_000_000):
        version = await fleet.publish([caller], step, slot=step % 2)
        acknowledge(version=version.version)
        name = digest(uuid.uuid4().hex)
        await store.put_layout(caller, MODEL, name, os.urandom(2000), 1)
        acknowledge(layout=name)


async def pull_forever(fleet: Fleet, caller: Caller) -> None:
    have = 0
    while True:
        assignment = await fleet.assign(caller, have)
        if assignment is None:
            await asyncio.sleep(0.001)
            continue
        pull = assignment.pull
        acknowledge(pull=pull.pull_id, state=pull.state)
        for state in ("fetching", "staged", "applying", "applied"):
            await fleet.move(caller, pull, state)
            acknowledge(pull=pull.pull_id, state=state)
        have = pull.version


async def main() -> None:
    store = SQLiteStore(Path(sys.argv[1]))
    recorder = Recorder()
    await store.start(recorder)
    fleet = Fleet(store)
    run = uuid.uuid4().hex[:8]
    for fact in recorder.take()[0].workers:
        await store.expire([Caller(fact.worker_id, fact.epoch)])
    trainer = await fleet.trainer(run=run)
    acknowledge(worker=trainer.worker_id, epoch=trainer.epoch)
    rollouts = [await fleet.rollout(f"r{index}") for index in range(3)]
    for rollout in rollouts:
        acknowledge(worker=rollout.worker_id, epoch=rollout.epoch)
    await asyncio.gather(
        publish_forever(store, fleet, trainer), *[pull_forever(fleet, rollout) for rollout in rollouts]
    )


if __name__ == "__main__":
    asyncio.run(main())
