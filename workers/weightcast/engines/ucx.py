"""UCX settings that this library chooses, each only where the user has not chosen otherwise."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

_ENVIRONMENT: Final = {
    # NIXL and UCX print errors that are caught and handled here.
    "NIXL_LOG_LEVEL": "ERROR",
    "UCX_LOG_LEVEL": "fatal",
    # READ over TCP is emulated in fragments of this size: 2.9 instead of 0.7–1.0 GB/s on loopback. Larger than the
    # peer's receive segment (64k unless set) crashes the receiver, so 64k is the most that is safe with any peer.
    "UCX_TCP_TX_SEG_SIZE": "64k",
    # A blackholed host otherwise blocks connecting for 134 s and an established link for 18 to 120 s.
    "UCX_TCP_SYN_CNT": "1",
    "UCX_TCP_USER_TIMEOUT": "5s",
    "UCX_TCP_KEEPIDLE": "2s",
    "UCX_TCP_KEEPINTVL": "1s",
    "UCX_TCP_KEEPCNT": "3",
}

MAX_RAILS: Final = 8
_INFINIBAND: Final = Path("/sys/class/infiniband")


def apply_environment() -> None:
    """Set the process environment before UCX reads it, which it does when the first agent is created."""
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)


def rdma_devices() -> list[str]:
    """Names of the RDMA devices of this host; empty without any."""
    try:
        return sorted(entry.name for entry in _INFINIBAND.iterdir())
    except OSError:
        return []


def backend_parameters() -> dict[str, str]:
    """Parameters of NIXL's UCX backend: errors of peers are reported, and every RDMA device is used.

    NIXL caps UCX at two rails; with more devices the cap is lifted to their number (at most 8).
    """
    parameters = {"ucx_error_handling_mode": "peer"}
    devices = len(rdma_devices())
    if devices > 2 and "UCX_MAX_RMA_RAILS" not in os.environ:
        parameters["engine_config"] = f"MAX_RMA_RAILS={min(devices, MAX_RAILS)}"
    return parameters


def shared_memory_allowed() -> bool:
    """Whether the user's transport list lets UCX read a local process's memory directly."""
    chosen = os.environ.get("UCX_TLS", "all").lower()
    if chosen.startswith("^"):
        return not {"sm", "shm", "cma"} & set(chosen[1:].split(","))
    return bool({"all", "sm", "shm", "cma", "xpmem", "knem"} & set(chosen.split(",")))


def remote_transport(shared_memory: bool, same_host: bool) -> str:
    """Name the transport of host-memory READs from what was observed.

    UCX does not say through NIXL what it chose, but behaviour does: a shared-memory copy (CMA) is always complete when
    the posting call returns.
    """
    if shared_memory:
        return "cma"
    return "rdma" if rdma_devices() and not same_host else "tcp"
