"""What a clustering does to rows, files and statistics."""

from __future__ import annotations

import io
import pickle
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import count, pairwise
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakewright.engine.local import LocalEngine
from lakewright.errors import ConflictError, CorruptError, LakewrightError, UnsupportedError
from lakewright.format.timeline_metadata import format_requested_replace
from lakewright.model.commit_metadata import CommitMetadata, WriteStat
from lakewright.model.instant import Action, Instant, State
from lakewright.model.plans import ClusteringPlan, ClusteringStrategy, RequestedReplace, Skip
from lakewright.scan.planner import plan_changes
from lakewright.services.base import ExecutionContext
from lakewright.services.clustering.options import EXECUTION_CLASS
from lakewright.storage.memory import MemoryStorage
from lakewright.table.plan_scheduling import PlanRequest, begin_execution, schedule_plan
from lakewright.table.snapshot import load_snapshot
from lakewright.testing.local_reads import read_plan
from lakewright.testing.storage import Crash, CrashingStorage
from lakewright.write.task import WriteToken
from support.faults import each_crash
from support.services import (
    ClusteredTable,
    clustering_options,
    pending_clusterings,
    without_file_names,
)
from support.tables import SCHEMA, Row, WrittenTable, row

pytestmark = pytest.mark.sampled(2)

Item = TypeVar("Item")
Answer = TypeVar("Answer")

BOTH = pytest.mark.parametrize("table_type", ["COPY_ON_WRITE", "MERGE_ON_READ"])
LAYOUTS = pytest.mark.parametrize("layout", ["linear", "z-order", "hilbert"])
DAYS = ("2026-01-01", "2026-01-02")
# New keys make new files, and writes run no service.
APART = {
    "hoodie.parquet.small.file.limit": "0",
    "hoodie.compact.inline": "false",
    "hoodie.clean.automatic": "false",
}


def written(table_type: str, rows: int = 60, **create: Any) -> WrittenTable:
    """Two partitions with several files each; with updates and deletes."""
    table = WrittenTable(options=APART).create(table_type, **create)
    for part in range(3):
        chosen = range(part, rows, 3)
        table.upsert([row(f"{n * 7919 % 1000:04d}", n, "first", DAYS[n % 2]) for n in chosen])
    table.upsert([row(f"{n * 7919 % 1000:04d}", 900 + n, "second", DAYS[n % 2]) for n in (1, 4, 8)])
    table.write("DELETE", [row(f"{n * 7919 % 1000:04d}", 0, day=DAYS[n % 2]) for n in (2, 5)])
    return table


def all_meta(table: WrittenTable) -> list[str]:
    """All rows with their meta columns, but for the file."""
    return sorted(map(str, without_file_names(table.rows(meta=True))))


def stored(table: WrittenTable, stat: WriteStat) -> pa.Table:
    return pq.read_table(io.BytesIO(table.storage.read(stat.path or "")), partitioning=None)


@BOTH
@pytest.mark.parametrize(
    "options", [{}, clustering_options(sort_columns="note,ts")], ids=["as is", "sorted"]
)
def test_rows_and_their_meta_columns_stay(table_type: str, options: Mapping[str, str]) -> None:
    table = written(table_type)
    before = all_meta(table)
    metadata = ClusteredTable(table, options).run()
    assert all_meta(table) == before
    assert len(metadata.write_stats()) == 2
    assert {len(ids) for ids in metadata.replaced.values()} == {3}
    assert not pending_clusterings(load_snapshot(table.storage))
    # Every row names the file that it is in now.
    names = {(stat.path or "").split("/")[-1] for stat in metadata.write_stats()}
    assert {record["_hoodie_file_name"] for record in table.rows(meta=True)} == names


@BOTH
def test_an_incremental_query_sees_nothing_new(table_type: str) -> None:
    table = written(table_type)
    last = load_snapshot(table.storage).timeline.by_completion[-1].completed_at
    ClusteredTable(table).run()
    plan = plan_changes(load_snapshot(table.storage), since=last)
    assert len(read_plan(table.storage, plan.plan)) == 0


@BOTH
def test_writes_go_on_afterwards(table_type: str) -> None:
    table = written(table_type)
    count_before = len(table.rows())
    ClusteredTable(table, clustering_options(sort_columns="id")).run()
    table.upsert([row("0000", 5000, "third"), row("new", 1, "new")])
    table.write("DELETE", [row(f"{7919 * 3 % 1000:04d}", 0, day=DAYS[1])])
    assert len(table.rows()) == count_before
    assert {record["note"] for record in table.rows() if record["id"] == "0000"} == {"third"}


