"""A parent for ``test_family`` that is killed: starts a child, prints its process id, and sleeps."""

from __future__ import annotations

import queue
import sys
import time
from pathlib import Path

from weightcast.demo.family import Events, Family, Heard
from weightcast.demo.reports import RolloutSettings

if __name__ == "__main__":
    directory = Path(sys.argv[1])
    events: Events = queue.SimpleQueue()
    with Family(directory, events) as family:
        child = family.start("obeys", "child_under_test")
        child.send(RolloutSettings(server_url="", replica="obeys", index=0))
        assert isinstance(events.get(timeout=30), Heard)
        print(child.process.pid, flush=True)
        time.sleep(60)
