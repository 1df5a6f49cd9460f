"""What a shard makes of its version, and which version is the target."""

from __future__ import annotations

from dataclasses import replace

import hypothesis.strategies as st
import pytest
from hypothesis import given
from weightcast.contract.names import VersionFailure, VersionState
from weightcast.contract.problems import Code
from weightcast_server.domain.availability import Coverage, choose_target, is_available
from weightcast_server.domain.publishing import (
    Accept,
    Fail,
    OfferAgain,
    Publication,
    Replay,
    check_memory,
    check_slot,
    decide_completion,
    decide_publication,
)
from weightcast_server.domain.refusal import Refusal

NEW = Publication(1, 0, 0, "layout", "root", 8, 0, 1)
STAGING, READY, FAILED = VersionState.STAGING, VersionState.READY, VersionState.FAILED


@pytest.mark.parametrize(
    ("state", "existing", "peer", "expected"),
    [
        (STAGING, None, None, Accept),
        (STAGING, None, replace(NEW, slot=3, epoch=9, memory_slot=1, slot_generation=7), Accept),
        (STAGING, NEW, None, Replay),
        (READY, NEW, None, Replay),
        (FAILED, NEW, None, Code.VERSION_STATE),
        (READY, None, None, Code.VERSION_STATE),
        (READY, replace(NEW, epoch=2), None, Code.VERSION_STATE),
        (READY, replace(NEW, epoch=0, memory_slot=1, slot_generation=7), None, OfferAgain),
        (READY, replace(NEW, epoch=0, digest_root="x"), None, Code.VERSION_STATE),
        (FAILED, replace(NEW, epoch=0), None, Code.VERSION_STATE),
        (STAGING, replace(NEW, slot_generation=2), None, Code.SHARD_CONFLICT),
        (STAGING, replace(NEW, digest_root="x"), None, Code.SHARD_CONFLICT),
        (STAGING, None, replace(NEW, layout_digest="x", digest_root="y"), VersionFailure.REPLICA_LAYOUT_MISMATCH),
        (STAGING, None, replace(NEW, digest_root="x"), VersionFailure.REPLICA_DIGEST_MISMATCH),
        (FAILED, None, replace(NEW, digest_root="x"), Code.VERSION_STATE),
    ],
)
def test_publications(
    state: VersionState, existing: Publication | None, peer: Publication | None, expected: object
) -> None:
    decision = decide_publication(state, NEW, existing, peer)
    match decision:
        case Refusal():
            assert decision.code == expected
        case Fail():
            assert decision.failure == expected
        case _:
            assert type(decision) is expected


@given(st.integers(1, 12), st.integers(1, 12), st.integers(0, 12), st.sets(st.integers(0, 11)))
def test_ready_is_all_slots_and_all_shards(world: int, shards: int, published: int, covered: set[int]) -> None:
    decision = decide_completion(world, shards, published, covered)
    complete = covered >= set(range(shards))
    if published < world:
        assert decision is STAGING
    elif complete:
        assert decision is READY
    else:
        assert isinstance(decision, Fail)
        assert decision.failure is VersionFailure.SHARDS_INCOMPLETE


@pytest.mark.parametrize(
    ("slot", "shard", "code"),
    [(1, 0, None), (1, 2, Code.VALIDATION_FAILED), (0, 0, Code.VALIDATION_FAILED), (4, 0, Code.VERSION_CONFLICT)],
)
def test_slots(slot: int, shard: int, code: Code | None) -> None:
    refusal = check_slot(slot, shard, rank=1, world_size=4, shards=2)
    assert (refusal.code if refusal else None) == code


@given(st.integers(0, 20), st.integers(0, 20), st.integers(0, 4), st.lists(st.integers(0, 20), max_size=4))
def test_memory_holds_what_is_published(nbytes: int, layout: int, slot: int, sizes: list[int]) -> None:
    fits = nbytes == layout and slot < len(sizes) and nbytes <= sizes[slot]
    assert (check_memory(nbytes, layout, slot, sizes) is None) == fits


coverages = st.builds(
    Coverage,
    st.integers(1, 99),
    st.sampled_from(VersionState),
    st.integers(1, 3),
    st.lists(st.integers(0, 2), max_size=4),
).filter(lambda coverage: all(shard < coverage.shards for shard in coverage.covered))


@given(st.lists(coverages, unique_by=lambda coverage: coverage.version))
def test_the_target_is_the_newest_available(versions: list[Coverage]) -> None:
    newest_first = sorted(versions, key=lambda coverage: -coverage.version)
    target = choose_target(newest_first)
    available = [coverage.version for coverage in versions if is_available(coverage)]
    assert target == max(available, default=None)
    for coverage in versions:
        if is_available(coverage):
            assert coverage.state is READY
            assert set(coverage.covered) == set(range(coverage.shards))
