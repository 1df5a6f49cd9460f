"""What host memory counts as available."""

from __future__ import annotations

from pathlib import Path

import pytest
from weightcast import memory
from weightcast.memory import HostBuffer, OutOfMemoryError, cgroup_available_nbytes

V2_STAT = "anon 300\nfile 600\ninactive_anon 1\nactive_file 200\ninactive_file 400\n"
V1_STAT = "cache 9\ninactive_file 1\ntotal_cache 600\ntotal_inactive_file 400\n"


@pytest.mark.parametrize(
    ("limit", "used", "stat", "field", "available"),
    [
        ("1000\n", "900\n", V2_STAT, "inactive_file", 500),
        ("1000\n", "900\n", V1_STAT, "total_inactive_file", 500),
        ("max\n", "900\n", V2_STAT, "inactive_file", None),
        ("1000\n", "900\n", "", "inactive_file", 100),
        ("1000\n", "300\n", V2_STAT, "inactive_file", 1000),  # never more than the limit
        ("1000\n", "1500\n", V2_STAT, "inactive_file", -100),
    ],
)
def test_inactive_page_cache_of_a_cgroup_is_available(
    limit: str, used: str, stat: str, field: str, available: int | None
) -> None:
    assert cgroup_available_nbytes(limit, used, stat, field) == available


@pytest.mark.parametrize("contents", [("", "1", ""), ("1", "", ""), ("1", "1", "inactive_file many"), ("1", "1", "x")])
def test_unreadable_contents_are_a_value_error(contents: tuple[str, str, str]) -> None:
    with pytest.raises(ValueError, match=r"."):
        cgroup_available_nbytes(*contents, "inactive_file")


def test_a_buffer_over_the_limit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("limit", "used", "stat")
    for name, text in zip(names, ("40960\n", "40000\n", "inactive_file 8192\n"), strict=True):
        (tmp_path / name).write_text(text)
    missing = (*(str(tmp_path / "missing") for _ in names), "inactive_file")
    present = (*(str(tmp_path / name) for name in names), "inactive_file")
    monkeypatch.setattr(memory, "_CGROUP_FILES", (missing, present))
    assert HostBuffer(8192, "fits").address
    with pytest.raises(OutOfMemoryError, match="9,152 available"):
        HostBuffer(9153, "does not fit")
