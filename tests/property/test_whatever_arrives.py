"""Random arrivals, compacted by event time: no query changes, and completion holds."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakewright.errors import ConflictError
from lakewright.model.plans import Skip
from lakewright.services.compaction.executor import BEYOND
from lakewright.table.snapshot import load_snapshot
from support.event_times import BEGIN, EXACT_SPLIT, HOUR, compact_before, event_row
from support.queries import BUCKET_INDEX, NON_BLOCKING, SERVICE_OPTIONS, run_queries
from support.soak import sized
from support.tables import NO_SERVICES, OPTIMISTIC, WrittenTable

KEYS = ["a", "b", "c"]
HOURS = [float(hour) for hour in range(1, 9)]

AT_ONCE = {
    "hoodie.compact.inline.trigger.strategy": "TIME_ELAPSED",
    "hoodie.compact.inline.max.delta.seconds": "0",
}


@dataclass(frozen=True)
class Kind:
    """How writers get along, and which index finds their rows."""

    mode: dict[str, str]
    options: dict[str, str] = field(default_factory=dict)
    shared: bool = False


KINDS = {
    "simple index": Kind(OPTIMISTIC),
    "bucket index": Kind(OPTIMISTIC, BUCKET_INDEX),
    "bucket index, non-blocking": Kind(NON_BLOCKING, BUCKET_INDEX, shared=True),
}


@dataclass(frozen=True)
class Write:
    """Rows that arrive, or deletes that compete with them; others act before it completes."""

    hours: dict[str, float]
    deletes: bool = False
    ordered: bool = True
    concurrent: tuple[object, ...] = ()


@dataclass(frozen=True)
class Compact:
    """A compaction up to an hour."""

    hour: float
    exact: bool = False


def steps(inner: st.SearchStrategy[object] | None = None) -> st.SearchStrategy[object]:
    def writes(*, deletes: bool) -> st.SearchStrategy[object]:
        return st.builds(
            Write,
            st.dictionaries(st.sampled_from(KEYS), st.sampled_from(HOURS), min_size=1),
            st.just(deletes),
            st.sampled_from([True, True, False]),
            st.just(()) if inner is None else st.lists(inner, max_size=2).map(tuple),
        )

    compactions = st.builds(Compact, st.sampled_from(HOURS[1:]), st.booleans())
    others = st.sampled_from(["compaction", "logcompaction"])
    arriving, leaving = writes(deletes=False), writes(deletes=True)
    return st.one_of(arriving, arriving, arriving, leaving, compactions, compactions, others)


@dataclass
class Arrivals:
    """A table, and every version of a key that arrived; a delete makes a key uncertain."""

    kind: Kind
    table: WrittenTable
    arrived: dict[str, list[float]] = field(default_factory=dict)
    deleted: set[str] = field(default_factory=set)

    def run(self, steps: Iterable[object]) -> None:
        for step in steps:
            match step:
                case Write():
                    self._write(step)
                case Compact():
                    self._compact(step)
                case str():
                    with suppress(ConflictError):
                        self.table.services(SERVICE_OPTIONS[step]).run(step)

    def _write(self, step: Write) -> None:
        rows = [event_row(key, hour) for key, hour in step.hours.items()]
        write = self.table.write
        try:
            if step.deletes:
                write("DELETE", rows, ordered=step.ordered, before_commit=self._later(step))
            else:
                write("UPSERT", rows, before_commit=self._later(step))
        except ConflictError:
            assert step.concurrent
            return
        if step.deletes:
            self.deleted |= step.hours.keys()
            return
        for key, hour in step.hours.items():
            self.arrived.setdefault(key, []).append(hour)

    def _later(self, step: Write) -> Callable[[], None] | None:
        return (lambda: self.run(step.concurrent)) if step.concurrent else None

    def _compact(self, step: Compact) -> None:
        services = self.table.services(
            {**compact_before(step.hour), **(EXACT_SPLIT if step.exact else {})}
        )
        before = run_queries(self.table.storage)
        try:
            outcome = services.run("compaction")
        except ConflictError:
            return
        assert before.differences(run_queries(self.table.storage, before)) == {}
        if isinstance(outcome, Skip):
            return
        self._check_optimized(step, self._beyond(outcome.instant))

    def _beyond(self, instant: str) -> int:
        snapshot = load_snapshot(self.table.storage)
        (commit,) = snapshot.commits([snapshot.timeline.by_time[instant]])
        return int(commit.extra.get(BEYOND, "-1"))

    def _check_optimized(self, step: Compact, beyond: int) -> None:
        newest = {r["id"]: (r["ts"] - BEGIN) / HOUR for r in self.table.rows(optimized=True)}
        for key, hours in self.arrived.items():
            early = max((hour for hour in hours if hour < step.hour), default=None)
            if key not in self.deleted and early is not None:
                assert newest.get(key, 0) >= early, f"{key} is missing"
        if step.exact:
            late = [key for key, hour in newest.items() if hour >= step.hour]
            assert len(late) <= beyond, f"{late} are there too early"
            assert not self.kind.options or beyond == 0


@pytest.mark.parametrize("kind", KINDS.values(), ids=list(KINDS))
@settings(max_examples=sized(12, 500), deadline=None)
@given(st.lists(steps(steps()), min_size=3, max_size=8))
def test_whatever_arrives(kind: Kind, steps: list[object]) -> None:
    options = {**NO_SERVICES, **kind.mode, **kind.options}
    table = WrittenTable(options=options).create("MERGE_ON_READ", event_time="ts")
    table.upsert([event_row("z", 0.5)])
    Arrivals(kind, table).run(steps)
    while table.services(AT_ONCE).run("compaction"):
        continue
    assert table.rows() == table.rows(optimized=True), "something was left behind"