def test_the_statistics_are_those_of_new_file_groups() -> None:
    table = written("MERGE_ON_READ")
    metadata = ClusteredTable(table).run()
    assert metadata.operation == "CLUSTER"
    assert metadata.schema == load_snapshot(table.storage).avro_schema()
    for stat in metadata.write_stats():
        rows = stored(table, stat)
        assert (stat.num_writes, stat.num_inserts) == (len(rows), len(rows))
        assert (stat.num_update_writes, stat.num_deletes) == (0, 0)
        assert (stat.prev_commit, stat.log_files) == ("null", None)
        assert stat.file_id not in metadata.replaced[stat.partition_path or ""]


def test_rows_are_sorted_by_the_columns_of_the_plan() -> None:
    table = written("COPY_ON_WRITE")
    metadata = ClusteredTable(table, clustering_options(sort_columns="note,ts")).run()
    for stat in metadata.write_stats():
        rows = stored(table, stat).select(["note", "ts"]).to_pylist()
        assert rows == sorted(rows, key=lambda record: (record["note"], record["ts"]))


def test_a_plan_says_how_it_is_executed_and_not_the_options_of_the_day() -> None:
    table = written("COPY_ON_WRITE")
    instant = ClusteredTable(table, clustering_options(sort_columns="ts")).schedule()
    metadata = ClusteredTable(table, clustering_options(sort_columns="id")).execute(instant)
    for stat in metadata.write_stats():
        times = stored(table, stat)["ts"].to_pylist()
        assert times == sorted(times)


