"""The control plane's calls that change something. All are idempotent: each may be sent again until answered."""

from __future__ import annotations

from weightcast.client.base import parse, path
from weightcast.client.identity import Identity
from weightcast.client.reads import Reads
from weightcast.contract.layout import LAYOUT_MEDIA_TYPE, Layout, layout_digest, pack_layout
from weightcast.contract.pulls import Assignment, Pull, RequestPull, UpdatePull
from weightcast.contract.versions import AbortVersion, Drained, OpenVersion, PublishShard, Version
from weightcast.contract.workers import Heartbeat, RegisterWorker, Registration, UpdateMemory, Worker


class ControlPlane(Reads):
    """Typed client of one control plane.

    Fenced calls take the caller's :class:`Identity` first. Each kind of refusal is a class of `weightcast.errors`.
    """

    # Workers

    def register(self, body: RegisterWorker, *, deadline: float | None = None, once: bool = False) -> Registration:
        """Register this process for its rank; a predecessor of the rank is fenced. ``once``: one try only."""
        return parse(Registration, self._send("POST", path("workers"), body=body, deadline=deadline, once=once))

    def heartbeat(self, me: Identity, *, deadline: float | None = None) -> Heartbeat:
        """Renew the lease. One try only: whoever beats tries again on its own schedule."""
        answer = self._send("POST", path("workers", me.worker_id, "heartbeat"), me=me, deadline=deadline, once=True)
        return parse(Heartbeat, answer)

    def leave(self, me: Identity, *, deadline: float | None = None) -> None:
        """Say goodbye: everything this worker holds is gone at once, without waiting for its lease to end."""
        self._send("DELETE", path("workers", me.worker_id), me=me, deadline=deadline)

    def update_memory(self, me: Identity, body: UpdateMemory, *, deadline: float | None = None) -> Worker:
        """New addresses and agents within the same epoch."""
        answer = self._send("PUT", path("workers", me.worker_id, "memory"), me=me, body=body, deadline=deadline)
        return parse(Worker, answer)

    # Publishing

    def put_layout(self, me: Identity, model: str, layout: Layout, *, deadline: float | None = None) -> str:
        """Upload a layout; returns its digest."""
        digest = layout_digest(layout)
        where = path("models", model, "layouts", digest)
        self._send("PUT", where, me=me, body=pack_layout(layout), media_type=LAYOUT_MEDIA_TYPE, deadline=deadline)
        return digest

    def open_version(self, me: Identity, model: str, body: OpenVersion, *, deadline: float | None = None) -> Version:
        """Open the version of (run, step, attempt), or get the one that another rank has opened."""
        answer = self._send("POST", path("models", model, "versions"), me=me, body=body, deadline=deadline)
        return parse(Version, answer)

    def publish_shard(
        self,
        me: Identity,
        model: str,
        version: int,
        slot: int,
        body: PublishShard,
        *,
        deadline: float | None = None,
    ) -> Version:
        """Publish this rank's shard; the last one makes the version READY."""
        where = path("models", model, "versions", version, "shards", slot)
        return parse(Version, self._send("PUT", where, me=me, body=body, deadline=deadline))

    def abort_version(
        self, me: Identity, model: str, version: int, reason: str = "", *, deadline: float | None = None
    ) -> Version:
        """Give a STAGING version up."""
        where = path("models", model, "versions", version, "abort")
        return parse(Version, self._send("POST", where, me=me, body=AbortVersion(reason=reason), deadline=deadline))

    def drain(
        self, me: Identity, model: str, version: int, *, wait: float | None = None, deadline: float | None = None
    ) -> Drained:
        """Withdraw this worker's copy of a version; parks until its readers are done, or the wait ends.

        The holding is gone in both cases; ``drained`` False means that readers were left behind.
        """
        where = path("models", model, "versions", version, "holdings", me.worker_id)
        return parse(Drained, self._send("DELETE", where, me=me, wait=wait, deadline=deadline))

    # Pulling

    def request_pull(
        self,
        me: Identity,
        model: str,
        body: RequestPull,
        *,
        wait: float | None = None,
        deadline: float | None = None,
    ) -> Assignment | None:
        """The next assignment of this rank; parks until there is a newer version. None when the wait ended."""
        answer = self._send("POST", path("models", model, "pulls"), me=me, body=body, wait=wait, deadline=deadline)
        return None if answer.status == 204 else parse(Assignment, answer)

    def update_pull(
        self,
        me: Identity,
        pull_id: str,
        body: UpdatePull,
        *,
        wait: float | None = None,
        deadline: float | None = None,
    ) -> Pull:
        """Report progress or a new state. ``applying`` parks until granted: ask again while the answer says staged."""
        return parse(Pull, self._send("PATCH", path("pulls", pull_id), me=me, body=body, wait=wait, deadline=deadline))
