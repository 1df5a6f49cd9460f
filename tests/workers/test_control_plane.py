"""Every call of the client against the real server."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.puppets import LAYOUT, PuppetRollout, PuppetTrainer
from support.server import ServerProcess
from weightcast.client import ControlPlane, Identity
from weightcast.contract.layout import layout_digest
from weightcast.contract.names import HoldingState, PullState, Role, VersionFailure, VersionState, WorkerState
from weightcast.errors import NotFound, PullConflict, RequestRefused, Unauthorized, UnknownWorker, VersionConflict


@pytest.fixture
def control(server: ServerProcess) -> Iterator[ControlPlane]:
    with ControlPlane(server.url) as client:
        yield client


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("server"), lease_seconds=60) as running:
        yield running


def test_one_refit_through_every_call(control: ControlPlane) -> None:
    trainer, rollout = PuppetTrainer(control, "refit"), PuppetRollout(control, "r0", "refit")
    trainer.move()
    before = control.target("refit")
    assert before.version is None
    version = trainer.publish(step=10)
    assert (version.state, version.available) == (VersionState.READY, True)
    target = control.target("refit", revision=before.revision, wait=5)
    assert (target.version, target.step) == (version.version, 10)
    pull = rollout.pull()
    assert pull.state is PullState.APPLIED
    applied = control.version("refit", version.version, wait_for="applied", wait=5)
    assert applied.applied == ["r0"]
    assert [holding.state for holding in applied.holdings] == [HoldingState.HELD]
    assert control.drain(trainer.me, "refit", version.version, wait=5).drained
    assert not control.version("refit", version.version).available

    assert control.get_layout("refit", layout_digest(LAYOUT)) == LAYOUT
    assert control.pull(pull.pull_id) == pull
    assert control.pulls("refit", state=PullState.APPLIED, version=version.version).items == [pull]
    assert [found.version for found in control.versions("refit", state=VersionState.READY).items] == [version.version]
    assert [found.model for found in control.models().items] == ["refit"]
    replica = control.replicas("refit").items[0]
    assert (replica.servable, replica.serving_version, replica.pause_seconds) == (True, version.version, 0.02)
    workers = control.workers("refit", role=Role.ROLLOUT, state=WorkerState.LIVE).items
    assert workers == [control.worker(rollout.me.worker_id).model_copy(update=_age(workers[0].heartbeat_age_seconds))]
    rollout.leave()
    assert control.worker(rollout.me.worker_id).state is WorkerState.LEFT


def _age(seconds: float | None) -> dict[str, float | None]:
    return {"heartbeat_age_seconds": seconds}


def test_a_parked_pull_wakes_when_a_version_is_ready(control: ControlPlane) -> None:
    trainer, rollout = PuppetTrainer(control, "parked"), PuppetRollout(control, "r0", "parked")
    assert rollout.ask(wait=0.05) is None
    got: list[float] = []

    def ask() -> None:
        assert rollout.ask(wait=10) is not None
        got.append(time.monotonic())

    thread = threading.Thread(target=ask)
    thread.start()
    time.sleep(0.3)
    asked = time.monotonic()
    trainer.publish(step=1)
    thread.join(5)
    assert got[0] - asked < 1.0


def test_aborting(control: ControlPlane) -> None:
    trainer = PuppetTrainer(control, "aborted")
    opened = trainer.open(step=1)
    failed = control.abort_version(trainer.me, "aborted", opened.version, "changed my mind")
    assert (failed.state, failed.failure) == (VersionState.FAILED, VersionFailure.ABORTED)
    ready = trainer.publish(step=2)
    with pytest.raises(VersionConflict):
        control.abort_version(trainer.me, "aborted", ready.version)


def test_refusals_have_their_class(control: ControlPlane) -> None:
    trainer, rollout = PuppetTrainer(control, "refused"), PuppetRollout(control, "r0", "refused")
    trainer.publish(step=1)
    assignment = rollout.ask()
    assert assignment is not None
    with pytest.raises(PullConflict, match="applied"):
        rollout.tell(assignment.pull.pull_id, "applied")
    with pytest.raises(NotFound, match="nowhere"):
        control.target("nowhere")
    with pytest.raises(NotFound):
        control.version("refused", 999)
    with pytest.raises(NotFound):
        control.get_layout("refused", "0" * 64)
    with pytest.raises(UnknownWorker):
        control.heartbeat(Identity("refused:trainer:7", 1))
    with pytest.raises(RequestRefused, match="limit"):
        control.models(limit=0)


def test_lists_have_pages(control: ControlPlane) -> None:
    trainer = PuppetTrainer(control, "paged")
    numbers = [trainer.open(step).version for step in range(5)]
    found: list[int] = []
    cursor: str | None = None
    while True:
        page = control.versions("paged", limit=2, cursor=cursor)
        found += [version.version for version in page.items]
        cursor = page.next_cursor
        if cursor is None:
            break
    assert found == numbers[::-1]


def test_tokens_and_roles(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, trainer_tokens="t0ken", viewer_tokens="v1ew") as server:
        for token in (None, "wrong"):
            with ControlPlane(server.url, token) as nobody, pytest.raises(Unauthorized, match="GET /v1/models"):
                nobody.models()
        with ControlPlane(server.url, "v1ew") as viewer:
            assert viewer.models().items == []
            with pytest.raises(Unauthorized) as caught:
                PuppetTrainer(viewer)
            assert caught.value.code == "forbidden"
        with ControlPlane(server.url, "t0ken") as control:
            assert PuppetTrainer(control).publish(step=1).state is VersionState.READY
