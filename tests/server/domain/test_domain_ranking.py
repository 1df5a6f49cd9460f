"""The order of sources: near before far, idle before busy, equals spread, oneself never."""

from __future__ import annotations

from collections import Counter

import hypothesis.strategies as st
from hypothesis import given
from weightcast_server.domain.ranking import Candidate, Place, distance, rank_sources

names = st.sampled_from(["a", "b", "c"])
places = st.builds(Place, names, st.none() | names, st.none() | names)
ids = st.sampled_from([f"w{index}" for index in range(8)])
candidates = st.lists(
    st.builds(Candidate, ids, places, st.integers(0, 3)), max_size=8, unique_by=lambda candidate: candidate.worker_id
)


@given(ids, places, st.sets(ids, max_size=4), candidates)
def test_the_order_follows_the_rules(reader: str, place: Place, excluded: set[str], found: list[Candidate]) -> None:
    order = rank_sources(reader, place, excluded, found)
    assert sorted(order) == sorted({candidate.worker_id for candidate in found} - {reader})
    by_id = {candidate.worker_id: candidate for candidate in found}
    keys = [(name in excluded, distance(place, by_id[name].place), by_id[name].readers) for name in order]
    assert keys == sorted(keys)
    assert order == rank_sources(reader, place, excluded, list(reversed(found))), "no matter how they were listed"


def test_distance() -> None:
    here = Place("h", "r", "z")
    assert distance(here, Place("h")) == 0
    assert distance(here, Place("x", "r", "other")) == 1
    assert distance(here, Place("x", "y", "z")) == 2
    assert distance(here, Place("x", None, None)) == 3
    assert distance(Place("x"), Place("y")) == 3, "two unknown racks are not the same rack"


def test_equal_sources_are_chosen_equally_often() -> None:
    found = [Candidate(f"source-{index}", Place("h"), 0) for index in range(4)]
    firsts = Counter(rank_sources(f"reader-{index}", Place("x"), (), found)[0] for index in range(400))
    assert set(firsts) == {candidate.worker_id for candidate in found}
    assert max(firsts.values()) < 2 * min(firsts.values())
