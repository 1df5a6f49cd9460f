"""Calls that change nothing: what is served, by whom, and how far each pull is."""

from __future__ import annotations

from typing import Literal

from weightcast.client.base import Calls, parse, path
from weightcast.contract.layout import Layout, LayoutError, unpack_layout
from weightcast.contract.names import PullState, Role, VersionState, WorkerState
from weightcast.contract.pulls import Pull, PullList
from weightcast.contract.versions import ModelList, Target, Version, VersionList
from weightcast.contract.workers import ReplicaList, Worker, WorkerList
from weightcast.errors import ContractError


class Reads(Calls):
    """The GET half of the contract; any role's token will do."""

    def target(
        self, model: str, *, revision: int | None = None, wait: float | None = None, deadline: float | None = None
    ) -> Target:
        """What should be served now. With ``revision`` and ``wait``: parks until the revision is another one."""
        answer = self._send(
            "GET",
            path("models", model, "target"),
            query={"rev": revision},
            wait=wait,
            deadline=deadline,
        )
        return parse(Target, answer)

    def version(
        self,
        model: str,
        version: int,
        *,
        wait_for: Literal["ready", "applied"] | None = None,
        wait: float | None = None,
        replicas: int | None = None,
        deadline: float | None = None,
    ) -> Version:
        """One version; parks up to ``wait`` until it is READY, or applied by ``replicas`` (all live ones by default).

        The answer after the wait is the version as it is then: look at its state. FAILED ends any wait.
        """
        query = {"wait_for": wait_for, "replicas": replicas}
        answer = self._send(
            "GET", path("models", model, "versions", version), query=query, wait=wait, deadline=deadline
        )
        return parse(Version, answer)

    def versions(
        self,
        model: str,
        *,
        state: VersionState | None = None,
        limit: int = 100,
        cursor: str | None = None,
        deadline: float | None = None,
    ) -> VersionList:
        """Versions, newest first."""
        query = {"state": state, "limit": limit, "cursor": cursor}
        return parse(VersionList, self._send("GET", path("models", model, "versions"), query=query, deadline=deadline))

    def workers(
        self,
        model: str | None = None,
        *,
        role: Role | None = None,
        state: WorkerState | None = None,
        limit: int = 100,
        cursor: str | None = None,
        deadline: float | None = None,
    ) -> WorkerList:
        """Workers by id, of one model or of all."""
        query = {"model": model, "role": role, "state": state, "limit": limit, "cursor": cursor}
        return parse(WorkerList, self._send("GET", path("workers"), query=query, deadline=deadline))

    def worker(self, worker_id: str, *, deadline: float | None = None) -> Worker:
        """One worker."""
        return parse(Worker, self._send("GET", path("workers", worker_id), deadline=deadline))

    def models(self, *, limit: int = 100, cursor: str | None = None, deadline: float | None = None) -> ModelList:
        """Models by name, each with its owner and target."""
        query = {"limit": limit, "cursor": cursor}
        return parse(ModelList, self._send("GET", path("models"), query=query, deadline=deadline))

    def replicas(
        self, model: str, *, limit: int = 100, cursor: str | None = None, deadline: float | None = None
    ) -> ReplicaList:
        """Replicas: what each serves, how far it is behind, whether it may be sent requests."""
        query = {"limit": limit, "cursor": cursor}
        return parse(ReplicaList, self._send("GET", path("models", model, "replicas"), query=query, deadline=deadline))

    def pulls(
        self,
        model: str,
        *,
        state: PullState | None = None,
        version: int | None = None,
        worker_id: str | None = None,
        limit: int = 100,
        cursor: str | None = None,
        deadline: float | None = None,
    ) -> PullList:
        """Pulls, newest first."""
        query = {"state": state, "version": version, "worker_id": worker_id, "limit": limit, "cursor": cursor}
        return parse(PullList, self._send("GET", path("models", model, "pulls"), query=query, deadline=deadline))

    def pull(self, pull_id: str, *, deadline: float | None = None) -> Pull:
        """One pull."""
        return parse(Pull, self._send("GET", path("pulls", pull_id), deadline=deadline))

    def get_layout(self, model: str, digest: str, *, deadline: float | None = None) -> Layout:
        """A layout by its digest, fully checked."""
        answer = self._send("GET", path("models", model, "layouts", digest), deadline=deadline)
        try:
            return unpack_layout(answer.content, digest)
        except LayoutError as error:
            what = f"what {self.url} keeps as layout {digest} is not it: {error}"
            raise ContractError(what, call=answer.call) from None
