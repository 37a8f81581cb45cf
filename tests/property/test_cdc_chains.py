"""Changes that are applied one after the other, to nothing at first, make the table.

Every change must fit what is there: the row before it, no row, or any. Writers overlap and complete
out of order, readers come in between, and services compact, cluster, clean and archive
concurrently.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakewright.errors import ConflictError, InvalidError
from lakewright.model.instant import Action
from lakewright.scan.cdc.planner import plan_cdc
from lakewright.table.snapshot import load_snapshot
from lakewright.testing.local_reads import read_cdc_plan
from support.queries import (
    BUCKET_INDEX,
    KEYS,
    LATENESS,
    NON_BLOCKING,
    SERVICE_OPTIONS,
    apply_changes,
    parse_change,
)
from support.soak import sized
from support.tables import NO_SERVICES, OPTIMISTIC, Row, WrittenTable, row

pytestmark = pytest.mark.sampled(2)

LOGGED = {"hoodie.table.cdc.enabled": "true"}
LOGGING = "hoodie.table.cdc.supplemental.logging.mode"


@dataclass(frozen=True)
class Kind:
    """A kind of table, and whether writers that overlap may write to the same files."""

    table_type: str
    options: dict[str, str] = field(default_factory=dict)
    mode: dict[str, str] = field(default_factory=lambda: OPTIMISTIC)
    shared: bool = False
    services: tuple[str, ...] = tuple(SERVICE_OPTIONS)


COW, MOR = "COPY_ON_WRITE", "MERGE_ON_READ"
IN_PLACE = ("compaction", "logcompaction", "clean", "archive")
MOVED = ("clustering", "clean", "archive")
KINDS = {
    "copy on write": Kind(COW, services=MOVED),
    "copy on write, by commit time": Kind(
        COW, {"hoodie.record.merge.mode": "COMMIT_TIME_ORDERING"}, services=MOVED
    ),
    "copy on write, keys logged": Kind(COW, {**LOGGED, LOGGING: "OP_KEY_ONLY"}, services=MOVED),
    "copy on write, all logged": Kind(COW, LOGGED, services=MOVED),
    "copy on write, buckets, rows before logged": Kind(
        COW, {**LOGGED, **BUCKET_INDEX, LOGGING: "DATA_BEFORE"}, services=("clean", "archive")
    ),
    "merge on read": Kind(MOR),
    "merge on read, by commit time": Kind(
        MOR, {"hoodie.record.merge.mode": "COMMIT_TIME_ORDERING"}
    ),
    "merge on read, keys logged": Kind(MOR, {**LOGGED, LOGGING: "OP_KEY_ONLY"}),
    "merge on read, buckets": Kind(MOR, BUCKET_INDEX, services=IN_PLACE),
    "merge on read, buckets, all logged": Kind(MOR, {**BUCKET_INDEX, **LOGGED}, services=IN_PLACE),
    "merge on read, non-blocking": Kind(
        MOR,
        BUCKET_INDEX,
        NON_BLOCKING,
        shared=True,
        services=IN_PLACE,
    ),
}


@dataclass(frozen=True)
class Write:
    """A write, and what happens before it completes; `lateness` makes its rows older."""

    operation: str
    keys: frozenset[str]
    lateness: int
    concurrent: tuple[object, ...] = ()


def steps(inner: st.SearchStrategy[object] | None = None) -> st.SearchStrategy[object]:
    writes = st.builds(
        Write,
        st.sampled_from(["UPSERT", "UPSERT", "UPSERT", "DELETE", "INSERT_OVERWRITE"]),
        st.frozensets(st.sampled_from(KEYS), min_size=1),
        st.sampled_from(LATENESS),
        st.just(()) if inner is None else st.lists(inner, max_size=3).map(tuple),
    )
    apart = st.sampled_from(["schedule", "execute"])
    return st.one_of(
        writes, writes, st.just("read"), st.sampled_from(sorted(SERVICE_OPTIONS)), apart
    )


@dataclass
class CdcReader:
    """A table, and a reader that applies the changes of the table to a copy."""

    kind: Kind
    table: WrittenTable
    rows: list[Row] = field(default_factory=list)
    checkpoint: str | None = None
    number: int = 0

    def do_all(self, steps: Iterable[object], depth: int = 0) -> None:
        for step in steps:
            self.do(step, depth)

    def do(self, step: object, depth: int = 0) -> None:
        match step:
            case Write():
                self.write(step, depth)
            case "read":
                self.read()
            case "schedule" if "compaction" in self.kind.services:
                self.table.services(SERVICE_OPTIONS["compaction"]).schedule("compaction")
            case "execute":
                for instant in load_snapshot(self.table.storage).timeline.pending(
                    Action.COMPACTION
                ):
                    # A plan whose file groups were overwritten may not be executed any more.
                    with suppress(ConflictError):
                        self.table.services().execute(instant.requested_at)
            case str(service) if service in self.kind.services:
                self.table.services(SERVICE_OPTIONS[service]).run(service)

    def write(self, step: Write, depth: int) -> None:
        if depth and self.kind.shared and step.operation == "INSERT_OVERWRITE":
            return
        self.number += 1
        ts = self.number - step.lateness
        day = "shared" if self.kind.shared else f"day{depth}"
        # No two versions of a key are equally new.
        rows = [row(key, ts * 1000 + self.number, f"#{self.number}", day) for key in step.keys]
        if step.operation == "DELETE" and not self.is_written:
            return
        # A clustering that was quicker makes the writer of the same files give way.
        with suppress(ConflictError):
            self.table.write(
                step.operation,
                rows,
                before_commit=lambda: self.do_all(step.concurrent, depth + 1),
            )

    @property
    def is_written(self) -> bool:
        return bool(load_snapshot(self.table.storage).timeline.completed_writes)

    def read(self) -> None:
        if not self.is_written:
            return
        try:
            self.follow()
        except InvalidError as error:
            if "cleaned" not in str(error) or self.checkpoint is None:
                raise
            self.rows, self.checkpoint = [], None
            self.follow()

    def follow(self) -> None:
        snapshot = load_snapshot(self.table.storage)
        plan = plan_cdc(snapshot, since=self.checkpoint)
        records = read_cdc_plan(self.table.storage, plan.plan).to_pylist()
        changes = [
            parse_change(record["op"], record["before"], record["after"]) for record in records
        ]
        self.rows = apply_changes(changes, ("day", "id"), to=self.rows)
        self.checkpoint = plan.context.checkpoint


@pytest.mark.parametrize("kind", KINDS.values(), ids=list(KINDS))
@settings(max_examples=sized(12, 500), deadline=None)
@given(history=st.lists(steps(steps(steps())), min_size=2, max_size=8))
def test_changes_make_the_table(kind: Kind, history: list[object]) -> None:
    table = WrittenTable(options={**NO_SERVICES, **kind.mode})
    reader = CdcReader(kind, table.create(kind.table_type, options=kind.options))
    reader.do_all(history)
    reader.read()
    if reader.is_written:
        assert reader.rows == table.rows()
