"""What the reports add up to: a pure account of the run and its verdict."""

from __future__ import annotations

from collections import defaultdict

import msgspec

from weightcast.demo.reports import Applied, Published, Refitted, Report, Trained


class DemoResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The outcome as ``weightcast demo --json`` prints it."""

    versions: int
    trainers: int
    rollouts: int
    applied: dict[str, int]
    verified: bool
    bytes_pulled: int
    refit_seconds: list[float]
    pause_seconds: list[float]
    loss_first: float | None
    loss_last: float | None
    error: str | None = None

    def to_json(self) -> str:
        """One line of JSON."""
        return msgspec.json.encode(self).decode()


class Scoreboard:
    """Collects reports in any order."""

    def __init__(self, *, trainers: int, replicas: list[str], versions: int) -> None:
        self.trainers = trainers
        self.replicas = replicas
        self.versions = versions
        self.trained: Trained | None = None
        self.published: dict[int, dict[int, Published]] = defaultdict(dict)
        self.refits: dict[int, float] = {}
        self.applied: dict[str, list[Applied]] = {replica: [] for replica in replicas}

    def add(self, report: Report) -> None:
        """Take a report into account."""
        match report:
            case Trained():
                self.trained = report
            case Published():
                self.published[report.version][report.rank] = report
            case Refitted():
                self.refits[report.version] = report.seconds
            case Applied():
                self.applied[report.replica].append(report)
            case _:
                pass

    @property
    def newest(self) -> int:
        """Highest version that a trainer has published; 0 before the first."""
        return max(self.published, default=0)

    def step(self, version: int) -> int | None:
        """Training step that a version was made after."""
        return next((part.step for part in self.published.get(version, {}).values()), None)

    def serving(self, replica: str) -> int:
        """Version that a replica computes with; 0 before the first."""
        applied = self.applied[replica]
        return applied[-1].version if applied else 0

    def lag(self, replica: str) -> int:
        """Versions that a replica is behind the newest."""
        serving = self.serving(replica)
        return sum(version > serving for version in self.published)

    def losses(self, version: int) -> list[float]:
        """Held-out losses that replicas measured with a version."""
        return [each.held_out_loss for reports in self.applied.values() for each in reports if each.version == version]

    @property
    def complete(self) -> bool:
        """Whether all versions were published by all trainers, and the last is in use and tried out everywhere."""
        return (
            len(self.published) >= self.versions
            and all(len(parts) == self.trainers for parts in self.published.values())
            and self.newest in self.refits
            and all(self.serving(replica) == self.newest for replica in self.replicas)
        )

    def mismatches(self) -> list[str]:
        """Every version whose weights differ somewhere, in words."""
        found = []
        for version, parts in sorted(self.published.items()):
            if len({part.digest for part in parts.values()}) > 1:
                found.append(f"the trainers' weights of version {version} differ")
        for replica, reports in self.applied.items():
            for report in reports:
                parts = self.published.get(report.version, {})
                if not parts:
                    found.append(f"{replica} applied version {report.version}, which no trainer published")
                elif any(part.digest != report.digest for part in parts.values()):
                    found.append(f"the weights of version {report.version} in {replica} are not the trainers'")
        return found

    def result(self, error: str | None = None) -> DemoResult:
        """The account so far."""
        every = [report for reports in self.applied.values() for report in reports]
        pauses: dict[int, float] = {}
        for report in every:
            pauses[report.version] = max(report.pause_seconds, pauses.get(report.version, 0.0))
        seen = sorted(pauses)
        return DemoResult(
            versions=len(self.published),
            trainers=self.trainers,
            rollouts=len(self.replicas),
            applied={replica: self.serving(replica) for replica in self.replicas},
            verified=self.complete and not self.mismatches(),
            bytes_pulled=sum(report.nbytes for report in every),
            refit_seconds=[round(self.refits[version], 4) for version in sorted(self.refits)],
            pause_seconds=[round(pauses[version], 5) for version in seen],
            loss_first=round(max(self.losses(seen[0])), 4) if seen else None,
            loss_last=round(max(self.losses(seen[-1])), 4) if seen else None,
            error=error,
        )

    def objections(self) -> list[str]:
        """Why the run is no success; empty when it is one."""
        found = self.mismatches()
        if not self.complete:
            found.append("not every version was published and the last one applied by every replica")
        result = self.result()
        if result.loss_first is None or result.loss_last is None or not result.loss_last < result.loss_first:
            found.append(f"the held-out loss did not fall ({result.loss_first} → {result.loss_last})")
        return found
