"""The live weights of a rollout rank: entirely one version, or known not to be."""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch

from weightcast.apply import Shard, check_destination, check_ties, copy_into
from weightcast.contract.layout import Layout
from weightcast.errors import Tainted
from weightcast.layout import Weights, build_layout, check_stable, named_tensors
from weightcast.update import Hook


class LiveWeights:
    """Tensors that an engine computes with, and which version they are.

    Attributes:
        serving: the version that they are entirely; None before the first, while one is applied, and when tainted.
        taint: why they are of no single version; None when they are.
    """

    def __init__(self, weights: Weights, after_load: Hook | None) -> None:
        self._weights = weights
        self._after_load = after_load
        self.serving: int | None = None
        self.taint: str | None = None

    def tensors(self) -> dict[str, torch.Tensor]:
        """The tensors as they are now: addresses may have moved since the last time."""
        return named_tensors(self._weights)

    def layout(self) -> Layout:
        """The layout that a trainer with the same weights would publish.

        Raises:
            LayoutError: a tensor cannot be loaded into, or is only a copy of a live one.
        """
        return build_layout(self._live_tensors())

    def check(self, layouts: Sequence[Layout], version: int) -> None:
        """Prove that a version fits before it is read.

        Raises:
            LayoutMismatch: listing every difference.
            LayoutError: a tensor is only a copy of a live one.
        """
        check_destination(layouts, self._live_tensors(), version)

    def _live_tensors(self) -> dict[str, torch.Tensor]:
        tensors, again = self.tensors(), self.tensors()
        check_stable(tensors, again)
        return tensors

    def apply(self, shards: Sequence[Shard], version: int, worker_id: str) -> float:
        """Make them this version; returns the seconds it took.

        Raises:
            LayoutMismatch: it does not fit any more; nothing was changed.
            Tainted: copying or post-load processing failed in the middle.
        """
        started = time.perf_counter()
        tensors = self.tensors()
        check_destination([layout for layout, _data in shards], tensors, version)
        check_ties(shards, tensors, version)
        # In this order: whoever looks meanwhile sees "tainted" at worst, never "untouched".
        self.taint = f"version {version} is being applied"
        self.serving = None
        try:
            copy_into(shards, tensors)
            if self._after_load is not None:
                self._after_load()
        except BaseException as error:
            self.taint = f"applying version {version} failed: {error!r}"
            if not isinstance(error, Exception):
                raise  # the program is being ended
            raise Tainted(worker_id, version, repr(error)) from error
        self.serving = version
        self.taint = None
        return time.perf_counter() - started
