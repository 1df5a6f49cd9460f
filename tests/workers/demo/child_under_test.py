"""A child for ``test_family``: does what its settings name as the replica."""

from __future__ import annotations

import sys
import time

from weightcast.demo.child import Lifeline, run_child
from weightcast.demo.reports import Ready, Reporter, RolloutSettings


def _work(settings: RolloutSettings, reporter: Reporter, lifeline: Lifeline) -> None:
    print("noise on standard output")
    reporter.send(Ready(url="ready"))
    match settings.replica:
        case "obeys":
            lifeline.stop.wait(30)
        case "begins":
            lifeline.begin.wait(30)
            reporter.send(Ready(url="begun"))
            lifeline.stop.wait(30)
        case "fails":
            raise ValueError("a reason")
        case "is-deaf":
            time.sleep(60)


if __name__ == "__main__":
    sys.exit(run_child(RolloutSettings, _work))
