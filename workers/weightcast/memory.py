"""Host memory that is registered once and lives as long as its registration."""

from __future__ import annotations

import contextlib
import mmap
import os
from typing import Any, Final

import numpy as np
import torch

PAGE_NBYTES: Final = mmap.PAGESIZE
ALIGN_NBYTES: Final = 4096
_MADV_HUGEPAGE: Final = getattr(mmap, "MADV_HUGEPAGE", 14)
_MADV_POPULATE_WRITE: Final = 23
"""Linux 5.14: touch all pages in the kernel, without a fault for each."""


class OutOfMemoryError(MemoryError):
    """The arenas do not fit; the message carries the arithmetic."""


class HostBuffer:
    """An anonymous mapping, pre-faulted and zeroed, seen as one uint8 tensor.

    First touch of fresh pages costs more than a copy, so the pages are touched here, once, instead of inside the first
    refit. The buffer must outlive every registration and transfer on it: whoever registers it holds it.

    Args:
        nbytes: size in bytes; 0 gives an empty buffer with address 0.
        what: what it is for, named in errors.

    Raises:
        OutOfMemoryError: the machine has less memory available than asked for.
    """

    def __init__(self, nbytes: int, what: str) -> None:
        self.nbytes = nbytes
        self._map: mmap.mmap | None = None
        if nbytes == 0:
            self.tensor = torch.empty(0, dtype=torch.uint8)
            return
        available = _available_nbytes()
        if available is not None and nbytes > available:
            raise OutOfMemoryError(
                f"{what} needs {nbytes:,} bytes, the machine has {available:,} available: "
                "use fewer slots or a smaller model"
            )
        self._map = mmap.mmap(-1, _round_up(nbytes, PAGE_NBYTES), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with contextlib.suppress(OSError):  # without transparent huge pages only the first touch is slower
            self._map.madvise(_MADV_HUGEPAGE)
        self.tensor = torch.frombuffer(self._map, dtype=torch.uint8, count=nbytes)
        try:
            self._map.madvise(_MADV_POPULATE_WRITE)
        except OSError:
            self.tensor.zero_()

    @property
    def address(self) -> int:
        """Address of the first byte; 0 when empty."""
        return self.tensor.data_ptr() if self.nbytes else 0

    @property
    def view(self) -> memoryview:
        """The bytes, writable."""
        array: Any = self.tensor.numpy()
        return memoryview(array)


def copy_bytes(target: torch.Tensor, source: torch.Tensor) -> None:
    """Copy 1-D uint8 tensors of equal length.

    Between host tensors this is one ``memcpy`` on the calling thread with the GIL released. Torch's own copy splits the
    work over its intra-op threads, which on a machine whose cores are busy costs 20 to 50 times the copy itself.
    """
    if target.device.type == source.device.type == "cpu":
        np.copyto(target.numpy(), source.numpy())
    else:
        target.copy_(source)


def _available_nbytes() -> int | None:
    """Bytes that can be allocated now: the kernel's estimate, capped by the cgroup's limit where there is one."""
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:  # noqa: PTH123 - procfs, read in one go
            fields = dict(line.split(":", 1) for line in lines)
        available = int(fields["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return None
    for limit, used in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ):
        try:
            available = min(available, _read_int(limit) - _read_int(used))
            break
        except (OSError, ValueError):
            continue
    return max(available, 0)


def _read_int(path: str) -> int:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return int(os.read(descriptor, 64))
    finally:
        os.close(descriptor)


def _round_up(nbytes: int, to: int) -> int:
    return -(-nbytes // to) * to
