"""A trainer that lies about where its bytes are: a rank of a version, with agent and memory that a test makes up."""

from __future__ import annotations

import base64
import hashlib
import uuid
from typing import Any

from support.rest import Json, Member, Rest
from support.weights import make_weights
from support.workers import WorkerProcess
from weightcast.layout import build_layout


class Impostor:
    """Rank 0 of two, registered over plain REST; rank 1 is a real trainer whose digests it repeats."""

    def __init__(self, rest: Rest, model: str, honest: WorkerProcess, donor: WorkerProcess) -> None:
        self._honest = honest
        offered = donor.call("offered")
        self.agent: Json = offered["agent"]
        self.memory: Json = offered["memory"]
        self.member: Member = rest.trainer(model, 0, world_size=2, agents=[self.agent], memory=self.memory)
        self.member.put_layout(build_layout(make_weights(0))).raise_for_status()

    def lie(self, metadata: bytes | None = None, *, agent: Json | None = None, slot: Json | None = None) -> None:
        """Register anew with other metadata under a right digest, or with other fields of the agent or of its slots."""
        fields = dict(self.agent)
        if metadata is not None:
            fields["metadata"] = base64.b64encode(metadata).decode()
            fields["metadata_digest"] = hashlib.sha256(metadata).hexdigest()
        memory = {**self.memory, "slots": [{**one, **(slot or {})} for one in self.memory["slots"]]}
        self.member.register(
            incarnation=uuid.uuid4().hex, agents=[{**fields, **(agent or {})}], memory=memory
        ).raise_for_status()

    def renamed(self) -> tuple[str, bytes]:
        """The donor's metadata under a name that no agent has loaded before, and that name.

        NIXL keeps a name for good once it has failed to load its metadata.
        """
        old = str(self.agent["name"])
        new = old[:-32] + uuid.uuid4().hex
        metadata = base64.b64decode(self.agent["metadata"]).replace(old.encode(), new.encode())
        return new, metadata

    def publish(self, step: int, seed: int) -> tuple[int, str]:
        """Publish a version together with the real trainer; its number and SHA-256."""
        published: dict[str, Any] = self._honest.call("publish", step=step, seed=seed)
        body = self._honest.call("offered")["body"]
        version = int(self.member.open(step, world_size=2).raise_for_status().json()["version"])
        assert version == published["version"]
        answer = self.member.publish(version, **body)
        assert answer.raise_for_status().json()["state"] == "ready"
        return version, str(published["sha256"])
