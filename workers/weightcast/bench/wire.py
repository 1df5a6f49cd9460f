"""`weightcast bench wire`: how close a refit comes to one raw READ of the same bytes.

A server, a trainer process and this process as the rollout, on one machine. Every repetition changes the weights,
publishes, stages, applies, and then reads the very same slot with one raw NIXL READ and with process_vm_readv.
"""

from __future__ import annotations

import os
import platform
import statistics
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Final, Self, TypeVar

import msgspec
import torch
import xxhash

from weightcast.bench.baselines import RawReads
from weightcast.bench.processes import BenchmarkError, Peer, control_plane, requests
from weightcast.rollout import Rollout
from weightcast.settings import WorkerSettings
from weightcast.trainer import Trainer
from weightcast.update import Update

GIGA: Final = 1e9
_STAGE_SECONDS: Final = 120.0
_SMALL_NBYTES: Final = 2**20
_SMALL_TENSORS: Final = 20

T = TypeVar("T")
Progress = Callable[[str, int, int], None]


class WireResult(msgspec.Struct, frozen=True):
    """Medians over the repetitions. Rates are in 10^9 bytes a second.

    Attributes:
        publish_gbps: the trainer's call of ``publish``: copy into the arena, digests, and the calls to the server.
        engine_gbps: from READY at the server to staged and verified in the rollout, digests on.
        raw_nixl_gbps: one raw NIXL READ of the same bytes.
        cma_gbps: process_vm_readv of the same bytes; null where it is not permitted.
        copy_gbps: one-thread memcpy.
        ratio: engine / raw NIXL.
        raw_ratio: raw NIXL / process_vm_readv: whether the baseline is a fair one.
        apply_gbps: copy from the staging arena into the live weights.
        small_ms: 1 MiB of weights, from the call of ``publish`` to applied, milliseconds.
        idle_cpu_percent: CPU of this process, registered and waiting for a version, in percent of a core.
    """

    nbytes: int
    tensors: int
    repetitions: int
    transport: str
    publish_gbps: float
    engine_gbps: float
    raw_nixl_gbps: float
    cma_gbps: float | None
    copy_gbps: float
    ratio: float
    raw_ratio: float | None
    apply_gbps: float
    small_ms: float
    idle_cpu_percent: float
    engine_gbps_all: list[float]
    raw_nixl_gbps_all: list[float]
    small_ms_all: list[float]
    machine: str


def run_wire(
    *, mib: int, tensors: int, repetitions: int, small_repetitions: int, idle_seconds: float, progress: Progress
) -> WireResult:
    """Run the benchmark; see the module.

    Raises:
        BenchmarkError: it could not run, or the bytes that arrived were not those that were sent.
    """
    torch.set_num_threads(1)
    with control_plane() as url:
        settings = WorkerSettings(server_url=url, log_level="warning")
        with _Pair(settings, "bench-small", _SMALL_NBYTES, _SMALL_TENSORS) as pair:
            small = [
                _counted(pair.small_seconds, progress, "1 MiB refits", done, small_repetitions)
                for done in range(small_repetitions + 1)
            ][1:]
        with _Pair(settings, "bench-large", mib * 2**20, tensors) as pair:
            with pair.baselines() as raw:
                refits = [
                    _counted(lambda: pair.refit(raw), progress, f"{mib} MiB refits", done, repetitions)
                    for done in range(repetitions + 1)
                ][1:]
            idle = pair.idle_cpu_percent(idle_seconds)
            return _result(pair, refits, small, idle)


@dataclass(frozen=True, slots=True)
class _Refit:
    """Seconds of one refit and of the baselines on the same bytes."""

    publish: float
    engine: float
    apply: float
    nixl: float
    cma: float | None
    copy: float
    transport: str


