"""Writers name the partitions that they know before they write: a cancellable clustering that wants
to complete leaves these to them, and no others.

Other processes act when the write has begun, before it has announced a file by a marker.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa
import pytest

from lakewright.engine.local import ArrowRows, LocalEngine
from lakewright.errors import UnsupportedError
from lakewright.format.timeline_metadata import format_commit, parse_commit
from lakewright.model.commit_metadata import CommitMetadata, WriteStat
from lakewright.model.instant import Action, State
from lakewright.model.plans import Skip
from lakewright.services.runner import ServiceRunner
from lakewright.storage.base import Storage
from lakewright.storage.memory import MemoryStorage
from lakewright.table.conflicts import PreemptedError
from lakewright.table.preemption import parse_preempted
from lakewright.table.snapshot import load_snapshot
from lakewright.testing.clock import ManualClock
from lakewright.testing.storage import CountingStorage
from lakewright.write.task import Operation, WriteStatus, WriteTask
from lakewright.write.writer import Commit, RowSource, WriteRequest
from support.cancellable_plans import CANCELLABLE_PLAN, MULTI_WRITER
from support.concurrency import InterruptedAfter, once
from support.tables import NO_SERVICES, WrittenTable, begin_action, row

DAYS = ("2026-01-01", "2026-01-02", "2026-01-03")
FIRST, SECOND, HOT = DAYS
INFLIGHT = r"(commit|[0-9])\.inflight$"
Act = Callable[[], object]


@dataclass
class Lake:
    """Two small file groups in each partition; the last writes updated `HOT`."""

    options: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.clock = ManualClock()
        self.storage = MemoryStorage.fresh(now_ms=self.clock.now_ms)
        self.table = self.seen_by(self.storage).create("COPY_ON_WRITE")
        for number in range(2):
            self.table.write("BULK_INSERT", [row(f"{day} {number}", day=day) for day in DAYS])
        for ts in range(2, 7):
            self.table.upsert([row(f"{HOT} 0", ts, f"at {ts}", HOT)])

    def seen_by(self, storage: Storage) -> WrittenTable:
        return WrittenTable(storage, self.clock, {**NO_SERVICES, **MULTI_WRITER, **self.options})

    def cluster(self) -> Commit | Skip:
        runner: ServiceRunner = self.table.services(CANCELLABLE_PLAN)
        return runner.run("clustering")

    def preempted(self) -> dict[str, int]:
        snapshot = load_snapshot(self.storage)
        (clustering,) = snapshot.timeline.completed_services(Action.CLUSTERING)
        (commit,) = snapshot.commits([clustering])
        return parse_preempted(commit.extra)

    def group(self, day: str) -> str:
        """The id of a file group of a partition."""
        snapshot = load_snapshot(self.storage)
        groups = snapshot.groups(snapshot.view(), snapshot.files([day]))
        return min(group.file_id for group in groups)


class AtStart(LocalEngine):
    """Another process acts when a write has begun, before it reads its rows."""

    def __init__(self, act: Act) -> None:
        self._act = once(act)

    def write(self, task: WriteTask, rows: RowSource) -> Sequence[WriteStatus]:
        self._act()
        return super().write(task, rows)


Write = Callable[[Lake, Act], object]


def writing(operation: str, *days: str, **options: str) -> Write:
    """Write a row of each of these partitions."""

    def write(lake: Lake, act: Act) -> object:
        client = replace(lake.table.writer(options), local_engine=AtStart(act))
        rows = [row(f"{day} 0", 99, "last", day) for day in days]
        table = pa.Table.from_pylist(rows, lake.table.schema)
        return client.write(Operation(operation), ArrowRows(table))

    return write


def dropping(*patterns: str, exact: bool = False) -> Write:
    def write(lake: Lake, act: Act) -> object:
        storage = InterruptedAfter(lake.storage, "create", INFLIGHT, act)
        request = WriteRequest(Operation.DELETE_PARTITION, patterns=patterns, exact=exact)
        return lake.seen_by(storage).writer().run_deletion(request)

    return write


STATIC = {"hoodie.datasource.overwrite.mode": "static"}
LEFT: dict[str, tuple[Write, set[str]]] = {
    "an upsert, wherever the last writes were": (writing("UPSERT", FIRST), {FIRST}),
    "an upsert of two partitions": (writing("UPSERT", FIRST, SECOND), {FIRST, SECOND}),
    "a delete": (writing("DELETE", SECOND), {SECOND}),
    "an insert, which may add rows to small file groups": (writing("INSERT", FIRST), {FIRST}),
    "an overwrite of the partitions of its rows": (writing("INSERT_OVERWRITE", FIRST), {FIRST}),
    "a deletion of partitions": (dropping(FIRST, f"/{SECOND}/"), {FIRST, SECOND}),
    "a deletion by exact paths": (dropping(SECOND, exact=True), {SECOND}),
    "a deletion by a pattern": (dropping("no such", "*-?1"), {FIRST}),
    "but not a bulk insert": (writing("BULK_INSERT", FIRST), set()),
}


@pytest.mark.parametrize(("write", "left"), LEFT.values(), ids=list(LEFT))
def test_a_clustering_leaves_to_a_write_that_has_only_begun(write: Write, left: set[str]) -> None:
    lake = Lake()
    outcomes: list[Commit | Skip] = []
    assert isinstance(write(lake, lambda: outcomes.append(lake.cluster())), Commit)
    (outcome,) = outcomes
    assert isinstance(outcome, Commit)
    assert set(outcome.partitions) == set(DAYS) - left
    assert set(lake.preempted()) == left


@pytest.mark.parametrize(
    "write",
    [writing("INSERT_OVERWRITE_TABLE", FIRST), writing("INSERT_OVERWRITE", FIRST, **STATIC)],
    ids=["the table", "the table, by static overwrite"],
)
def test_a_clustering_leaves_all_to_an_overwrite_of(write: Write) -> None:
    lake = Lake()
    errors: list[PreemptedError] = []

    def cluster() -> None:
        with pytest.raises(PreemptedError) as error:
            lake.cluster()
        errors.append(error.value)

    assert isinstance(write(lake, cluster), Commit)
    assert errors
    assert [record["note"] for record in lake.table.rows()] == ["last"]


def test_a_partition_is_left_to_a_write_that_has_announced_files_elsewhere() -> None:
    lake = Lake()
    outcomes: list[Commit | Skip] = []
    marker = rf"\.temp/.*{FIRST}.*marker"
    storage = InterruptedAfter(
        lake.storage, "create", marker, lambda: outcomes.append(lake.cluster())
    )
    rows = [row(f"{day} 0", 99, "last", day) for day in (FIRST, SECOND)]
    assert isinstance(lake.seen_by(storage).upsert(rows), Commit)
    (outcome,) = outcomes
    assert isinstance(outcome, Commit)
    assert set(lake.preempted()) == {FIRST, SECOND}


# Real Hudi's inflight files name file groups, and the number of rows to insert.


def stats(inserts: int, *groups: str) -> tuple[WriteStat, ...]:
    updates = [WriteStat(file_id=group, prev_commit="2026", num_inserts=0) for group in groups]
    return WriteStat(file_id="", prev_commit="null", num_inserts=inserts), *updates


THEIRS: dict[str, tuple[int, bool, int]] = {
    "updates of one file group": (0, True, 1),
    "inserts, which may go to any small file group": (3, False, 2),
    "both": (3, True, 2),
}


@pytest.mark.parametrize(("inserts", "updates", "left"), THEIRS.values(), ids=list(THEIRS))
def test_a_clustering_leaves_to_a_writer_of_real_hudi(
    inserts: int, updates: bool, left: int
) -> None:
    lake = Lake()
    groups = [lake.group(FIRST)] if updates else []
    profile = CommitMetadata(operation="UPSERT", stats={FIRST: stats(inserts, *groups)})
    writer = lake.table.writer().writer()
    with begin_action(writer, "commit", inflight=format_commit(profile)):
        outcome = lake.cluster()
    assert isinstance(outcome, Commit)
    plan = load_snapshot(lake.storage).plan_of(outcome.instant, Action.CLUSTERING)
    assert plan is not None
    assert HOT in outcome.partitions
    assert set(lake.preempted()) == {FIRST}
    # A group of two without one is not worth clustering.
    assert FIRST not in outcome.partitions
    assert left <= len([key for key in plan.file_groups if key[0] == FIRST])


def test_a_dead_writer_is_left_nothing() -> None:
    lake = Lake()
    profile = CommitMetadata(operation="UPSERT", stats={FIRST: stats(3)})
    writer = lake.table.writer().writer()
    with begin_action(writer, "commit", inflight=format_commit(profile)) as transaction:
        transaction.stop_heartbeat()
        outcome = lake.cluster()
        assert isinstance(outcome, Commit)
        assert set(outcome.partitions) == set(DAYS)


# What that costs.


def test_the_partitions_are_in_the_inflight_file_and_cost_no_call() -> None:
    lake = Lake()
    storage = CountingStorage(lake.storage)
    commit = lake.seen_by(storage).upsert([row(f"{FIRST} 0", 99, "last", FIRST)])
    path = f".hoodie/timeline/{commit.instant}.{State.INFLIGHT.lower()}"
    inflight = parse_commit(lake.storage.read(path))
    assert inflight.operation == "UPSERT"
    assert list(inflight.stats) == [FIRST]
    assert inflight.file_groups() == frozenset()
    created = [path for method, path in storage.touched if method == "create"]
    assert len([path for path in created if path.endswith(".inflight")]) == 1


def test_a_global_index_may_change_other_partitions_than_those_of_the_rows() -> None:
    lake = Lake()
    named: list[dict[str, object]] = []

    def look() -> None:
        (pending,) = load_snapshot(lake.storage).timeline.pending()
        inflight = parse_commit(lake.storage.read(f".hoodie/timeline/{pending.file_name}"))
        named.append(dict(inflight.stats))

    table = lake.seen_by(InterruptedAfter(lake.storage, "create", INFLIGHT, look))
    with pytest.raises(UnsupportedError):
        table.upsert([row("x", day=FIRST)], {"hoodie.index.type": "GLOBAL_SIMPLE"})
    assert named == [{}]
