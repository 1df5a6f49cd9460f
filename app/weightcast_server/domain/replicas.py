"""What a replica serves: a pure view over its ranks."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from weightcast_server.domain.pulls import Rank


@dataclass(frozen=True, slots=True)
class ReplicaView:
    """A replica as its ranks are now."""

    live_ranks: int
    serving_version: int | None
    staged_version: int | None
    tainted: bool
    servable: bool


def view_replica(world_size: int, ranks: Collection[Rank]) -> ReplicaView:
    """Look at ranks 0..world_size-1; ranks beyond (of a former, larger replica) do not count."""
    members = [rank for rank in ranks if rank.rank < world_size]
    live = [rank for rank in members if rank.live]
    complete = len(live) == world_size
    serving = {rank.serving_version for rank in live if not rank.tainted}
    tainted = any(rank.tainted for rank in members)
    agreed = serving.pop() if complete and not tainted and len(serving) == 1 else None
    staged = {rank.pull_version for rank in live if rank.pull_version and rank.has_staged(rank.pull_version)}
    everyone_staged = complete and len(staged) == 1 and all(rank.has_staged(max(staged)) for rank in live)
    return ReplicaView(
        live_ranks=len(live),
        serving_version=agreed,
        staged_version=staged.pop() if everyone_staged else None,
        tainted=tainted,
        servable=agreed is not None,
    )
