"""Digests: what they tell apart."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from weightcast.engines.digest import DIGEST_NBYTES, bucket_count, bucket_digest, digest_root

LAYOUT = "ab" * 32


@given(st.integers(0, 2**40), st.integers(1, 2**30))
def test_buckets_cover_every_byte_once(nbytes: int, bucket: int) -> None:
    count = bucket_count(nbytes, bucket)
    assert (count - 1) * bucket < nbytes <= count * bucket or (nbytes == 0 and count == 0)


@given(st.binary(min_size=2, max_size=300), st.data())
def test_flips_and_swaps_are_noticed(data: bytes, draw: st.DataObject) -> None:
    changed = bytearray(data)
    at = draw.draw(st.integers(0, len(data) - 1))
    other = draw.draw(st.integers(0, len(data) - 1))
    changed[at], changed[other] = changed[other], changed[at]
    if bytes(changed) == data:
        changed[at] ^= 1
    assert len(bucket_digest(data)) == DIGEST_NBYTES
    assert bucket_digest(bytes(changed)) != bucket_digest(data)


def test_exchanged_halves_are_noticed() -> None:
    gate, up = bytes(range(256)) * 16, bytes(reversed(range(256))) * 16
    assert bucket_digest(gate + up) != bucket_digest(up + gate)


def test_the_root_binds_table_layout_and_bucket_size() -> None:
    table = bucket_digest(b"x") + bucket_digest(b"y")
    roots = {
        digest_root(LAYOUT, 8, table),
        digest_root(LAYOUT, 16, table),
        digest_root("cd" * 32, 8, table),
        digest_root(LAYOUT, 8, table[16:] + table[:16]),
        digest_root(LAYOUT, 8, b""),
    }
    assert len(roots) == 5
