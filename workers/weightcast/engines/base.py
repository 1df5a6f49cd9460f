"""The contract of checkpoint engines, as RL frameworks load them.

A framework creates one engine per policy rank and per rollout rank, exchanges the metadata of all of them, and then for
every refit runs ``send_weights`` on the policy ranks and ``receive_weight_batches`` on the rollout ranks.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from typing import Any, Final

import torch

WeightBatch = list[tuple[str, torch.Tensor]]

_BACKENDS: Final = {"resident": "weightcast.engines.resident:ResidentEngine"}


class CheckpointEngine(ABC):
    """Moves the weights of policy ranks to rollout ranks.

    ``shard_expert_weights``: whether rollouts tell which experts they hold (:meth:`get_target_weight_layout`) and are
    sent those only.
    """

    shard_expert_weights: bool = False

    @abstractmethod
    def prepare(self) -> Any:
        """Allocate and register what transfers need; returns the metadata that peers must be given. Idempotent."""

    @abstractmethod
    def init_policy_process_group(
        self, *, worker_rank: int, train_world_size: int, rollout_world_size: int, metadata: Sequence[Any]
    ) -> None:
        """Become policy rank ``worker_rank``. ``metadata``: of all policy ranks, then of all rollout ranks."""

    @abstractmethod
    def init_rollout_process_group(
        self, *, rollout_rank: int, train_world_size: int, rollout_world_size: int, metadata: Sequence[Any]
    ) -> None:
        """Become rollout rank ``rollout_rank``. ``metadata``: of all policy ranks, then of all rollout ranks."""

    @abstractmethod
    async def send_weights(self, weights: Generator[tuple[str, torch.Tensor], None, None]) -> None:
        """Send one version of the weights. The iterator is always drained: it may run collectives."""

    @abstractmethod
    def receive_weight_batches(self) -> AsyncGenerator[WeightBatch, None]:
        """Receive one version as batches of (name, tensor); a batch is valid until the next one is asked for."""

    def finalize(self) -> None:  # noqa: B027 - optional to override
        """End a refit. Does nothing by default."""

    def get_target_weight_layout(self) -> dict[str, Any] | None:
        """What this rollout rank holds, for ``shard_expert_weights``; None when everything is wanted.

        Raises:
            NotImplementedError: the engine sets ``shard_expert_weights`` and does not say.
        """
        if self.shard_expert_weights:
            raise NotImplementedError(
                f"{type(self).__name__} sets shard_expert_weights and has to implement get_target_weight_layout"
            )
        return None


def create_checkpoint_engine(
    backend: str, *, bucket_size_bytes: int, engine_kwargs: Mapping[str, Any] | None = None
) -> CheckpointEngine:
    """Create an engine by name.

    Args:
        backend: ``"resident"``, or ``"module:Class"`` of an engine that takes ``bucket_size`` by keyword.
        bucket_size_bytes: passed as ``bucket_size``, in bytes.
        engine_kwargs: further keyword arguments of the engine.

    Raises:
        ValueError: no such backend.
        TypeError: the class is not a checkpoint engine.
    """
    place = _BACKENDS.get(backend, backend)
    module_name, separator, class_name = place.partition(":")
    if not separator or not module_name or not class_name:
        known = ", ".join(sorted(_BACKENDS))
        raise ValueError(f"Unknown checkpoint-engine backend {backend!r}: use one of {known}, or 'module:Class'")
    try:
        kind = getattr(importlib.import_module(module_name), class_name)
    except (ModuleNotFoundError, AttributeError) as error:
        raise ValueError(f"Unknown checkpoint-engine backend {backend!r}: {error}") from error
    if not (isinstance(kind, type) and issubclass(kind, CheckpointEngine)):
        raise TypeError(f"{backend!r} is not a CheckpointEngine")
    make: Callable[..., CheckpointEngine] = kind
    return make(bucket_size=bucket_size_bytes, **dict(engine_kwargs or {}))
