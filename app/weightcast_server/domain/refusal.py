"""A rule's negative answer."""

from __future__ import annotations

from dataclasses import dataclass

from weightcast.contract.problems import Code


@dataclass(frozen=True, slots=True)
class Refusal:
    """A request that a rule does not permit."""

    code: Code
    detail: str
