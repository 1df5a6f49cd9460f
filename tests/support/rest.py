"""A worker's side of the REST contract in its plainest form, for tests of the server."""

from __future__ import annotations

import hashlib
import threading
import uuid
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

import httpx
from weightcast.contract.layout import LAYOUT_MEDIA_TYPE, Layout, TensorSpec, layout_digest, pack_layout
from weightcast.contract.names import EPOCH_HEADER, WORKER_HEADER

T = TypeVar("T")
Json = dict[str, Any]

LAYOUT = Layout(1, 1024, (TensorSpec("w", "float32", (256,), 0),))
LAYOUT_DIGEST = layout_digest(LAYOUT)
NBYTES = LAYOUT.nbytes


def digest(text: str) -> str:
    """Some digest that goes with ``text``."""
    return hashlib.sha256(text.encode()).hexdigest()


def background(call: Callable[[], T]) -> Future[T]:
    """Run a blocking call in a thread of its own."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


def agent(name: str, purpose: str = "serve") -> Json:
    """A NIXL agent with metadata of no meaning."""
    return {"name": name, "purpose": purpose, "metadata": "", "metadata_digest": hashlib.sha256(b"").hexdigest()}


def memory(slots: int = 2, nbytes: int = 4096) -> Json:
    """Arena slots at made-up addresses."""
    slot = {
        "header_address": "4096",
        "table_address": "8192",
        "table_nbytes": 64,
        "data_address": "65536",
        "data_nbytes": nbytes,
    }
    return {"bucket_nbytes": 1024, "slots": [slot] * slots}


class Member:
    """A registered worker."""

    def __init__(self, rest: Rest, body: Json) -> None:
        self.rest = rest
        self.body = body
        self.worker_id = ""
        self.epoch = 0

    @property
    def model(self) -> str:
        """Its model."""
        return str(self.body["model"])

    @property
    def headers(self) -> dict[str, str]:
        """Headers of its fenced writes."""
        return {WORKER_HEADER: self.worker_id, EPOCH_HEADER: str(self.epoch)}

    def register(self, **changes: Any) -> httpx.Response:
        """Register (again); keeps the identity that was answered."""
        self.body.update(changes)
        response = self.rest.send("POST", "/v1/workers", json=self.body)
        if response.is_success:
            self.worker_id = response.json()["worker_id"]
            self.epoch = response.json()["epoch"]
        return response

    def send(self, method: str, path: str, **options: Any) -> httpx.Response:
        """A fenced call."""
        return self.rest.send(method, path, headers=self.headers, **options)

    def heartbeat(self) -> httpx.Response:
        """Renew the lease."""
        return self.send("POST", f"/v1/workers/{self.worker_id}/heartbeat")

    def put_layout(self, layout: Layout = LAYOUT) -> httpx.Response:
        """Upload a layout."""
        return self.rest.send(
            "PUT",
            f"/v1/models/{self.model}/layouts/{layout_digest(layout)}",
            content=pack_layout(layout),
            headers={**self.headers, "Content-Type": LAYOUT_MEDIA_TYPE},
        )

    def open(self, step: int, *, world_size: int = 1, shards: int = 1, **more: Any) -> httpx.Response:
        """Open a version."""
        body = {"run": self.body["run"], "step": step, "world_size": world_size, "shards": shards, **more}
        return self.send("POST", f"/v1/models/{self.model}/versions", json=body)

    def publish(self, version: int, *, shard: int = 0, slot: int | None = None, **more: Any) -> httpx.Response:
        """Publish this rank's shard."""
        slot = self.body["rank"] if slot is None else slot
        body = {
            "shard": shard,
            "layout_digest": LAYOUT_DIGEST,
            "digest_root": digest(f"{version}/{shard}"),
            "nbytes": NBYTES,
            "memory_slot": version % 2,
            "slot_generation": version,
            **more,
        }
        return self.send("PUT", f"/v1/models/{self.model}/versions/{version}/shards/{slot}", json=body)

    def release(self, step: int) -> int:
        """Open and publish a version by this one trainer; returns its number."""
        number = int(self.open(step).raise_for_status().json()["version"])
        assert self.publish(number).raise_for_status().json()["state"] == "ready"
        return number

    def pull(self, *, have: int = 0, wait: float = 0) -> httpx.Response:
        """Ask for the next assignment."""
        body = {"have_version": have}
        return self.send("POST", f"/v1/models/{self.model}/pulls", params={"wait": wait}, json=body)

    def report(self, pull_id: str, state: str, *, wait: float = 0, **more: Any) -> httpx.Response:
        """Move a pull along."""
        return self.send("PATCH", f"/v1/pulls/{pull_id}", params={"wait": wait}, json={"state": state, **more})

    def apply(self, assignment: Json) -> None:
        """Walk an assignment to APPLIED."""
        pull_id = assignment["pull"]["pull_id"]
        self.report(pull_id, "staged", bytes_done=NBYTES, fetch_seconds=0.01, transport="test").raise_for_status()
        granted = self.report(pull_id, "applying", wait=5).raise_for_status().json()
        assert granted["state"] == "applying"
        self.report(pull_id, "applied", pause_seconds=0.001).raise_for_status()


class Rest:
    """Plain HTTP against one server. Threads may share it."""

    def __init__(self, url: str, token: str | None = None) -> None:
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=32)
        self.client = httpx.Client(base_url=url, headers=headers, trust_env=False, timeout=30, limits=limits)

    def close(self) -> None:
        """Close the connections."""
        self.client.close()

    def send(self, method: str, path: str, **options: Any) -> httpx.Response:
        """One request."""
        return self.client.request(method, path, **options)

    def get(self, path: str, **params: Any) -> Json:
        """The body of a successful GET."""
        answer: Json = self.send("GET", path, params=params).raise_for_status().json()
        return answer

    def gauge(self, name: str) -> float:
        """Value of a metric by its name with labels."""
        for line in self.send("GET", "/metrics").raise_for_status().text.splitlines():
            if line.startswith(name + " "):
                return float(line.rsplit(" ", 1)[1])
        return 0.0

    def trainer(self, model: str, rank: int = 0, *, world_size: int = 1, run: str = "run-1", **more: Any) -> Member:
        """A registered trainer that has uploaded the layout."""
        body = {
            "model": model,
            "role": "trainer",
            "rank": rank,
            "world_size": world_size,
            "run": run,
            "incarnation": uuid.uuid4().hex,
            "agents": [agent(f"{model}.t{rank}")],
            "memory": memory(),
            **more,
        }
        member = Member(self, body)
        member.register().raise_for_status()
        member.put_layout().raise_for_status()
        return member

    def rollout(self, model: str, replica: str = "r0", rank: int = 0, *, world_size: int = 1, **more: Any) -> Member:
        """A registered rollout."""
        body = {
            "model": model,
            "role": "rollout",
            "rank": rank,
            "world_size": world_size,
            "replica": replica,
            "incarnation": uuid.uuid4().hex,
            "agents": [agent(f"{model}.{replica}.{rank}", "fetch")],
            **more,
        }
        member = Member(self, body)
        member.register().raise_for_status()
        return member
