"""One SHA-256 over a whole set of weights: the demo's own check, independent of the transport's digests."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

import torch


def state_digest(tensors: Mapping[str, torch.Tensor]) -> str:
    """SHA-256 over names, dtypes, shapes and bytes of all tensors, in the order of their names."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().resolve_conj().resolve_neg().cpu().contiguous()
        head = json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode()
        # The length keeps the border between description and bytes where it is.
        digest.update(len(head).to_bytes(8, "little"))
        digest.update(head)
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