class _Pair:
    """A trainer process and this process as its only rollout."""

    def __init__(self, settings: WorkerSettings, model: str, nbytes: int, tensors: int) -> None:
        self._settings, self._model = settings, model
        self._weights = make_weights(nbytes, tensors)
        self.tensors = len(self._weights)
        self.nbytes = sum(tensor.numel() * tensor.element_size() for tensor in self._weights.values())
        self._trainer = Peer(trainer_process, settings.server_url, model, nbytes, tensors)
        self._agent, self._slots, self._pid = self._trainer.receive()
        self._rollout = Rollout(self._weights, model=model, replica="r0", settings=settings)
        self._control = settings.control_plane()

    def baselines(self) -> RawReads:
        """Raw READs of the trainer's first slot."""
        return RawReads(self._agent, self._slots[0], self._pid)

    def refit(self, raw: RawReads) -> _Refit:
        """One refit of changed weights, verified, then the baselines."""
        update, published, staged_at, _applied_at = self._publish_and_apply()
        if checksum(self._weights) != self._trainer.ask("checksum"):
            raise BenchmarkError(f"version {update.version}: the rollout's weights are not the trainer's")
        ready_at = self._control.version(self._model, update.version).ready_at
        if ready_at is None:
            raise BenchmarkError(f"version {update.version} was staged without being READY")
        return _Refit(
            publish=published["seconds"],
            engine=staged_at - ready_at,
            apply=update.pause_seconds or 0.0,
            nixl=raw.nixl_seconds(),
            cma=raw.cma_seconds(),
            copy=raw.copy_seconds(),
            transport=update.transport,
        )

    def small_seconds(self) -> float:
        """One refit, from the call of publish to applied."""
        _update, published, _staged_at, applied_at = self._publish_and_apply()
        return applied_at - float(published["called_at"])

    def idle_cpu_percent(self, seconds: float) -> float:
        """CPU of this process while it does nothing but wait for a version, in percent of a core."""
        waiting = threading.Thread(target=self._rollout.stage, args=(seconds,))
        waiting.start()
        time.sleep(min(1.0, seconds / 4))
        cpu, wall = time.process_time(), time.perf_counter()
        waiting.join()
        return 100 * (time.process_time() - cpu) / (time.perf_counter() - wall)

    def _publish_and_apply(self) -> tuple[Update, dict[str, Any], float, float]:
        # The rollout is parked at the server before the version is READY, as it is in real life.
        self._trainer.send("publish")
        update = self._rollout.stage(_STAGE_SECONDS)
        staged_at = time.time()
        if update is None:
            raise BenchmarkError(f"no version was assigned within {_STAGE_SECONDS:g} s")
        update.apply()
        applied_at = time.time()
        return update, self._trainer.receive(), staged_at, applied_at

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._control.close()
        self._rollout.close()
        self._trainer.close()


def trainer_process(connection: Connection, url: str, model: str, nbytes: int, tensors: int) -> None:
    """The trainer: answers ``publish`` (with changed weights) and ``checksum``."""
    torch.set_num_threads(1)
    weights = make_weights(nbytes, tensors)
    with Trainer(
        weights, run="bench", model=model, settings=WorkerSettings(server_url=url, log_level="warning")
    ) as trainer:
        connection.send((trainer.agent_info, trainer.memory.slots, os.getpid()))
        for step, request in enumerate(requests(connection)):
            if request == "checksum":
                connection.send(checksum(weights))
                continue
            for tensor in weights.values():
                tensor.add_(1)
            called_at, started = time.time(), time.perf_counter()
            trainer.publish(step=step)
            connection.send({"called_at": called_at, "seconds": time.perf_counter() - started})


def make_weights(nbytes: int, tensors: int) -> dict[str, torch.Tensor]:
    """``tensors`` bf16 tensors of about ``nbytes`` in all, sized like a transformer's: few large, many small ones."""
    shares = [(1.0, 0.6, 0.6, 0.001)[index % 4] for index in range(tensors)]
    unit = nbytes / 2 / sum(shares)
    generator = torch.Generator().manual_seed(0)
    return {
        f"layers.{index:04d}.weight": torch.randn(max(1, int(unit * share)), generator=generator).bfloat16()
        for index, share in enumerate(shares)
    }


def checksum(weights: dict[str, torch.Tensor]) -> str:
    """XXH3-128 over names and bytes of all tensors, in order."""
    digest = xxhash.xxh3_128()
    for name, tensor in weights.items():
        digest.update(name.encode())
        raw: Any = tensor.view(torch.uint8).numpy()
        digest.update(raw)
    return digest.hexdigest()


def _counted(measure: Callable[[], T], progress: Progress, what: str, done: int, of: int) -> T:
    """One measurement; the first of each series warms up and is dropped."""
    progress(what, done, of)
    return measure()


def _result(pair: _Pair, refits: list[_Refit], small: list[float], idle: float) -> WireResult:
    def rate(seconds: float) -> float:
        return round(pair.nbytes / seconds / GIGA, 3)

    engine = statistics.median(refit.engine for refit in refits)
    nixl = statistics.median(refit.nixl for refit in refits)
    permitted = [refit.cma for refit in refits if refit.cma is not None]
    cma = statistics.median(permitted) if permitted else None
    return WireResult(
        nbytes=pair.nbytes,
        tensors=pair.tensors,
        repetitions=len(refits),
        transport=refits[0].transport,
        publish_gbps=rate(statistics.median(refit.publish for refit in refits)),
        engine_gbps=rate(engine),
        raw_nixl_gbps=rate(nixl),
        cma_gbps=None if cma is None else rate(cma),
        copy_gbps=rate(statistics.median(refit.copy for refit in refits)),
        ratio=round(nixl / engine, 3),
        raw_ratio=None if cma is None else round(cma / nixl, 3),
        apply_gbps=rate(statistics.median(refit.apply for refit in refits)),
        small_ms=round(1000 * statistics.median(small), 2),
        idle_cpu_percent=round(idle, 2),
        engine_gbps_all=[rate(refit.engine) for refit in refits],
        raw_nixl_gbps_all=[rate(refit.nixl) for refit in refits],
        small_ms_all=[round(1000 * seconds, 2) for seconds in small],
        machine=f"{os.cpu_count()} cores, {platform.machine()}, Linux {platform.release()}",
    )
