"""The slot header: exact, and never taken for valid when it is not."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from weightcast.engines.header import HEADER_NBYTES, HeaderInvalidError, SlotHeader, model_key

U64, U32 = st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1)
HEADERS = st.builds(SlotHeader, U64, U64, U64, U64, U32, U32, U64)


@given(HEADERS)
def test_round_trip(header: SlotHeader) -> None:
    raw = header.pack()
    assert len(raw) == HEADER_NBYTES
    assert SlotHeader.unpack(raw) == header


@given(HEADERS, st.integers(0, HEADER_NBYTES - 1), st.integers(1, 255))
def test_any_changed_byte_is_noticed(header: SlotHeader, position: int, change: int) -> None:
    raw = bytearray(header.pack())
    raw[position] ^= change
    with pytest.raises(HeaderInvalidError):
        SlotHeader.unpack(bytes(raw))


@given(HEADERS, HEADERS, st.integers(1, HEADER_NBYTES - 1))
def test_a_torn_header_is_one_of_the_two_or_noticed(old: SlotHeader, new: SlotHeader, cut: int) -> None:
    torn = new.pack()[:cut] + old.pack()[cut:]
    with contextlib.suppress(HeaderInvalidError):
        assert SlotHeader.unpack(torn) in (old, new)


@given(HEADERS)
def test_a_slot_being_written_is_not_valid_and_its_generation_has_grown(header: SlotHeader) -> None:
    writing = header.writing()
    assert not writing.valid
    assert writing.generation >= header.generation
    assert writing.generation != header.generation or not header.valid


def test_sizes_are_checked_and_empty_memory_is_no_header() -> None:
    for size in (0, 1, 63, 65):
        with pytest.raises(HeaderInvalidError, match="64 bytes"):
            SlotHeader.unpack(bytes(size))
    with pytest.raises(HeaderInvalidError, match="no slot header"):
        SlotHeader.unpack(bytes(HEADER_NBYTES))


def test_a_fresh_slot_is_not_valid() -> None:
    assert not SlotHeader(1, 0, 0, 0, 0, 0, 0).valid


def test_models_have_different_keys() -> None:
    assert len({model_key(f"model-{index}") for index in range(1000)}) == 1000
