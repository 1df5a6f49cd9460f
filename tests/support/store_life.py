"""The harness of the stateful test: a real store, the model beside it, and what must be equal after every step."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

from hypothesis.stateful import RuleBasedStateMachine, invariant
from support.store_model import READING, World
from support.stores import MODEL, Recorder
from weightcast_server.store.protocol import Caller, Changes, StoreRefusal
from weightcast_server.store.sqlite import SQLiteStore

T = TypeVar("T")


class StoreLife(RuleBasedStateMachine):
    """A store, its model, every caller that ever was, and the invariants that compare them."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.folder = tempfile.TemporaryDirectory()
        self.world = World()
        self.callers: list[Caller] = []
        self.highest = 0
        self.revision = 0
        self.step = 10
        self.target: int | None = None
        self.open_store()

    def open_store(self) -> None:
        self.store = SQLiteStore(Path(self.folder.name) / "weightcast.db")
        self.recorder = Recorder()
        self.run_async(self.store.start(self.recorder))

    def teardown(self) -> None:
        self.run_async(self.store.close())
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()
        self.folder.cleanup()

    def run_async(self, call: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(call)

    def fenced(self, caller: Caller, call: Coroutine[Any, Any, T]) -> tuple[bool, T | StoreRefusal]:
        """Make a call; whether the fence let it through, and what came of it. A fenced call must change nothing."""
        expected = self.world.fence(caller)
        self.recorder.take()
        try:
            outcome: T | StoreRefusal = self.run_async(call)
        except StoreRefusal as refusal:
            outcome = refusal
        if expected is None:
            return True, outcome
        assert isinstance(outcome, StoreRefusal)
        assert outcome.code is expected
        assert all(changes == Changes() for changes in self.recorder.take())
        return False, outcome

    def some_caller(self, choice: int, current: bool, role: str | None = None) -> Caller:
        """Any caller that ever was; a live one of the role, if wanted and there is one."""
        live = [c for c in self.callers if self.world.fence(c) is None and (role is None or f":{role}:" in c.worker_id)]
        among = live if current and live else self.callers
        return among[choice % len(among)]

    @invariant()
    def versions_are_as_modelled(self) -> None:
        if not self.callers:
            return
        page = self.run_async(self.store.list_versions(MODEL, state=None, cursor=None, limit=200))
        shown = {v.version: (v.state, v.available, {h.worker_id: h.state for h in v.holdings}) for v in page.items}
        modelled = self.world.versions.values()
        assert shown == {v.version: (v.state, v.available(), v.holdings) for v in modelled}
        for version in page.items:
            assert (len(version.published) == version.world_size) or version.state != "ready"
            for holding in version.holdings:
                holder = self.world.workers[holding.worker_id]
                assert holder.live
                assert holder.epoch == holding.epoch
                assert holding.readers == self.world.readers(version.version, holding.worker_id)

    @invariant()
    def the_target_can_be_had(self) -> None:
        if not self.callers:
            return
        target = self.run_async(self.store.get_target(MODEL))
        assert target.version == self.world.target()
        assert target.revision >= self.revision
        assert target.revision > self.revision or target.version == self.target
        self.revision, self.target = target.revision, target.version

    @invariant()
    def workers_and_pulls_are_as_modelled(self) -> None:
        if not self.callers:
            return
        workers = self.run_async(self.store.list_workers(model=MODEL, role=None, state=None, cursor=None, limit=99))
        assert {w.worker_id: (w.epoch, w.state == "live", w.serving_version, w.tainted) for w in workers.items} == {
            w.worker_id: (w.epoch, w.live, w.serving, w.tainted) for w in self.world.workers.values()
        }
        filters: dict[str, Any] = {"state": None, "version": None, "worker_id": None}
        pulls = self.run_async(self.store.list_pulls(MODEL, **filters, cursor=None, limit=500))
        assert {p.pull_id: p.state for p in pulls.items} == {p.pull_id: p.state for p in self.world.pulls.values()}
        first_readers = dict.fromkeys(self.world.workers, 0)
        for pull in pulls.items:
            for source in pull.sources if pull.state in READING else ():
                first_readers[source] += 1
        rows = self.store._database.db.execute("SELECT worker_id, readers FROM workers").fetchall()
        assert {row["worker_id"]: row["readers"] for row in rows} == first_readers
