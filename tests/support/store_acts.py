"""What the stateful test does to the store and its model, one act at a time, with the outcomes compared."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from support.store_life import StoreLife
from support.store_model import NEXT, READING, WORLD, Content, ModelPull, ModelVersion, ModelWorker
from support.stores import MODEL, RUN, rollout_body, shard_body, trainer_body
from weightcast.contract.names import Role
from weightcast.contract.problems import Code
from weightcast.contract.pulls import RequestPull, UpdatePull
from weightcast.contract.versions import OpenVersion
from weightcast.contract.workers import RegisterWorker, worker_id
from weightcast_server.store.protocol import Caller, StoreRefusal


class StoreActs(StoreLife):
    """Acts of workers. A kind is a replica's name, or ``trainer``, and a rank."""

    def live_caller(self, kind: tuple[str, int]) -> Caller:
        """The process of a rank, started when there is none."""
        name, rank = kind
        key = worker_id(MODEL, Role.TRAINER, rank) if name == "trainer" else worker_id(MODEL, Role.ROLLOUT, rank, name)
        worker = self.world.workers[key]
        if not worker.live:
            self.do_register(kind, 0, True)
        return Caller(key, self.world.workers[key].epoch)

    def do_register(self, kind: tuple[str, int], behind: int, fresh: bool) -> None:
        """Register a fresh process, or the one that was there before, which remembers an epoch ``behind`` its own."""
        name, rank = kind
        key = worker_id(MODEL, Role.TRAINER, rank) if name == "trainer" else worker_id(MODEL, Role.ROLLOUT, rank, name)
        old = self.world.workers.get(key)
        incarnation = uuid.uuid4().hex if fresh or old is None else old.incarnation
        previous = max(0, old.epoch - behind) if old is not None and not fresh else behind
        fields: dict[str, Any] = {"incarnation": incarnation, "previous_epoch": previous}
        body: RegisterWorker = (
            trainer_body(rank, 2, **fields) if name == "trainer" else rollout_body(name, rank, WORLD[name], **fields)
        )
        if old is not None and fresh and 0 < previous < old.epoch:
            with pytest.raises(StoreRefusal) as refused:
                self.run_async(self.store.register_worker(body))
            assert refused.value.code is Code.STALE_EPOCH, "a replaced process may not come back"
            return
        outcome = self.run_async(self.store.register_worker(body))
        if old is not None and old.live and not fresh and previous <= old.epoch:
            assert (outcome.epoch, outcome.replayed) == (old.epoch, True)
            old.serving, old.tainted = None, False
            return
        assert outcome.epoch == max(old.epoch if old is not None else 0, previous) + 1
        if old is not None:
            self.world.end_epoch(key)
        replica = None if name == "trainer" else name
        self.world.workers[key] = ModelWorker(key, outcome.epoch, incarnation, rank=rank, replica=replica)
        self.callers.append(Caller(key, outcome.epoch))

    def do_open(self, caller: Caller, step: int) -> ModelVersion | None:
        """Open the version of a step."""
        body = OpenVersion(run=RUN, step=step, world_size=2, shards=1 + step % 2)
        passed, outcome = self.fenced(caller, self.store.open_version(caller, MODEL, body))
        if not passed or isinstance(outcome, StoreRefusal):
            assert not passed or ":rollout:" in caller.worker_id
            return None
        if outcome.created:
            assert outcome.version > self.highest, "version numbers only grow"
            self.highest = outcome.version
            self.world.versions[outcome.version] = ModelVersion(outcome.version, body.shards)
        assert outcome.state == self.world.versions[outcome.version].state
        return self.world.versions[outcome.version]

    def do_publish(self, caller: Caller, version: ModelVersion, memory_slot: int, generation: int, right: bool) -> None:
        """Publish the caller's slot, with the same bytes as the other slots of its shard or with others."""
        worker = self.world.workers[caller.worker_id]
        shard = worker.rank % version.shards
        seed = f"{version.version}/{shard}" + ("" if right else f"/{worker.rank}")
        body = shard_body(seed, shard=shard, memory_slot=memory_slot, slot_generation=generation % 2)
        content = Content(shard, seed, caller, memory_slot, generation % 2)
        call = self.store.publish_shard(caller, MODEL, version.version, worker.rank, body)
        passed, outcome = self.fenced(caller, call)
        if not passed or worker.replica is not None:
            assert isinstance(outcome, StoreRefusal)
            return
        before = version.published.get(worker.rank)
        if before == content and version.state != "failed":
            assert not isinstance(outcome, StoreRefusal)
            assert outcome.replayed
            return
        unchanged = before is not None and (before.shard, before.seed) == (shard, seed)
        if version.state == "ready" and before is not None and unchanged and caller.epoch > before.caller.epoch:
            assert not isinstance(outcome, StoreRefusal)
            assert not outcome.replayed
            self.world.overwrite(caller.worker_id, memory_slot)
            version.published[worker.rank] = content
            version.holdings[caller.worker_id] = "held"
            return
        if version.state != "staging" or before is not None:
            assert isinstance(outcome, StoreRefusal)
            assert outcome.code is (Code.SHARD_CONFLICT if version.state == "staging" else Code.VERSION_STATE)
            return
        self.world.overwrite(caller.worker_id, memory_slot)
        if any(other.shard == shard and other.seed != seed for other in version.published.values()):
            assert isinstance(outcome, StoreRefusal)
            assert outcome.code is Code.VERSION_STATE
            self.world.fail_version(version)
            return
        version.published[worker.rank] = content
        version.holdings[caller.worker_id] = "held"
        if len(version.published) == version.world:
            version.state = "ready"
        assert not isinstance(outcome, StoreRefusal)
        assert outcome.state == version.state

    def do_drain(self, version: ModelVersion, source: int, final: bool) -> None:
        """Drain a trainer's holding as an operator."""
        name = worker_id(MODEL, Role.TRAINER, source)
        drained = self.run_async(self.store.drain_holding(None, MODEL, version.version, name, final=final))
        if name not in version.holdings:
            assert drained is not None
            assert drained.drained
            return
        readers = self.world.readers(version.version, name)
        if final or not readers:
            assert drained is not None
            assert (drained.drained, drained.readers) == (readers == 0, readers)
            del version.holdings[name]
        else:
            assert drained is None
            version.holdings[name] = "draining"

    def do_assign(self, caller: Caller) -> None:
        """Ask for the next assignment."""
        worker = self.world.workers[caller.worker_id]
        have = worker.serving or 0
        passed, outcome = self.fenced(caller, self.store.assign_pull(caller, MODEL, RequestPull(have_version=have)))
        if not passed or worker.replica is None:
            assert isinstance(outcome, StoreRefusal)
            return
        assert not isinstance(outcome, StoreRefusal)
        expected = self.world.expected_assignment(worker, have)
        assert (outcome.pull.version if outcome is not None else None) == expected
        current_pull = self.world.open_pull(caller.worker_id)
        if outcome is not None:
            sources = {source.worker_id for shard in outcome.shards for source in shard.sources}
            held = self.world.versions[outcome.pull.version].holdings
            assert all(shard.sources for shard in outcome.shards)
            assert all(held[source] == "held" for source in sources)
            assert caller.worker_id not in sources
            if (
                current_pull is not None
                and (current_pull.state, current_pull.version) == ("assigned", expected)
                and all(held.get(source) == "held" for source in current_pull.sources)
            ):
                assert current_pull.pull_id == outcome.pull.pull_id
                return
            assert outcome.pull.pull_id not in self.world.pulls
        if current_pull is not None and (outcome is not None or current_pull.state in READING):
            self.world.fail_pull(current_pull)
        if outcome is not None:
            self.world.assigned(caller, outcome)

    def do_report(self, caller: Caller, pull: ModelPull, state: str) -> None:
        """Report a state of a pull."""
        body = UpdatePull.model_validate({"state": state, **({"failure": "internal"} if state == "failed" else {})})
        passed, outcome = self.fenced(caller, self.store.update_pull(caller, pull.pull_id, body))
        if not passed:
            return
        if caller.worker_id != pull.worker.worker_id:
            assert isinstance(outcome, StoreRefusal)
            assert outcome.code is Code.FORBIDDEN
            return
        worker = self.world.workers[caller.worker_id]
        if state != pull.state and state not in NEXT[pull.state]:
            assert isinstance(outcome, StoreRefusal)
            assert outcome.code in (Code.PULL_STATE, Code.PULL_SUPERSEDED)
            return
        permit = self.world.permit(worker, pull.version) if (pull.state, state) == ("staged", "applying") else "granted"
        if permit == "superseded":
            assert isinstance(outcome, StoreRefusal)
            assert outcome.code is Code.PULL_SUPERSEDED
            self.world.fail_pull(pull)
            return
        assert not isinstance(outcome, StoreRefusal)
        assert outcome.granted == (permit == "granted")
        if permit == "wait" or state == pull.state:
            return
        if state == "failed":
            self.world.fail_pull(pull)
        elif state == "applied":
            worker.serving, worker.tainted = pull.version, False
        pull.state = state
