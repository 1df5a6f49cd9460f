"""The publishing side of resident versions: an arena of slots that readers READ whenever they like.

Each slot holds one whole version. While one is read the other is written; a slot's header says what it holds and is
invalid while it changes.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Final

import torch

from weightcast.contract.layout import Layout, TensorSpec, layout_digest
from weightcast.contract.names import MemoryKind
from weightcast.contract.workers import Agent as AgentInfo
from weightcast.contract.workers import SlotMemory, WorkerMemory
from weightcast.engines.agent import AgentThread
from weightcast.engines.digest import DEFAULT_BUCKET_NBYTES, DIGEST_NBYTES, bucket_count, bucket_digest, digest_root
from weightcast.engines.header import HEADER_NBYTES, SlotHeader, model_key
from weightcast.errors import LayoutMismatch
from weightcast.layout import contiguous_bytes, dtype_name, typed_view
from weightcast.memory import ALIGN_NBYTES, HostBuffer, copy_bytes

DEFAULT_SLOTS: Final = 2
_REGISTER_TIMEOUT: Final = 60.0


@dataclass(frozen=True, slots=True)
class WrittenSlot:
    """What a finished write offers to readers."""

    slot: int
    generation: int
    digest_root: str
    nbytes: int
    seconds: float


class _Slot:
    """One slot: header and digest table in the control buffer, the shard's bytes in the data buffer."""

    def __init__(
        self, control: HostBuffer, data: HostBuffer, control_offset: int, data_offset: int, layout: Layout, bucket: int
    ) -> None:
        table_nbytes = bucket_count(layout.nbytes, bucket) * DIGEST_NBYTES
        self._header_view = control.view[control_offset : control_offset + HEADER_NBYTES]
        self.table = control.view[control_offset + HEADER_NBYTES : control_offset + HEADER_NBYTES + table_nbytes]
        self.data = data.tensor[data_offset : data_offset + layout.nbytes]
        self.bytes = data.view[data_offset : data_offset + layout.nbytes]
        self.memory = SlotMemory(
            kind=MemoryKind.DRAM,
            device_id=0,
            header_address=str(control.address + control_offset),
            table_address=str(control.address + control_offset + HEADER_NBYTES),
            table_nbytes=table_nbytes,
            data_address=str(data.address + data_offset if layout.nbytes else 0),
            data_nbytes=layout.nbytes,
        )

    def set_header(self, header: SlotHeader) -> None:
        self.header = header
        self._header_view[:] = header.pack()


