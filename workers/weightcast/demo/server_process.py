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

from weightcast.cli.serve import load_server
from weightcast.demo.child import Lifeline, run_child
from weightcast.demo.reports import Message, Ready, Reporter

_START_SECONDS = 60.0


def main(directory: Path, parent: int) -> int:
    """Serve until the parent says stop or is gone; returns the exit status."""
    atexit.register(_clean_up_after, parent, directory)
    # The server's own handler comes late: until then SIGTERM must not skip the clean-up.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    stop_serving = partial(os.kill, os.getpid(), signal.SIGTERM)
    return run_child(Message, partial(_serve, directory), on_stop=stop_serving, outlives=True)


def _serve(directory: Path, _settings: Message, reporter: Reporter, lifeline: Lifeline) -> None:
    ready_file = directory / "server.url"
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


def _clean_up_after(parent: int, directory: Path) -> None:
    """When the parent was killed, and the other children with it, nobody else is left to remove what they wrote."""
    if os.getppid() != parent:
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2])))
