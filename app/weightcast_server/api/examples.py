"""One example per body; the tests check each against its model, so the documentation cannot drift."""

from __future__ import annotations

from typing import Any, Final

Example = dict[str, Any]

_DIGEST: Final = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
_PULL_ID: Final = "5f0c3a1e9d7b4c62a8e1f4b0c2d39e77"

AGENT: Final[Example] = {
    "name": "policy-trainer-0.4f2a91c07be3",
    "purpose": "serve",
    "metadata": "bml4bCBhZ2VudCBtZXRhZGF0YQ==",
    "metadata_digest": _DIGEST,
}
SLOT: Final[Example] = {
    "kind": "DRAM",
    "device_id": 0,
    "header_address": "140187732541440",
    "table_address": "140187732541504",
    "table_nbytes": 4096,
    "data_address": "140187732545600",
    "data_nbytes": 268435456,
}
MEMORY: Final[Example] = {"bucket_nbytes": 1048576, "slots": [SLOT]}
REGISTER_TRAINER: Final[Example] = {
    "model": "policy",
    "role": "trainer",
    "rank": 0,
    "world_size": 2,
    "incarnation": "0b5e7a4dc1f84e0fb4a6d2c93f7e8a11",
    "contract_version": 1,
    "run": "grpo-2026-07",
    "host": "node-3",
    "rack": "rack-1",
    "agents": [AGENT],
    "memory": MEMORY,
}
REGISTER_ROLLOUT: Final[Example] = {
    "model": "policy",
    "role": "rollout",
    "rank": 0,
    "world_size": 1,
    "incarnation": "c2d7f60e5b1a4b7f9a3e8d41f06b25cc",
    "replica": "r0",
    "host": "node-7",
    "highest_version": 6,
    "serving_version": 6,
}
REGISTRATION: Final[Example] = {
    "worker_id": "policy:trainer:0",
    "epoch": 3,
    "contract_version": 1,
    "lease_seconds": 15.0,
    "heartbeat_seconds": 2.5,
    "revision": 12,
    "registered_at": 1780000000.0,
}
HEARTBEAT: Final[Example] = {"lease_seconds": 15.0, "heartbeat_seconds": 2.5, "revision": 12, "commands": []}
UPDATE_MEMORY: Final[Example] = {"agents": [AGENT], "memory": MEMORY}
WORKER: Final[Example] = {
    "worker_id": "policy:trainer:0",
    "model": "policy",
    "role": "trainer",
    "rank": 0,
    "world_size": 2,
    "epoch": 3,
    "state": "live",
    "run": "grpo-2026-07",
    "replica": None,
    "host": "node-3",
    "rack": "rack-1",
    "zone": None,
    "agents": ["policy-trainer-0.4f2a91c07be3"],
    "serving_version": None,
    "tainted": False,
    "registered_at": 1780000000.0,
    "heartbeat_age_seconds": 0.8,
}
WORKER_LIST: Final[Example] = {"items": [WORKER], "next_cursor": None}
REPLICA: Final[Example] = {
    "model": "policy",
    "replica": "r0",
    "generation": 1,
    "world_size": 1,
    "live_ranks": 1,
    "serving_version": 7,
    "staged_version": None,
    "tainted": False,
    "servable": True,
    "lag": 0,
    "pause_seconds": 0.041,
}
REPLICA_LIST: Final[Example] = {"items": [REPLICA], "next_cursor": None}
OPEN_VERSION: Final[Example] = {"run": "grpo-2026-07", "step": 140, "attempt": 0, "world_size": 2, "shards": 1}
PUBLISH_SHARD: Final[Example] = {
    "shard": 0,
    "layout_digest": _DIGEST,
    "digest_root": _DIGEST,
    "nbytes": 268435456,
    "memory_slot": 0,
    "slot_generation": 7,
}
ABORT_VERSION: Final[Example] = {"reason": "loss is not finite"}
VERSION: Final[Example] = {
    "model": "policy",
    "version": 7,
    "run": "grpo-2026-07",
    "step": 140,
    "attempt": 0,
    "state": "ready",
    "failure": None,
    "reason": None,
    "world_size": 2,
    "shards": 1,
    "published": [0, 1],
    "nbytes": 268435456,
    "opened_at": 1780000100.0,
    "ready_at": 1780000100.4,
    "failed_at": None,
    "available": True,
    "holdings": [{"worker_id": "policy:trainer:0", "epoch": 3, "shard": 0, "state": "held", "readers": 1}],
    "applied": ["r0"],
    "live_replicas": 2,
}
VERSION_LIST: Final[Example] = {"items": [VERSION], "next_cursor": "6"}
TARGET: Final[Example] = {"model": "policy", "revision": 12, "version": 7, "step": 140, "ready_at": 1780000100.4}
DRAINED: Final[Example] = {"drained": True, "readers": 0}
MODEL: Final[Example] = {**TARGET, "run": "grpo-2026-07"}
MODEL_LIST: Final[Example] = {"items": [MODEL], "next_cursor": None}
REQUEST_PULL: Final[Example] = {"have_version": 6, "exclude": []}
PULL: Final[Example] = {
    "pull_id": _PULL_ID,
    "model": "policy",
    "version": 7,
    "step": 140,
    "worker_id": "policy:rollout:r0:0",
    "epoch": 2,
    "replica": "r0",
    "rank": 0,
    "attempt": 0,
    "state": "assigned",
    "failure": None,
    "reason": None,
    "failed_source": None,
    "sources": ["policy:trainer:0"],
    "nbytes": 268435456,
    "bytes_done": 0,
    "fetch_seconds": None,
    "pause_seconds": None,
    "transport": None,
    "assigned_at": 1780000100.5,
    "updated_at": 1780000100.5,
}
PULL_LIST: Final[Example] = {"items": [PULL], "next_cursor": None}
ASSIGNMENT: Final[Example] = {
    "pull": PULL,
    "shards": [
        {
            "shard": 0,
            "layout_digest": _DIGEST,
            "digest_root": _DIGEST,
            "nbytes": 268435456,
            "sources": [
                {
                    "worker_id": "policy:trainer:0",
                    "epoch": 3,
                    "host": "node-3",
                    "agent": AGENT,
                    "memory": SLOT,
                    "bucket_nbytes": 1048576,
                    "slot_generation": 7,
                }
            ],
        }
    ],
    "revision": 12,
}
PULL_FETCHING: Final[Example] = {"state": "fetching", "bytes_done": 67108864}
PULL_STAGED: Final[Example] = {
    "state": "staged",
    "bytes_done": 268435456,
    "fetch_seconds": 0.021,
    "transport": "cma",
    "digest": _DIGEST,
}
PULL_APPLYING: Final[Example] = {"state": "applying"}
PULL_APPLIED: Final[Example] = {"state": "applied", "pause_seconds": 0.041}
PULL_FAILED: Final[Example] = {
    "state": "failed",
    "failure": "source_stalled",
    "failed_source": "policy:trainer:0",
    "reason": "no bytes for 0.2 s",
}
STATUS: Final[Example] = {"status": "ok"}
