"""The verdict: verified only when every applied version is, bit for bit, what every trainer published."""

from __future__ import annotations

import json

import pytest
from weightcast.demo.reports import Applied, Published, Refitted, Report, decode_report, encode_line
from weightcast.demo.scoreboard import Scoreboard


def published(version: int, rank: int = 0, digest: str | None = None) -> Published:
    return Published(rank=rank, version=version, step=version * 10, digest=digest or f"d{version}", seconds=0.1)


def applied(version: int, replica: str, *, digest: str | None = None, loss: float | None = None) -> Applied:
    return Applied(
        replica=replica,
        version=version,
        digest=digest or f"d{version}",
        held_out_loss=6.0 - version if loss is None else loss,
        text="x",
        nbytes=100,
        fetch_seconds=0.01,
        pause_seconds=version / 100,
        transport="cma",
    )


def good_run() -> list[Report]:
    reports: list[Report] = []
    for version in (1, 2):
        reports += [published(version, rank) for rank in (0, 1)]
        reports += [applied(version, replica) for replica in ("a", "b")]
        reports.append(Refitted(version=version, seconds=0.25))
    return reports


def board_of(reports: list[Report]) -> Scoreboard:
    board = Scoreboard(trainers=2, replicas=["a", "b"], versions=2)
    for report in reports:
        board.add(decode_report(encode_line(report)))
    return board


def test_a_good_run() -> None:
    board = board_of(good_run())
    assert board.complete
    assert board.objections() == []
    assert json.loads(board.result().to_json()) == {
        "versions": 2,
        "trainers": 2,
        "rollouts": 2,
        "applied": {"a": 2, "b": 2},
        "verified": True,
        "bytes_pulled": 400,
        "refit_seconds": [0.25, 0.25],
        "pause_seconds": [0.01, 0.02],
        "loss_first": 5.0,
        "loss_last": 4.0,
    }


@pytest.mark.parametrize(
    ("index", "replacement", "complaint"),
    [
        (2, applied(1, "a", digest="other"), "weights of version 1 in a are not the trainers'"),
        (1, published(1, 1, "other"), "trainers' weights of version 1 differ"),
        (8, applied(3, "b"), "b applied version 3, which no trainer published"),
        (8, None, "not every version"),
        (6, None, "not every version"),
        (9, None, "not every version"),
    ],
)
def test_a_bad_run(index: int, replacement: Report | None, complaint: str) -> None:
    reports = good_run()
    reports[index : index + 1] = [] if replacement is None else [replacement]
    board = board_of(reports)
    assert any(complaint in objection for objection in board.objections())
    assert not board.result().verified


def test_a_loss_that_does_not_fall_is_no_success() -> None:
    reports = good_run()
    reports[7] = applied(2, "a", loss=5.5)
    board = board_of(reports)
    assert board.result().verified
    assert board.objections() == ["the held-out loss did not fall (5.0 → 5.5)"]


def test_nothing_reported_is_nothing_verified() -> None:
    result = board_of([]).result(error="interrupted")
    assert not result.verified
    assert result.loss_first is None
    assert json.loads(result.to_json())["error"] == "interrupted"


def test_lag_counts_the_versions_that_a_replica_has_not() -> None:
    board = board_of([published(4), published(7), applied(4, "a")])
    assert board.lag("a") == 1
    assert board.lag("b") == 2
    assert board.step(7) == 70
    assert board.step(8) is None
