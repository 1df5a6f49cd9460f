"""The states of a pull, where ranks meet, when they may apply, and what a replica serves."""

from __future__ import annotations

import itertools
from dataclasses import replace

import hypothesis.strategies as st
import pytest
from hypothesis import given
from weightcast.contract.names import PullState
from weightcast_server.domain.pulls import (
    OPEN,
    READING,
    Permit,
    Rank,
    Step,
    decide_permit,
    decide_step,
    meeting_versions,
    taints,
)
from weightcast_server.domain.replicas import view_replica

ALLOWED = {
    ("assigned", "fetching"),
    ("assigned", "staged"),
    ("assigned", "failed"),
    ("fetching", "staged"),
    ("fetching", "failed"),
    ("staged", "applying"),
    ("staged", "failed"),
    ("applying", "applied"),
    ("applying", "failed"),
}


@pytest.mark.parametrize(("current", "wanted"), list(itertools.product(PullState, PullState)))
def test_every_pair_of_states(current: PullState, wanted: PullState) -> None:
    expected = Step.SAME if current is wanted else Step.MOVE if (current, wanted) in ALLOWED else Step.REFUSED
    assert decide_step(current, wanted) is expected


def test_what_taints() -> None:
    assert {state for state in OPEN if taints(state, reported=None)} == {PullState.APPLYING}
    assert not any(taints(state, reported=False) for state in OPEN)
    assert all(taints(state, reported=True) for state in OPEN)
    assert READING < OPEN


@st.composite
def rank(draw: st.DrawFn, number: int) -> Rank:
    state = draw(st.sampled_from([None, *sorted(OPEN)]))
    return Rank(
        rank=number,
        live=draw(st.sampled_from([True, True, True, False])),
        serving_version=draw(st.none() | st.integers(1, 3)),
        tainted=draw(st.sampled_from([False, False, False, True])),
        pull_version=draw(st.integers(1, 3)) if state is not None else None,
        pull_state=state,
    )


@st.composite
def replicas(draw: st.DrawFn) -> list[Rank]:
    size = draw(st.integers(1, 3))
    return [draw(rank(number)) for number in range(size)]


@given(replicas(), st.integers(1, 3))
def test_the_permit_needs_every_other_rank(ranks: list[Rank], version: int) -> None:
    mine, siblings = ranks[0], ranks[1:]
    permit = decide_permit(version, len(ranks), mine.rank, siblings)
    ready = [
        other
        for other in siblings
        if other.live
        and (
            (other.serving_version == version and not other.tainted)
            or (other.pull_version == version and other.pull_state in (PullState.STAGED, PullState.APPLYING))
        )
    ]
    assert (permit is Permit.GRANTED) == (len(ready) == len(siblings))
    if permit is Permit.SUPERSEDED:
        assert any(other.live and (other.pull_version or 0) > version for other in siblings)
    if siblings:
        assert decide_permit(version, len(ranks) + 1, mine.rank, siblings) is not Permit.GRANTED, "a rank is missing"


@given(replicas(), st.integers(0, 3))
def test_ranks_meet_above_what_they_have(ranks: list[Rank], have: int) -> None:
    versions = meeting_versions(have, ranks)
    assert versions == sorted(set(versions), reverse=True)
    assert all(version > have for version in versions)
    for other in ranks:
        if other.live and other.pull_version is not None and other.pull_version > have:
            assert other.pull_version in versions
    assert not meeting_versions(have, [replace(other, live=False) for other in ranks])


@given(replicas())
def test_a_replica_serves_only_as_a_whole(ranks: list[Rank]) -> None:
    view = view_replica(len(ranks), ranks)
    assert view.live_ranks == sum(other.live for other in ranks)
    assert view.tainted == any(other.tainted for other in ranks)
    whole = all(other.live and not other.tainted and other.serving_version for other in ranks)
    one = len({other.serving_version for other in ranks}) == 1
    assert view.servable == (whole and one)
    assert view.serving_version == (ranks[0].serving_version if whole and one else None)
    if view.staged_version is not None:
        assert all(other.live and other.has_staged(view.staged_version) for other in ranks)
    beyond = [*ranks, Rank(len(ranks), True, 9, True, None, None)]
    assert view_replica(len(ranks), beyond) == view, "a rank of a former, larger replica does not count"
    assert not view_replica(len(ranks) + 1, ranks).servable
