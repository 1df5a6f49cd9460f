"""Host memory that is registered once and lives as long as its registration."""

from __future__ import annotations

import contextlib
import mmap
from typing import Any, Final

import numpy as np
import torch

PAGE_NBYTES: Final = mmap.PAGESIZE
ALIGN_NBYTES: Final = 4096
_MADV_HUGEPAGE: Final = getattr(mmap, "MADV_HUGEPAGE", 14)
_MADV_POPULATE_WRITE: Final = 23
"""Linux 5.14: touch all pages in the kernel, without a fault for each."""

_CGROUP_FILES: Final = (
    (
        "/sys/fs/cgroup/memory.max",
        "/sys/fs/cgroup/memory.current",
        "/sys/fs/cgroup/memory.stat",
        "inactive_file",
    ),
    (
        "/sys/fs/cgroup/memory/memory.limit_in_bytes",
        "/sys/fs/cgroup/memory/memory.usage_in_bytes",
        "/sys/fs/cgroup/memory/memory.stat",
        "total_inactive_file",
    ),
)
"""Limit, usage, statistics and the field of reclaimable page cache: version 2, then version 1."""


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
    for limit, used, stat, field in _CGROUP_FILES:
        try:
            allowed = cgroup_available_nbytes(_read(limit), _read(used), _read(stat), field)
        except (OSError, ValueError):
            continue
        if allowed is not None:
            available = min(available, allowed)
        break
    return max(available, 0)


def cgroup_available_nbytes(limit: str, used: str, stat: str, inactive_field: str) -> int | None:
    """Bytes that a cgroup still allows, from what its files say; None where it has no limit.

    The usage counts page cache, which a reading of checkpoints fills up to the limit. Its inactive part is given back
    before anything is refused, so it is added again.

    Args:
        limit: ``memory.max`` or ``memory.limit_in_bytes``.
        used: ``memory.current`` or ``memory.usage_in_bytes``.
        stat: ``memory.stat``.
        inactive_field: the field of ``stat`` that covers the whole subtree, as the usage does.

    Raises:
        ValueError: a file does not say what it should.
    """
    if limit.strip() == "max":
        return None
    fields = dict(line.split(maxsplit=1) for line in stat.splitlines() if line.strip())
    inactive = int(fields.get(inactive_field, 0))
    # The files are read one after the other: the cache may be larger than the usage was.
    return int(limit) - max(int(used) - inactive, 0)


def _read(path: str) -> str:
    with open(path, encoding="ascii") as file:  # noqa: PTH123 - cgroupfs, read in one go
        return file.read()


def _round_up(nbytes: int, to: int) -> int:
    return -(-nbytes // to) * to
