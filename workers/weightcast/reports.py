"""Telling the control plane how a pull went, also when it cannot be told at once."""

from __future__ import annotations

import threading

from weightcast.client import ControlPlane
from weightcast.contract.names import PullFailure
from weightcast.contract.pulls import Pull, UpdatePull
from weightcast.errors import NotFound, PullConflict, RequestRefused, ServerUnavailable, WeightcastError
from weightcast.logs import get_logger
from weightcast.session import WorkerSession
from weightcast.update import Update

_log = get_logger("weightcast.reports")


class PullReports:
    """Reports of one rank. An outcome that could not be delivered is kept and sent before the next assignment."""

    def __init__(self, session: WorkerSession, control: ControlPlane) -> None:
        self._session = session
        self._control = control
        self._pending: tuple[str, UpdatePull] | None = None
        self._delivering = threading.RLock()

    def send(self, pull_id: str, body: UpdatePull, wait: float | None = None, deadline: float | None = None) -> Pull:
        """Report a state; errors are the caller's."""
        return self._session.call(
            lambda me: self._control.update_pull(me, pull_id, body, wait=wait, deadline=deadline), deadline=deadline
        )

    def failed(
        self,
        pull_id: str,
        failure: PullFailure,
        reason: str,
        *,
        source: str | None = None,
        tainted: bool = False,
    ) -> None:
        """Report a failure as far as it can be reported: the caller has an error of its own to raise."""
        text = "".join(character if character.isprintable() else " " for character in reason)[:1000]
        self._pending = (
            pull_id,
            UpdatePull(state="failed", failure=failure, failed_source=source, reason=text, tainted=tainted),
        )
        try:
            self.flush()
        except WeightcastError as error:
            _log.warning("failure not reported yet", pull=pull_id, error=str(error))

    def applied(self, update: Update) -> None:
        """Report an applied version. While the server is away it is kept: without it this rank would count as tainted.

        Raises:
            Fenced: a newer process has this rank.
        """
        body = UpdatePull(
            state="applied",
            bytes_done=update.nbytes,
            fetch_seconds=update.seconds,
            pause_seconds=update.pause_seconds,
            transport=update.transport,
        )
        self._pending = (update.pull_id, body)
        try:
            self.flush()
        except ServerUnavailable as error:
            _log.warning("applied, but not reported yet", version=update.version, error=str(error))

    def flush(self) -> None:
        """Deliver the outcome that is still owed, if any. One that is refused for good is dropped."""
        with self._delivering:
            if self._pending is None:
                return
            pull_id, body = pending = self._pending
            try:
                self.send(pull_id, body)
            except (PullConflict, NotFound) as error:
                _log.info("outcome not recorded", pull=pull_id, state=body.state, code=error.code)
                if body.state == "applied" or body.tainted:
                    # The pull had ended, because this rank was registered again while it was applying. What it serves
                    # since then, or that it is tainted, has to be told with another registration.
                    self._session.register_again()
            except RequestRefused as error:
                _log.error("outcome refused", pull=pull_id, state=body.state, error=str(error))
            if self._pending is pending:
                self._pending = None
