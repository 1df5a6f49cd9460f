"""Random lives of a fleet against the real store, compared with a plain model after every step."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import initialize, precondition, rule
from support.store_acts import StoreActs
from support.store_model import NEXT, OPEN
from support.stores import MODEL, digest
from weightcast.contract.problems import Code
from weightcast_server.domain.keys import PullKey, VersionKey
from weightcast_server.store.protocol import StoreRefusal

pick = st.integers(min_value=0, max_value=1000)
mostly = st.sampled_from([True, True, True, True, False])
TRAINERS = [("trainer", 0), ("trainer", 1)]
ROLLOUTS = [("solo", 0), ("pair", 0), ("pair", 1)]


class FleetLife(StoreActs):
    """Every rule does one thing to the store and to the model."""

    @initialize()
    def everyone_registers(self) -> None:
        for kind in TRAINERS + ROLLOUTS:
            self.do_register(kind, 0, True)
        self.run_async(self.store.put_layout(self.callers[0], MODEL, digest("layout"), b"", 800))

    @rule(kind=st.sampled_from(TRAINERS + ROLLOUTS), behind=st.sampled_from([0, 0, 0, 1, 2]), fresh=st.booleans())
    def register(self, kind: tuple[str, int], behind: int, fresh: bool) -> None:
        self.do_register(kind, behind, fresh)

    @rule(memory_slot=st.integers(0, 1), extra=st.integers(0, 1))
    def refit(self, memory_slot: int, extra: int) -> None:
        """What happens on a good day: every rank publishes the next version."""
        self.step += 2
        for rank, kind in enumerate(TRAINERS):
            caller = self.live_caller(kind)
            version = self.do_open(caller, self.step + extra)
            assert version is not None
            self.do_publish(caller, version, memory_slot, rank, right=True)

    @rule(kind=st.sampled_from(ROLLOUTS), reports=st.integers(0, 4))
    def pull_through(self, kind: tuple[str, int], reports: int) -> None:
        """What happens on a good day: a rank pulls and gets on with it."""
        caller = self.live_caller(kind)
        self.do_assign(caller)
        pull = self.world.open_pull(caller.worker_id)
        for state in list(NEXT)[1 : 1 + reports] if pull is not None else ():
            if pull is not None:
                self.do_report(caller, pull, state)

    @rule(choice=pick, current=mostly, goodbye=st.booleans())
    def end(self, choice: int, current: bool, goodbye: bool) -> None:
        caller = self.some_caller(choice, current)
        if goodbye:
            repeated = self.world.fence(caller) is Code.LEASE_EXPIRED
            if repeated:
                self.run_async(self.store.leave(caller))
                return
            passed, _ = self.fenced(caller, self.store.leave(caller))
        else:
            self.run_async(self.store.expire([caller]))
            passed = self.world.fence(caller) is None
        if passed:
            self.world.end_epoch(caller.worker_id)
            self.world.workers[caller.worker_id].live = False

    @rule(choice=pick, current=mostly, step=st.integers(0, 3))
    def open(self, choice: int, current: bool, step: int) -> None:
        caller = self.some_caller(choice, current, "trainer")
        self.do_open(caller, step)

    @precondition(lambda self: self.world.versions)
    @rule(choice=pick, current=mostly, which=pick, right=mostly, memory_slot=st.integers(0, 1), generation=pick)
    def publish(self, choice: int, current: bool, which: int, right: bool, memory_slot: int, generation: int) -> None:
        caller = self.some_caller(choice, current, "trainer")
        staging = [version for version in self.world.versions.values() if version.state == "staging"]
        among = staging if right and staging else list(self.world.versions.values())
        version = among[which % len(among)]
        self.do_publish(caller, version, memory_slot, generation, right)

    @precondition(lambda self: self.world.versions)
    @rule(choice=pick, current=mostly, which=pick, deadline=st.booleans())
    def give_up(self, choice: int, current: bool, which: int, deadline: bool) -> None:
        version = list(self.world.versions.values())[which % len(self.world.versions)]
        if deadline:
            self.run_async(self.store.expire([VersionKey(MODEL, version.version)]))
            self.world.fail_version(version)
            return
        caller = self.some_caller(choice, current, "trainer")
        passed, outcome = self.fenced(caller, self.store.abort_version(caller, MODEL, version.version, "no"))
        if passed and ":trainer:" in caller.worker_id:
            assert isinstance(outcome, StoreRefusal) == (version.state == "ready")
            self.world.fail_version(version)

    @precondition(lambda self: self.world.versions)
    @rule(which=pick, source=st.integers(0, 1), final=st.booleans())
    def drain(self, which: int, source: int, final: bool) -> None:
        version = list(self.world.versions.values())[which % len(self.world.versions)]
        self.do_drain(version, source, final)

    @rule(choice=pick, current=mostly)
    def assign(self, choice: int, current: bool) -> None:
        caller = self.some_caller(choice, current, "rollout")
        self.do_assign(caller)

    @precondition(lambda self: self.world.pulls)
    @rule(choice=pick, which=pick, forward=mostly, state=st.sampled_from(list(NEXT)[1:]))
    def report(self, choice: int, which: int, forward: bool, state: str) -> None:
        pulls = list(self.world.pulls.values())
        going = [pull for pull in pulls if pull.state in OPEN]
        pull = going[which % len(going)] if forward and going else pulls[which % len(pulls)]
        if forward and NEXT[pull.state]:
            ahead = [name for name in NEXT[pull.state] if name != "failed"]
            state = ahead[choice % len(ahead)]
        caller = pull.worker if forward else self.some_caller(choice, False)
        self.do_report(caller, pull, state)

    @precondition(lambda self: self.world.pulls)
    @rule(which=pick)
    def stall(self, which: int) -> None:
        pull = list(self.world.pulls.values())[which % len(self.world.pulls)]
        self.run_async(self.store.expire([PullKey(pull.pull_id)]))
        if pull.state in ("assigned", "fetching"):
            self.world.fail_pull(pull)

    @rule()
    def restart(self) -> None:
        self.run_async(self.store.close())
        self.open_store()
        (changes,) = self.recorder.take()
        known = {(fact.worker_id, fact.epoch, fact.state == "live") for fact in changes.workers}
        assert known == {(w.worker_id, w.epoch, w.live) for w in self.world.workers.values()}
        timed = {timer.key for timer in changes.timers}
        reading = {PullKey(p.pull_id) for p in self.world.pulls.values() if p.state in ("assigned", "fetching")}
        staging = {VersionKey(MODEL, v.version) for v in self.world.versions.values() if v.state == "staging"}
        assert timed == reading | staging


TestFleetLife = pytest.mark.timeout(600)(FleetLife.TestCase)  # reducing a failure to its shortest takes minutes
TestFleetLife.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
