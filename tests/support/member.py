"""A worker process that only keeps its membership, and says on stdout what becomes of it: one JSON line per change.

``python -m support.member URL MODEL [SPINNERS]``; it leaves when its stdin is closed.
"""

from __future__ import annotations

import json
import sys
import threading

from weightcast.client import ControlPlane
from weightcast.contract.names import Role
from weightcast.contract.workers import RegisterWorker
from weightcast.session import WorkerSession


def spin(stop: threading.Event) -> None:
    """Hold the interpreter as long as it lets one thread, over and over."""
    count = 0
    while not stop.is_set():
        for _ in range(100_000):
            count += 1


def wait_for_end(stop: threading.Event) -> None:
    """Stop when stdin is closed."""
    sys.stdin.read()
    stop.set()


def main() -> None:
    """Register, report, leave at the end of stdin."""
    url, model, *spinners = sys.argv[1:]
    body = RegisterWorker(model=model, role=Role.TRAINER, rank=0, world_size=1, run="run-1", incarnation="0" * 32)
    stop = threading.Event()
    threads = [threading.Thread(target=spin, args=(stop,)) for _ in range(int(spinners[0]) if spinners else 0)]
    threading.Thread(target=wait_for_end, args=(stop,), daemon=True).start()
    with ControlPlane(url) as control, WorkerSession(control, lambda _previous: body) as session:
        session.start()
        for thread in threads:
            thread.start()
        said: dict[str, object] = {}
        while True:
            state: dict[str, object] = {"fenced": session.fenced}
            state["epoch"] = None if session.fenced else session.identity.epoch
            if state != said:
                said = state
                print(json.dumps(state), flush=True)
            if stop.wait(0.02):
                break
        for thread in threads:
            thread.join()


if __name__ == "__main__":
    main()
