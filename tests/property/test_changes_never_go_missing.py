"""Any chain of ranges, reduced to the last version of each key, is the table.

Writers overlap, readers come in between, and services compact, cluster, clean and archive
concurrently.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakewright.errors import ConflictError
from lakewright.scan.planner import plan_changes
from lakewright.table.snapshot import load_snapshot
from lakewright.testing.local_reads import read_plan
from support.queries import BUCKET_INDEX, KEYS, LATENESS, NON_BLOCKING, SERVICE_OPTIONS
from support.soak import sized
from support.tables import NO_SERVICES, OPTIMISTIC, Row, WrittenTable, row


@dataclass(frozen=True)
class Kind:
    """A kind of table, and whether writers that overlap may write to the same files."""

    table_type: str
    mode: dict[str, str]
    options: dict[str, str] = field(default_factory=dict)
    services: tuple[str, ...] = tuple(SERVICE_OPTIONS)
    shared: bool = False


KINDS = {
    "copy on write": Kind("COPY_ON_WRITE", OPTIMISTIC, services=("clustering", "clean", "archive")),
    "merge on read": Kind("MERGE_ON_READ", OPTIMISTIC),
    "merge on read, non-blocking": Kind(
        "MERGE_ON_READ",
        NON_BLOCKING,
        BUCKET_INDEX,
        services=("compaction", "logcompaction", "clean", "archive"),
        shared=True,
    ),
}


@dataclass(frozen=True)
class Write:
    """A write, and what happens before it completes; `lateness` makes its rows older."""

    keys: frozenset[str]
    lateness: int
    concurrent: tuple[object, ...] = ()


def steps(inner: st.SearchStrategy[object] | None = None) -> st.SearchStrategy[object]:
    writes = st.builds(
        Write,
        st.frozensets(st.sampled_from(KEYS), min_size=1),
        st.sampled_from(LATENESS),
        st.just(()) if inner is None else st.lists(inner, max_size=3).map(tuple),
    )
    return st.one_of(writes, writes, st.just("read"), st.sampled_from(sorted(SERVICE_OPTIONS)))


@dataclass
class IncrementalReader:
    """A table, and a reader that stores the newest version of each key."""

    kind: Kind
    table: WrittenTable
    latest: dict[tuple[str, str], Row] = field(default_factory=dict)
    checkpoint: str | None = None
    number: int = 0

    def do_all(self, steps: Iterable[object], depth: int = 0) -> None:
        for step in steps:
            self.do(step, depth)

    def do(self, step: object, depth: int = 0) -> None:
        match step:
            case Write(keys, lateness, concurrent):
                self.number += 1
                ts = self.number - lateness
                day = "shared" if self.kind.shared else f"day{depth}"
                # No two versions of a key are equally new.
                rows = [row(key, ts * 1000 + self.number, f"#{self.number}", day) for key in keys]
                # A clustering that was quicker makes the writer of the same files give way.
                with suppress(ConflictError):
                    self.table.upsert(
                        rows, before_commit=lambda: self.do_all(concurrent, depth + 1)
                    )
            case "read":
                self.read()
            case str(service) if service in self.kind.services:
                self.table.services(SERVICE_OPTIONS[service]).run(service)

    def read(self) -> None:
        snapshot = load_snapshot(self.table.storage)
        plan = plan_changes(snapshot, since=self.checkpoint)
        assert (plan.context.checkpoint or "") >= (self.checkpoint or "")
        self.checkpoint = plan.context.checkpoint
        for record in read_plan(self.table.storage, plan.plan).to_pylist():
            version = {k: v for k, v in record.items() if not k.startswith("_hoodie_")}
            key = (version["day"], version["id"])
            if key not in self.latest or version["ts"] >= self.latest[key]["ts"]:
                self.latest[key] = version


@pytest.mark.parametrize("kind", KINDS.values(), ids=list(KINDS))
@settings(max_examples=sized(15, 500), deadline=None)
@given(history=st.lists(steps(steps(steps())), min_size=2, max_size=8))
def test_a_chain_of_ranges_is_the_table(kind: Kind, history: list[object]) -> None:
    table = WrittenTable(options={**NO_SERVICES, **kind.mode})
    reader = IncrementalReader(kind, table.create(kind.table_type, options=kind.options))
    reader.do_all(history)
    if not load_snapshot(table.storage).timeline.completed_writes:
        return
    reader.read()
    assert sorted(reader.latest.values(), key=str) == table.rows()
