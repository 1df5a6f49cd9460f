"""Trainer and Rollout in one process against a real server: what goes wrong between two calls."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from weightcast import Hooks, Rollout, Trainer, WorkerSettings
from weightcast.client import ControlPlane
from weightcast.contract.layout import LayoutError
from weightcast.contract.names import VersionFailure, VersionState
from weightcast.errors import InvalidArgument, PullSuperseded, ServerUnavailable, Tainted, VersionFailed


def weights(value: float) -> dict[str, torch.Tensor]:
    return {"a": torch.full((64, 64), float(value)), "b": torch.full((8,), float(value))}


@pytest.fixture
def control(worker_settings: WorkerSettings) -> Any:
    with worker_settings.control_plane() as client:
        yield client


def lose_answer_once(monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    """The call reaches the server, its answer does not come back."""
    original: Callable[..., Any] = getattr(ControlPlane, method)
    lost = threading.Event()

    def call(self: ControlPlane, *arguments: Any, **options: Any) -> Any:
        answer = original(self, *arguments, **options)
        if not lost.is_set():
            lost.set()
            raise ServerUnavailable("the answer was lost")
        return answer

    monkeypatch.setattr(ControlPlane, method, call)


def test_a_publish_whose_answer_was_lost_is_the_same_version_again(
    worker_settings: WorkerSettings, model: str, monkeypatch: pytest.MonkeyPatch, control: ControlPlane
) -> None:
    with Trainer(lambda: weights(1), run="run", model=model, settings=worker_settings) as trainer:
        lose_answer_once(monkeypatch, "publish_shard")
        with pytest.raises(ServerUnavailable):
            trainer.publish(step=1)
        assert trainer.publish(step=1).version == 1
        assert [version.version for version in control.versions(model).items] == [1]
        assert trainer.publish(step=1).version == 2, "a step that was published may be published anew"


def test_a_step_begun_anew_is_never_made_of_two_tries(
    worker_settings: WorkerSettings, model: str, control: ControlPlane
) -> None:
    def make(rank: int) -> Trainer:
        shard = {f"w{rank}": torch.ones(4)}
        return Trainer(shard, run="run", model=model, rank=rank, world_size=2, shards=2, settings=worker_settings)

    with make(0) as first, make(1) as second:
        assert first.publish(step=5).version == 1
        assert first.publish(step=5).version == 2, "rank 0 went back and came again, rank 1 had not published"
        aborted = control.version(model, 1)
        assert (aborted.state, aborted.failure) == (VersionState.FAILED, VersionFailure.ABORTED)
        with pytest.raises(VersionFailed) as told:
            second.publish(step=5)
        assert told.value.version == 1
        published = second.publish(step=5)
        assert published.version == 2
        assert published.wait_ready(5).available


def test_failed_versions_do_not_cost_the_last_good_one(
    worker_settings: WorkerSettings, model: str, control: ControlPlane
) -> None:
    values = [1.0, 1.0]

    def make(rank: int) -> Trainer:
        return Trainer(
            lambda: weights(values[rank]), run="run", model=model, rank=rank, world_size=2, settings=worker_settings
        )

    with make(0) as first, make(1) as second:
        good = first.publish(step=1).version
        second.publish(step=1)
        for step in range(2, 5):
            values[:] = [step, -step]
            handle = first.publish(step=step)
            with pytest.raises(VersionFailed) as failed:
                second.publish(step=step)
            assert failed.value.failure is VersionFailure.REPLICA_DIGEST_MISMATCH
            with pytest.raises(VersionFailed):
                handle.wait_ready(5)
            target = control.target(model)
            assert target.version == good
        values[:] = [9.0, 9.0]
        first.publish(step=9)
        assert second.publish(step=9).wait_ready(5).available


def expire(rollout: Rollout, control: ControlPlane) -> None:
    """End the rollout's epoch at the server and let its session find out."""
    session = rollout._session
    before = session.identity
    control.leave(before)
    session.call(control.heartbeat)
    assert session.identity.epoch == before.epoch + 1


def test_a_permit_ends_with_the_epoch_it_was_given_in(
    worker_settings: WorkerSettings, model: str, control: ControlPlane
) -> None:
    live = weights(0)
    with (
        Trainer(lambda: weights(1), run="run", model=model, settings=worker_settings) as trainer,
        Rollout(live, replica="r0", model=model, settings=worker_settings) as rollout,
    ):
        trainer.publish(step=1)
        update = rollout.stage(10)
        assert update is not None
        update.request_permit()
        expire(rollout, control)
        with pytest.raises(PullSuperseded, match="registered again"):
            update.apply()
        assert not live["a"].any(), "nothing was touched"
        again = rollout.stage(10)
        assert again is not None
        again.apply()
        assert rollout.check_servable() == 1


def test_taint_and_success_are_told_also_when_the_epoch_ended_meanwhile(
    worker_settings: WorkerSettings, model: str, control: ControlPlane
) -> None:
    actions: list[Callable[[], None]] = []
    hooks = Hooks(after_load=lambda: [action() for action in actions])

    def fail() -> None:
        raise RuntimeError("post-load processing failed")

    with (
        Trainer(lambda: weights(1), run="run", model=model, settings=worker_settings) as trainer,
        Rollout(weights(0), replica="r0", model=model, hooks=hooks, settings=worker_settings) as rollout,
    ):
        trainer.publish(step=1)
        actions[:] = [lambda: expire(rollout, control), fail]
        update = rollout.stage(10)
        assert update is not None
        with pytest.raises(Tainted):
            update.apply()
        (replica,) = control.replicas(model).items
        assert (replica.tainted, replica.servable) == (True, False)
        actions[:] = [lambda: expire(rollout, control)]
        update = rollout.stage(10)
        assert update is not None
        update.apply()
        (replica,) = control.replicas(model).items
        assert (replica.tainted, replica.servable, replica.serving_version) == (False, True, 1)


def test_copies_are_no_live_weights(worker_settings: WorkerSettings, model: str) -> None:
    with pytest.raises(LayoutError, match="is a copy"):
        Rollout(lambda: weights(0), replica="r0", model=model, settings=worker_settings)


def test_senseless_arguments_are_refused(worker_settings: WorkerSettings, model: str) -> None:
    for options in ({"slots": 0}, {"bucket_nbytes": 0}, {"shards": 0}, {"drain_timeout": float("nan")}):
        with pytest.raises(InvalidArgument):
            Trainer(weights(1), run="run", model=model, settings=worker_settings, **options)


def test_closing_ends_a_parked_stage(worker_settings: WorkerSettings, model: str) -> None:
    rollout = Rollout(weights(0), replica="r0", model=model, settings=worker_settings)
    ended = threading.Event()

    def follow() -> None:
        rollout.follow()
        ended.set()

    thread = threading.Thread(target=follow)
    thread.start()
    time.sleep(0.3)
    rollout.close()
    thread.join(10)
    assert ended.is_set()
