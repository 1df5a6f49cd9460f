"""What the machine itself can do with the same bytes: the ceilings that an engine is measured against."""

from __future__ import annotations

import base64
import ctypes
import time
from typing import Final, Self

import numpy as np

from weightcast.contract.workers import Agent, SlotMemory
from weightcast.engines.agent import AgentThread, NixlAgent, NixlHandle
from weightcast.memory import HostBuffer

CHUNK_NBYTES: Final = 8 * 2**20
"""Bytes a call of process_vm_readv; measured best of 1 MiB to 512 MiB."""

_READ_SECONDS: Final = 120.0


class _IoVec(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]


class RawReads:
    """Reads a source's slot without the engine: one NIXL READ, and process_vm_readv, into a buffer of its own."""

    def __init__(self, agent: Agent, memory: SlotMemory, pid: int) -> None:
        self.nbytes = memory.data_nbytes
        self._address, self._pid, self._peer = int(memory.data_address), pid, agent.name
        self._buffer = HostBuffer(self.nbytes, "the baseline's buffer")
        self._thread = AgentThread("fetch")
        metadata = base64.b64decode(agent.metadata)

        def prepare(nixl: NixlAgent) -> NixlHandle:
            nixl.register(self._buffer)
            nixl.add_peer(agent.name, metadata)
            return nixl.prepare_read(self._buffer.address, self._address, self.nbytes, agent.name)

        self._handle = self._thread.call(prepare, _READ_SECONDS, "prepare the raw READ")

    def nixl_seconds(self) -> float:
        """One READ of everything."""

        def read(nixl: NixlAgent) -> float:
            started = time.perf_counter()
            done = nixl.post(self._handle)
            while not done:
                done = nixl.poll(self._handle)
            return time.perf_counter() - started

        return self._thread.call(read, _READ_SECONDS, "the raw READ")

    def cma_seconds(self) -> float | None:
        """process_vm_readv of the same bytes, on this thread; None where ptrace is not permitted."""
        libc = ctypes.CDLL(None, use_errno=True)
        started = time.perf_counter()
        for start in range(0, self.nbytes, CHUNK_NBYTES):
            length = min(CHUNK_NBYTES, self.nbytes - start)
            local, remote = _IoVec(self._buffer.address + start, length), _IoVec(self._address + start, length)
            if libc.process_vm_readv(self._pid, ctypes.byref(local), 1, ctypes.byref(remote), 1, 0) != length:
                return None
        return time.perf_counter() - started

    def copy_seconds(self) -> float:
        """memcpy of half of the buffer onto the other half, on this thread, scaled to all of its bytes."""
        array = self._buffer.tensor.numpy()
        half = self.nbytes // 2
        started = time.perf_counter()
        np.copyto(array[:half], array[half : 2 * half])
        return (time.perf_counter() - started) * self.nbytes / half

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        # The buffer stays until the agent is gone.
        self._thread.close()