class ResidentSource:
    """A shard's registered arena and the agent that serves it.

    Args:
        model: the model's name.
        layout: what every version of this shard looks like.
        slots: versions held at once; 2 lets N+1 be written while N is read. Memory: ``slots × layout.nbytes`` bytes.
        bucket_nbytes: bytes that one digest covers.

    Raises:
        OutOfMemoryError: the arena does not fit.
        TransferError: NIXL cannot start or register the memory.
    """

    def __init__(
        self,
        model: str,
        layout: Layout,
        *,
        slots: int = DEFAULT_SLOTS,
        bucket_nbytes: int = DEFAULT_BUCKET_NBYTES,
    ) -> None:
        self.layout = layout
        self.layout_digest = layout_digest(layout)
        self.bucket_nbytes = bucket_nbytes
        self._specs: dict[str, TensorSpec] = {spec.name: spec for spec in layout.tensors}
        self._model_key = model_key(model)
        stride = -(-layout.nbytes // ALIGN_NBYTES) * ALIGN_NBYTES
        control_stride = (
            -(-(HEADER_NBYTES + bucket_count(layout.nbytes, bucket_nbytes) * DIGEST_NBYTES) // ALIGN_NBYTES)
            * ALIGN_NBYTES
        )
        self._data = HostBuffer(slots * stride, f"an arena of {slots} slots of {layout.nbytes:,} bytes")
        self._control = HostBuffer(slots * control_stride, "slot headers and digest tables")
        self._slots = [
            _Slot(self._control, self._data, index * control_stride, index * stride, layout, bucket_nbytes)
            for index in range(slots)
        ]
        for slot in self._slots:
            slot.set_header(SlotHeader(self._model_key, 0, 0, 0, 0, 0, layout.nbytes))
        self._digester = ThreadPoolExecutor(1, thread_name_prefix="weightcast-digest")
        self._serve = AgentThread("serve")
        try:
            buffers = [buffer for buffer in (self._control, self._data) if buffer.nbytes]
            self._registrations: list[Any] = self._serve.call(
                lambda agent: [agent.register(buffer) for buffer in buffers], _REGISTER_TIMEOUT, "register the arena"
            )
        except BaseException:
            self.close()
            raise

    @property
    def slots(self) -> int:
        """Number of slots."""
        return len(self._slots)

    def agent_info(self) -> AgentInfo:
        """The serving agent with metadata that covers the arena."""
        return self._serve.info()

    def memory(self) -> WorkerMemory:
        """Where the slots lie, as registered with the control plane."""
        return WorkerMemory(bucket_nbytes=self.bucket_nbytes, slots=[slot.memory for slot in self._slots])

    def held(self, slot: int) -> SlotHeader:
        """The slot's present header."""
        return self._slots[slot].header

    def write(self, slot: int, version: int, epoch: int, tensors: Mapping[str, torch.Tensor]) -> WrittenSlot:
        """Copy the tensors into a slot, digest them, and make the slot valid for ``version`` under ``epoch``.

        Any version that the slot held before is gone with the first byte. Digests are computed on a second thread
        while the copy runs on. If this raises, the slot stays invalid.

        Raises:
            LayoutMismatch: the tensors are no longer those of the layout.
        """
        started = time.perf_counter()
        self.check(tensors)
        target = self._slots[slot]
        target.set_header(replace(target.header.writing(), version=version, epoch=epoch))
        digests = self._copy(target, tensors)
        table = b"".join(digest.result() for digest in digests)
        target.table[:] = table
        buckets = len(digests)
        target.set_header(
            replace(
                target.header, generation=target.header.generation + 1, buckets_ready=buckets, digests_ready=buckets
            )
        )
        root = digest_root(self.layout_digest, self.bucket_nbytes, table)
        return WrittenSlot(slot, target.header.generation, root, self.layout.nbytes, time.perf_counter() - started)

    def invalidate(self, slot: int) -> None:
        """Withdraw what a slot holds: readers in the middle of it drop what they have."""
        target = self._slots[slot]
        if target.header.valid:
            target.set_header(target.header.writing())

    def restamp(self, slot: int, epoch: int) -> int:
        """Offer a valid slot's unchanged bytes under a new epoch; returns the new generation."""
        target = self._slots[slot]
        target.set_header(replace(target.header, epoch=epoch, generation=target.header.generation + 2))
        return target.header.generation

    def check(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Prove that the tensors still are what the layout says.

        Raises:
            LayoutMismatch: listing every difference.
        """
        problems = [
            f"{name!r}: not in the layout that this trainer publishes" for name in tensors.keys() - self._specs.keys()
        ]
        tied: dict[int, tuple[str, tuple[object, ...]]] = {}
        for name, spec in self._specs.items():
            tensor = tensors.get(name)
            if tensor is None:
                problems.append(f"{name!r}: in the layout, but no longer among the weights")
                continue
            if tuple(tensor.shape) != spec.shape or dtype_name(tensor.dtype) != spec.dtype:
                problems.append(
                    f"{name!r}: is {dtype_name(tensor.dtype)} {list(tensor.shape)}, was {spec.dtype} {list(spec.shape)}"
                )
            if spec.nbytes:
                storage = (tensor.data_ptr(), tensor.stride())
                first, same = tied.setdefault(spec.offset, (name, storage))
                if same != storage:
                    problems.append(f"{name!r}: was tied to {first!r} and is no longer")
        if problems:
            raise LayoutMismatch(sorted(problems))

    def close(self) -> None:
        """Withdraw everything, then stop serving. Memory is freed only after the agent is gone."""
        for index in range(len(self._slots)):
            self.invalidate(index)
        self._digester.shutdown(wait=True)
        if not self._serve.close():
            _abandoned.append((self._control, self._data))

    def _copy(self, target: _Slot, tensors: Mapping[str, torch.Tensor]) -> list[Future[bytes]]:
        bucket = self.bucket_nbytes
        digests: list[Future[bytes]] = []

        def written_up_to(end: int) -> None:
            # A bucket is digested as soon as it is complete, while its bytes are still in cache.
            while (start := len(digests) * bucket) < self.layout.nbytes and min(
                start + bucket, self.layout.nbytes
            ) <= end:
                digests.append(self._digester.submit(bucket_digest, target.bytes[start : start + bucket]))

        last = -1
        for spec in self.layout.tensors:
            if not spec.nbytes or spec.offset == last:
                continue  # nothing to copy, or tied to the tensor just copied
            last = spec.offset
            written_up_to(spec.offset)
            tensor = tensors[spec.name]
            if not tensor.is_contiguous() or tensor.is_conj() or tensor.is_neg():
                typed_view(target.data, spec).copy_(tensor)
                continue
            raw, position = contiguous_bytes(tensor), spec.offset
            end = position + spec.nbytes
            while position < end:
                stop = min(end, (position // bucket + 1) * bucket)
                copy_bytes(target.data[position:stop], raw[position - spec.offset : stop - spec.offset])
                position = stop
                written_up_to(stop)
        written_up_to(self.layout.nbytes)
        return digests


_abandoned: list[tuple[HostBuffer, HostBuffer]] = []
"""Buffers whose agent could not be destroyed: unmapping them under a READ would crash the process."""
