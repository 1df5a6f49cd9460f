"""The control plane in a process of its own, on a free port of the loopback and with a database that is thrown away."""

from __future__ import annotations

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
from weightcast.demo.reports import Ready, Reporter, ServerSettings

_START_SECONDS = 60.0


def _serve(settings: ServerSettings, reporter: Reporter, lifeline: Lifeline) -> None:
    # Until the server has its own handler (importing it takes a while), SIGTERM must not skip the clean-up below.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    directory = Path(settings.directory)
    ready_file = directory / "server.url"
    threading.Thread(target=_announce, args=(ready_file, reporter, lifeline), name="announce", daemon=True).start()
    try:
        load_server("serve")(
            host="127.0.0.1",
            port=0,
            database=directory / "weightcast.db",
            ready_file=ready_file,
            log_level="warning",
            log_format="json",
        )
    finally:
        if os.getppid() != settings.parent:
            # It was killed, and the other children with it: nobody else is left to remove what they wrote.
            shutil.rmtree(directory, ignore_errors=True)


def _announce(ready_file: Path, reporter: Reporter, lifeline: Lifeline) -> None:
    end = time.monotonic() + _START_SECONDS
    while time.monotonic() < end and not lifeline.stop.wait(0.02):
        if ready_file.exists() and (url := ready_file.read_text().strip()):
            reporter.send(Ready(url=url))
            return


if __name__ == "__main__":
    stop_serving = partial(os.kill, os.getpid(), signal.SIGTERM)
    sys.exit(run_child(ServerSettings, _serve, on_stop=stop_serving, outlives=True))