@LAYOUTS
def test_sorting_on_disk_returns_the_same_rows(
    layout: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    table = written("MERGE_ON_READ", rows=500)
    before = all_meta(table)
    options = {
        **clustering_options(sort_columns="ts,id"),
        "hoodie.layout.optimize.strategy": layout,
        "lakewright.clustering.sort.bytes": "10000",
    }
    metadata = ClusteredTable(table, options).run()
    assert all_meta(table) == before
    assert list(tmp_path.iterdir()) == []
    if layout == "linear":
        for stat in metadata.write_stats():
            times = stored(table, stat)["ts"].to_pylist()
            assert times == sorted(times)


def test_a_file_ends_when_it_is_large_enough() -> None:
    table = written("COPY_ON_WRITE", rows=900)
    options = clustering_options(
        sort_columns="ts", target_file_max_bytes=4000, max_bytes_per_group=10**9
    )
    before = all_meta(table)
    metadata = ClusteredTable(table, options).run()
    assert all_meta(table) == before
    files = [stored(table, stat)["ts"].to_pylist() for stat in metadata.stats[DAYS[0]]]
    assert len(files) > 2
    bounds = sorted((min(times), max(times)) for times in files)
    assert all(one[1] <= other[0] for one, other in pairwise(bounds))


def test_rows_that_are_there_twice_stay_twice() -> None:
    table = WrittenTable(options=APART).create()
    for _ in range(2):
        table.write("INSERT", [row("a"), row("b")])
    before = all_meta(table)
    assert len(before) == 4
    ClusteredTable(table, clustering_options(sort_columns="id")).run()
    assert all_meta(table) == before


def test_clustering_of_deleted_rows_alone_leaves_no_file_group() -> None:
    table = WrittenTable(options=APART).create("MERGE_ON_READ")
    table.upsert([row("a"), row("b")])
    table.write("DELETE", [row("a"), row("b")])
    metadata = ClusteredTable(table).run()
    assert metadata.write_stats() == ()
    assert list(metadata.replaced) == [DAYS[0]]
    assert table.rows() == []
    table.upsert([row("a", 1, "again")])
    assert [record["note"] for record in table.rows()] == ["again"]


@BOTH
def test_a_table_without_partitions_is_clustered(table_type: str) -> None:
    table = WrittenTable(options=APART).create(table_type, partition_by=())
    table.upsert([row("a"), row("b")])
    table.upsert([row("b", 2, "second"), row("c")])
    before = all_meta(table)
    metadata = ClusteredTable(table).run()
    assert all_meta(table) == before
    assert list(metadata.replaced) == [""]
    assert len(metadata.write_stats()) == 1


def test_files_of_older_schemas_become_one() -> None:
    table = WrittenTable(options=APART).create()
    table.upsert([row("a")])
    wider = SCHEMA.append(pa.field("extra", pa.int64()))
    table.write("UPSERT", [{**row("b"), "extra": 7}], schema=wider)
    before = all_meta(table)
    metadata = ClusteredTable(table, clustering_options(sort_columns="extra")).run()
    assert all_meta(table) == before
    (stat,) = metadata.write_stats()
    assert stored(table, stat)["extra"].to_pylist() == [None, 7]


def test_event_times_go_with_the_rows() -> None:
    table = WrittenTable(options=APART).create("MERGE_ON_READ", event_time="ts")
    times = [1_700_000_000_000, 1_700_000_009_000, 1_700_000_005_000]
    for number, time in enumerate(times):
        table.upsert([row(f"{number}", time)])
    metadata = ClusteredTable(table).run()
    (stat,) = metadata.write_stats()
    assert (stat.min_event_time, stat.max_event_time) == (min(times), max(times))


class PicklingEngine(LocalEngine):
    """Work that goes through a pickle, as it does on its way to other processes."""

    def map(
        self,
        do: Callable[[Item, WriteToken], Answer],
        items: Sequence[Item],
        size: Callable[[Item], int],
    ) -> list[Answer]:
        sent_do, sent = pickle.loads(pickle.dumps((do, list(items))))
        answers = super().map(sent_do, sent, size)
        return list(pickle.loads(pickle.dumps(answers)))


class PlainClock:
    """A clock that travels."""

    def __init__(self) -> None:
        self.ms = 1_767_225_600_000
        self.ids = 0

    def now_ms(self) -> int:
        return self.ms

    def monotonic_ms(self) -> int:
        return self.ms

    def sleep(self, seconds: float) -> None:
        self.ms += round(seconds * 1000)

    def new_id(self) -> str:
        self.ids += 1
        return f"abcdef00-0000-0000-0000-{self.ids:012d}"


def execute_as(
    clustered: ClusteredTable, instant: Instant, plan: ClusteringPlan, engine: LocalEngine
) -> CommitMetadata:
    with begin_execution(clustered.writer, instant) as transaction:
        snapshot, at = transaction.snapshot, instant.requested_at
        job = ExecutionContext(snapshot, at, clustered.options, engine, clustered.writer)
        metadata = clustered.service.execute(job, plan)
        transaction.commit(metadata)
    return metadata


def test_the_work_travels_to_other_processes() -> None:
    table = WrittenTable(options=APART, clock=PlainClock()).create()
    table.upsert([row("a"), row("b")])
    table.upsert([row("c")])
    clustered = ClusteredTable(table, clustering_options(sort_columns="id"))
    plan = clustered.planned()
    execute_as(clustered, put(clustered, plan), plan, PicklingEngine())
    assert [record["id"] for record in table.rows()] == ["a", "b", "c"]


def put(clustered: ClusteredTable, plan: ClusteringPlan) -> Instant:
    """Put a plan on the timeline as it is, whatever the table is by now."""
    data = format_requested_replace(RequestedReplace(operation="CLUSTER", plan=plan))
    scheduled = schedule_plan(
        clustered.writer,
        Action.CLUSTERING,
        lambda _, next_time: PlanRequest(next_time(), plan, data),
    )
    assert not isinstance(scheduled, Skip)
    return scheduled[0]


def update(table: WrittenTable) -> object:
    return table.upsert([row("a", 9, "late")])


def delete_partition(table: WrittenTable) -> object:
    return table.delete_partitions(DAYS[0])


CHANGES: dict[str, tuple[str, Callable[[WrittenTable], object]]] = {
    "a new base file": ("COPY_ON_WRITE", update),
    "a new log file": ("MERGE_ON_READ", update),
    "a group that was replaced": ("MERGE_ON_READ", delete_partition),
}


@pytest.mark.parametrize(("table_type", "change"), CHANGES.values(), ids=list(CHANGES))
def test_groups_that_have_changed_since_they_were_planned_are_left_alone(
    table_type: str, change: Callable[[WrittenTable], object]
) -> None:
    table = WrittenTable(options=APART).create(table_type)
    table.upsert([row("a"), row("b")])
    clustered = ClusteredTable(table)
    plan = clustered.planned()
    change(table)
    before = all_meta(table)
    instant = put(clustered, plan)
    with pytest.raises(ConflictError):
        clustered.execute(instant)
    assert all_meta(table) == before
    assert pending_clusterings(load_snapshot(table.storage)) == [State.REQUESTED]


def test_paths_of_another_machine_do_not_matter() -> None:
    table = written("MERGE_ON_READ")
    clustered = ClusteredTable(table)
    plan = clustered.planned()

    def elsewhere(path: str) -> str:
        return "file:/somewhere/else/" + path.split("/", 3)[3]

    groups = tuple(
        replace(
            group,
            slices=tuple(
                replace(
                    item,
                    base_path=elsewhere(item.base_path or ""),
                    log_paths=tuple(map(elsewhere, item.log_paths)),
                )
                for item in group.slices
            ),
        )
        for group in plan.groups
    )
    before = all_meta(table)
    clustered.execute(put(clustered, replace(plan, groups=groups)))
    assert all_meta(table) == before


def with_class(plan: ClusteringPlan, name: str) -> ClusteringPlan:
    return replace(plan, strategy=ClusteringStrategy(class_name=name))


def twice(plan: ClusteringPlan) -> ClusteringPlan:
    return replace(plan, groups=plan.groups * 2)


BAD_PLANS: dict[str, tuple[Callable[[ClusteringPlan], ClusteringPlan], type[LakewrightError]]] = {
    "an unknown execution strategy": (lambda p: with_class(p, "com.X"), UnsupportedError),
    "a file group that is planned twice": (twice, CorruptError),
}


@pytest.mark.parametrize(("spoil", "kind"), BAD_PLANS.values(), ids=list(BAD_PLANS))
def test_plans_that_are_not_executed(
    spoil: Callable[[ClusteringPlan], ClusteringPlan], kind: type[LakewrightError]
) -> None:
    table = written("COPY_ON_WRITE")
    clustered = ClusteredTable(table)
    instant = put(clustered, spoil(clustered.planned()))
    before = all_meta(table)
    with pytest.raises(kind):
        clustered.execute(instant)
    assert all_meta(table) == before


def test_a_plan_of_real_hudi_without_parameters_is_executed_without_sorting() -> None:
    table = written("COPY_ON_WRITE")
    clustered = ClusteredTable(table, clustering_options(sort_columns="id"))
    before = all_meta(table)
    plan = with_class(clustered.planned(), EXECUTION_CLASS)
    metadata = clustered.execute(put(clustered, plan))
    assert all_meta(table) == before
    for stat in metadata.write_stats():
        keys = stored(table, stat)["id"].to_pylist()
        assert keys != sorted(keys)


def test_a_plan_on_buckets_is_not_executed() -> None:
    options = {"hoodie.index.type": "BUCKET", "hoodie.bucket.index.num.buckets": "2"}
    table = WrittenTable(options=APART).create("MERGE_ON_READ", options=options)
    table.upsert([row(f"{n}") for n in range(9)])
    others = ClusteredTable(written("MERGE_ON_READ")).planned()
    snapshot = load_snapshot(table.storage)
    items = [group.latest_merged_slice() for group in snapshot.groups(snapshot.view())]
    slices = tuple(
        replace(others.operations[0], partition=item.partition, file_id=item.file_id)
        for item in items
    )
    plan = replace(others, groups=(replace(others.groups[0], slices=slices),))
    clustered = ClusteredTable(table)
    with pytest.raises(UnsupportedError, match="bucket index"):
        clustered.execute(put(clustered, plan))
    assert len(table.rows()) == 9


@each_crash
def test_an_execution_that_died_anywhere_is_executed_again(after_effect: bool) -> None:
    first = written("MERGE_ON_READ", rows=12)
    instant = ClusteredTable(first).schedule()
    files = {file.path: first.storage.read(file.path) for file in first.storage.list_tree("")}
    expected = all_meta(first)
    for survive in count():
        table = WrittenTable(storage=MemoryStorage.fresh(files), options=APART)
        table.clock.sleep(1)
        for _ in files:
            table.clock.new_id()  # those of the process before are taken
        inner = table.storage
        dying = CrashingStorage(inner, survive, after_effect=after_effect)
        table.storage = dying
        with suppress(Crash):
            ClusteredTable(table).execute(instant)
        table.storage = inner
        assert all_meta(table) == expected
        table.clock.sleep(1)
        if pending_clusterings(load_snapshot(inner)):
            ClusteredTable(table).execute(instant)
        assert all_meta(table) == expected
        assert not pending_clusterings(load_snapshot(inner))
        if not dying.crashed:
            break
    assert survive > 5
    assert rows_by_file(table) == 2


def rows_by_file(table: WrittenTable) -> int:
    return len({record["_hoodie_file_name"] for record in rows_with_meta(table)})


def rows_with_meta(table: WrittenTable) -> list[Row]:
    return table.rows(meta=True)
