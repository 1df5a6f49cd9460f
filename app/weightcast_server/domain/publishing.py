"""Whether a shard may be published, and what it makes of its version."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from weightcast.contract.names import VersionFailure, VersionState
from weightcast.contract.problems import Code
from weightcast.contract.versions import PublishShard

from weightcast_server.domain.refusal import Refusal


@dataclass(frozen=True, slots=True)
class Publication:
    """The content that fills a slot of a version, and the epoch of the worker that holds it."""

    epoch: int
    slot: int
    shard: int
    layout_digest: str
    digest_root: str
    nbytes: int
    memory_slot: int
    slot_generation: int

    @classmethod
    def of(cls, epoch: int, slot: int, body: PublishShard) -> Publication:
        """The publication that a request asks for."""
        return cls(
            epoch,
            slot,
            body.shard,
            body.layout_digest,
            body.digest_root,
            body.nbytes,
            body.memory_slot,
            body.slot_generation,
        )

    def same_bytes(self, other: Publication) -> bool:
        """Whether both are the same slot's same shard with the same bytes, wherever they lie."""
        return (self.slot, self.shard, self.layout_digest, self.digest_root, self.nbytes) == (
            other.slot,
            other.shard,
            other.layout_digest,
            other.digest_root,
            other.nbytes,
        )


@dataclass(frozen=True, slots=True)
class Replay:
    """The slot holds this very content already."""


@dataclass(frozen=True, slots=True)
class OfferAgain:
    """A READY version's shard, unchanged, from its own rank under a newer epoch: only who holds it is new."""


@dataclass(frozen=True, slots=True)
class Accept:
    """Write the publication."""


@dataclass(frozen=True, slots=True)
class Fail:
    """The publication proves the version broken: fail it, and say so."""

    failure: VersionFailure
    detail: str


def check_slot(slot: int, shard: int, rank: int, world_size: int, shards: int) -> Refusal | None:
    """Whether a rank may fill this slot with this shard."""
    if slot >= world_size:
        return Refusal(Code.VERSION_CONFLICT, f"slot {slot} is not below the version's world size {world_size}")
    if slot != rank:
        return Refusal(Code.VALIDATION_FAILED, f"rank {rank} fills slot {rank}, not {slot}")
    if shard >= shards:
        return Refusal(Code.VALIDATION_FAILED, f"shard {shard} is not below the version's {shards} shards")
    return None


def check_memory(nbytes: int, layout_nbytes: int, memory_slot: int, slots: Collection[int]) -> Refusal | None:
    """Whether the registered memory slot can hold the shard. ``slots``: bytes of each registered slot, in order."""
    if nbytes != layout_nbytes:
        return Refusal(Code.VALIDATION_FAILED, f"nbytes is {nbytes}, the layout's is {layout_nbytes}")
    sizes = list(slots)
    if memory_slot >= len(sizes):
        return Refusal(Code.VALIDATION_FAILED, f"memory slot {memory_slot} is not among the {len(sizes)} registered")
    if sizes[memory_slot] < nbytes:
        return Refusal(
            Code.VALIDATION_FAILED, f"memory slot {memory_slot} has {sizes[memory_slot]} bytes, the shard {nbytes}"
        )
    return None


def decide_publication(
    state: VersionState, new: Publication, existing: Publication | None, peer: Publication | None
) -> Replay | OfferAgain | Accept | Fail | Refusal:
    """Decide over a shard.

    Args:
        state: the version's state.
        new: what is published.
        existing: what the same slot holds already.
        peer: any publication of the same shard by another slot (all of them are equal).
    """
    if existing == new and state is not VersionState.FAILED:
        return Replay()
    if state is VersionState.READY and existing is not None and existing.same_bytes(new) and new.epoch > existing.epoch:
        return OfferAgain()
    if state is not VersionState.STAGING:
        return Refusal(Code.VERSION_STATE, f"the version is {state}")
    if existing is not None:
        return Refusal(Code.SHARD_CONFLICT, f"slot {new.slot} was published with other content")
    if peer is not None:
        if peer.layout_digest != new.layout_digest:
            return Fail(
                VersionFailure.REPLICA_LAYOUT_MISMATCH,
                f"slots {peer.slot} and {new.slot} published shard {new.shard} with different layouts",
            )
        if peer.digest_root != new.digest_root:
            return Fail(
                VersionFailure.REPLICA_DIGEST_MISMATCH,
                f"slots {peer.slot} and {new.slot} published shard {new.shard} with different bytes",
            )
    return Accept()


def decide_completion(world_size: int, shards: int, published: int, covered: Collection[int]) -> VersionState | Fail:
    """What a version is after ``published`` slots, which cover the shards ``covered``."""
    if published < world_size:
        return VersionState.STAGING
    missing = sorted(set(range(shards)).difference(covered))
    if missing:
        names = ", ".join(map(str, missing[:8])) + (" …" if len(missing) > 8 else "")
        return Fail(VersionFailure.SHARDS_INCOMPLETE, f"all {world_size} slots published, but not shards {names}")
    return VersionState.READY
