"""Cursors and pages of the listings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from weightcast.contract.names import MAX_INT
from weightcast.contract.problems import Code

from weightcast_server.store.protocol import StoreRefusal

T = TypeVar("T")


def number_cursor(cursor: str | None) -> int:
    """Where a listing that runs down from the newest continues: below this number."""
    if cursor is None:
        return MAX_INT + 1
    if not (cursor.isascii() and cursor.isdigit() and len(cursor) <= 16):
        raise StoreRefusal(Code.VALIDATION_FAILED, "the cursor is not one of this listing")
    return int(cursor)


def cut(rows: Sequence[T], limit: int) -> tuple[Sequence[T], bool]:
    """The page, and whether there is more, of rows that were read with one beyond the limit."""
    return rows[:limit], len(rows) > limit
