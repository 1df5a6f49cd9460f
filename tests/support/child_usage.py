"""What a worker process uses, and how it is kept busy."""

from __future__ import annotations

import gc
import os
import resource
import threading
import time
from pathlib import Path


def usage() -> dict[str, float]:
    """What must not grow, and CPU seconds so far."""
    gc.collect()
    used = resource.getrusage(resource.RUSAGE_SELF)
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    return {
        "rss": resident,
        "fds": len(os.listdir("/proc/self/fd")),  # noqa: PTH208 - counts itself each time alike
        "threads": len(os.listdir("/proc/self/task")),  # noqa: PTH208
        "cpu": used.ru_utime + used.ru_stime,
    }


def spin(seconds: float, threads: int = 3) -> None:
    """Keep the GIL busy with pure-Python work."""
    ends = time.monotonic() + seconds

    def work() -> None:
        while time.monotonic() < ends:
            sum(range(1000))

    workers = [threading.Thread(target=work) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
