"""The control plane in a process of its own, on a free port of the loopback and with a database that is thrown away."""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import sys
import threading
import time
from functools import partial
from pathlib import Path

from weightcast.demo.child import Lifeline, run_child
from weightcast.demo.reports import Message, Ready, Reporter
from weightcast.serving import load_server

_START_SECONDS = 60.0
_READY_FILE = "server.url"


def main(directory: Path, parent: int) -> int:
    """Serve until the parent says stop or is gone; returns the exit status."""
    atexit.register(_clean_up_after, parent, directory)
    return run_child(
        Message, partial(_serve, directory), on_stop=partial(_stop_serving, parent, directory), outlives=True
    )


def _serve(directory: Path, _settings: Message, reporter: Reporter, lifeline: Lifeline) -> None:
    ready_file = directory / _READY_FILE
    threading.Thread(target=_announce, args=(ready_file, reporter, lifeline), name="announce", daemon=True).start()
    load_server("serve")(
        host="127.0.0.1",
        port=0,
        database=directory / "weightcast.db",
        ready_file=ready_file,
        log_level="warning",
        log_format="json",
    )


def _announce(ready_file: Path, reporter: Reporter, lifeline: Lifeline) -> None:
    end = time.monotonic() + _START_SECONDS
    while time.monotonic() < end and not lifeline.stop.wait(0.02):
        if ready_file.exists() and (url := ready_file.read_text().strip()):
            reporter.send(Ready(url=url))
            return


def _stop_serving(parent: int, directory: Path) -> None:
    if (directory / _READY_FILE).exists():
        os.kill(os.getpid(), signal.SIGTERM)
    else:
        # It still imports and has no handler for SIGTERM, which would skip the clean-up.
        _clean_up_after(parent, directory)
        os._exit(0)


def _clean_up_after(parent: int, directory: Path) -> None:
    """When the parent was killed, and the other children with it, nobody else is left to remove what they wrote."""
    # The pipes of a killed process close a little before its children get another parent.
    for _ in range(20):
        if os.getppid() != parent:
            shutil.rmtree(directory, ignore_errors=True)
            return
        time.sleep(0.01)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2])))
