"""Runs the steps of a race, one after the other, and takes down what comes out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bench.crew import Member, WorkerError
from bench.plan import AGED_FIELD, HOT_YEAR, RETAINED_ROWS, Do, Kind, Step
from bench.progress import Progress
from bench.results import Check, Failure, Measurement, Total
from bench.source import ROWS, Source, loaded

NOTHING = Total(0, 0)
# What an answer may have beside the seconds of the whole.
PARTS = ("all", "two", "incremental", "last", "ten", "load", "update", "find", "run", "clean")


@dataclass(slots=True)
class Ledger:
    """Knows what must be in a table, from the data sets alone."""

    source: Source
    accountant: Member
    _totals: dict[tuple[str, ...], Total] = field(default_factory=dict)

    def rows(self) -> int:
        """How many rows the big tables begin with."""
        return self._total(self.source.files(ROWS)).rows

    def expected(self, step: Step) -> Total:
        """The rows after the workload of a step, or those that it read."""
        if step.kind is Kind.AGED:
            retained = f"{AGED_FIELD} <= {step.count} and {RETAINED_ROWS}"
            return self._total(self.source.files(ROWS), retained)
        if step.kind is Kind.FEED:
            return self._changed(self.source.files(step.source))
        loaded_total = self._total(self.source.files(loaded(step.kind)))
        change = step.source or step.starts
        if not change or step.do is Do.LOAD:
            return loaded_total
        last = step.first + step.count if step.kind.is_tiny else None
        incoming = NOTHING if change == "delete" else self._total(self.source.files(change)[:last])
        after = loaded_total.with_change(
            incoming, self._total(self.source.files(f"{change}_old")[:last])
        )
        # Which updates a writer puts into base files at once is its own choice.
        return Total(after.rows, None) if step.optimized else after

    def _changed(self, commits: Sequence[str]) -> Total:
        last, ten = self._total(commits[-1:]), self._total(commits[-10:])
        return last.with_change(ten, NOTHING)

    def _total(self, files: Sequence[str], where: str = "") -> Total:
        key = (where, *files)
        if key not in self._totals:
            answer = self.accountant.send({"do": "sum", "files": list(files), "where": where})
            self._totals[key] = Total(answer["rows"], answer["checksum"])
        return self._totals[key]


@dataclass(slots=True)
class Race:
    """The state of a race that is being run."""

    crew: Mapping[str, Member]
    source: Source
    ledger: Ledger
    measurements: list[Measurement] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)

    def run(self, steps: Sequence[Step], progress: Progress) -> None:
        """All steps; a system that fails in a workload does not try that one again."""
        failed: set[tuple[str, str]] = set()
        for step in steps:
            progress.at(f"round {step.round + 1}  {step.workload}  {step.system}  {step.do}")
            if (step.workload, step.system) in failed:
                continue
            try:
                self._take(step)
            except WorkerError as error:
                failed.add((step.workload, step.system))
                self.failures.append(Failure(step.round, step.workload, step.system, str(error)))
                progress.say(f"{step.system} failed in {step.workload}: {str(error)[:300]}")

    def _take(self, step: Step) -> None:
        member = self.crew[step.process]
        request = request_of(step, self.source)
        answer = member.send_measured(request) if step.memory else member.send(request)
        names = (step.round, step.workload, step.system)
        if step.counted:
            parts: dict[str, list[float]] = {name: answer[name] for name in PARTS if name in answer}
            seconds = tuple(answer["seconds"])
            self.measurements.append(Measurement(*names, seconds, parts, answer.get("peak_bytes")))
        elif step.do is Do.CHECK:
            actual = Total(answer["rows"], answer["checksum"])
            self.checks.append(Check(*names, actual, self.ledger.expected(step)))


def request_of(step: Step, source: Source) -> dict[str, Any]:
    """What the process of a system is asked for a step."""
    if step.do in {Do.LOAD, Do.LIMIT_LOAD, Do.MAKE_AGED}:
        files = source.files(loaded(step.kind))
    elif step.do is Do.COMMITS:
        files = source.files(step.source)[step.first : step.first + step.count]
    else:
        # The bare work of a service reads what the table was changed by before.
        change = step.source or (step.starts if step.do is Do.LIMIT_REWRITE else "")
        files = source.files(change) if change else []
    return {
        "do": step.do,
        "kind": step.kind,
        "files": files,
        "partitions": [HOT_YEAR] if step.source == "hot" or step.kind.is_tiny else [],
        "optimized": step.optimized,
        "count": step.count,
        "counted": step.counted,
        "system": step.system,
    }
