"""Work that tasks defer to other tasks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pytest

from lakewright.errors import ConflictError
from lakewright.model.merge import Deletes, MergeRule, Upserts, merge_logs
from lakewright.model.schema import META_FIELDS
from lakewright.table.snapshot import load_snapshot
from lakewright.testing.storage import CountingStorage
from lakewright.utils.bin_packing import pack_by_size
from lakewright.write.spill import decode_changes, encode_changes, run_until_done
from lakewright.write.task import DeferredPartition, DeferredWork, WriteStatus
from support.tables import SCHEMA, Row, WrittenTable, row

SPILL_ALL = {"lakewright.write.hand.on.bytes": "0"}
DAYS = ("2026-01-01", "2026-01-02", "2026-01-03")
STORED = pa.schema([*META_FIELDS, *SCHEMA])


def work(size: int, name: str = "p") -> DeferredWork:
    return DeferredPartition(name, f"{name}.arrow", size)


@dataclass(frozen=True)
class Deal:
    sizes: Sequence[int]
    tasks: int
    loads: Sequence[int]


DEALS = {
    "loads are even": Deal([5, 1, 4, 2], 2, [6, 6]),
    "the largest work goes first": Deal([1, 1, 1, 9], 2, [9, 3]),
    "no bundle is empty": Deal([3, 2], 6, [3, 2]),
    "one task does it all": Deal([3, 2, 1], 1, [6]),
    "there may be nothing to do": Deal([], 4, []),
}


@pytest.mark.parametrize("case", DEALS.values(), ids=list(DEALS))
def test_works_are_dealt_out_by_size(case: Deal) -> None:
    bundles = pack_by_size([work(size) for size in case.sizes], lambda item: item.size, case.tasks)
    assert [sum(item.size for item in bundle) for bundle in bundles] == case.loads
    assert all(bundles)
    assert sorted(item.size for bundle in bundles for item in bundle) == sorted(case.sizes)


def test_deferred_work_runs_until_none_remains() -> None:
    answers = {
        "all": [WriteStatus(deferred=(work(1, "a"), work(2, "b")))],
        "a b": [WriteStatus(deferred=(work(3, "c"),)), WriteStatus()],
        "c": [WriteStatus()],
    }
    requests = []

    def run(works: Sequence[DeferredWork]) -> Sequence[WriteStatus]:
        requests.append(" ".join(item.partition for item in works))
        return answers[requests[-1]]

    statuses = run_until_done(answers["all"], run)
    assert requests == ["a b", "c"]
    assert statuses == [outcome for answer in answers.values() for outcome in answer]


def test_nothing_more_runs_after_a_failure() -> None:
    failed = WriteStatus(error=ConflictError("lost"), deferred=(work(1),))

    def run(works: Sequence[DeferredWork]) -> Sequence[WriteStatus]:
        raise AssertionError(works)

    assert run_until_done([failed], run) == [failed]


def test_changes_travel_as_a_table() -> None:
    rows = pa.table(
        {
            **{name: pa.array(["a", "b"]) for name in STORED.names[:5]},
            "id": ["a", "b"],
            "day": ["d", "d"],
            "ts": [3, 4],
            "note": ["x", None],
        },
        schema=STORED,
    )
    deletes = Deletes(pa.array(["c", "b"]), (pa.array([7, 9]),))
    before = merge_logs(
        [Upserts(rows), deletes, Deletes(pa.array(["d"]))], STORED, MergeRule(("ts",))
    )
    after = decode_changes(encode_changes(before), STORED)
    assert after.keys.equals(before.keys)
    assert np.array_equal(after.deleted, before.deleted)
    assert np.array_equal(after.beats_any_base, before.beats_any_base)
    assert [values.to_pylist() for values in after.ordering] == [
        values.to_pylist() for values in before.ordering
    ]
    for ours, theirs in zip(after.row, before.row, strict=True):
        assert (ours < 0) == (theirs < 0)
        if ours >= 0:
            assert after.rows.slice(ours, 1).equals(before.rows.slice(theirs, 1))


def history(options: dict[str, str], table_type: str, partition_by: tuple[str, ...]) -> list[Row]:
    """Three days with several file groups each, changed in all of them; then the rows."""
    many = {"hoodie.parquet.small.file.limit": "0"}
    table = WrittenTable().create(table_type, partition_by=partition_by)
    for part in range(3):
        table.upsert([row(f"k{part}{n}", 1, "first", DAYS[n % 3]) for n in range(9)], many)
    changed = [row(f"k{part}{n}", 2, "new", DAYS[n % 3]) for part in range(3) for n in range(4)]
    new = [row(f"n{n}", 2, "new", DAYS[n % 3]) for n in range(4)]
    commit = table.upsert([*changed, *new], options)
    assert (commit.inserted, commit.updated) == (4, 12)
    deleted = [row(f"k{part}{n}", day=DAYS[n % 3]) for part in range(3) for n in range(2)]
    table.write("DELETE", deleted, options)
    late = [row(f"k{part}5", 0, "late", DAYS[2]) for part in range(3)]
    table.upsert(late, options)
    return table.rows(meta=True)


@pytest.mark.parametrize("partition_by", [("day",), ()], ids=["partitions", "no partitions"])
@pytest.mark.parametrize("table_type", ["COPY_ON_WRITE", "MERGE_ON_READ"])
def test_the_rows_do_not_depend_on_the_merging_process(
    table_type: str, partition_by: tuple[str, ...]
) -> None:
    own = ("_hoodie_commit_time", "_hoodie_record_key", "_hoodie_partition_path", *SCHEMA.names)

    def stable_columns(rows: list[Row]) -> list[Row]:
        return [{name: record[name] for name in own} for record in rows]

    alone = history({}, table_type, partition_by)
    assert stable_columns(history(SPILL_ALL, table_type, partition_by)) == stable_columns(alone)
    assert len(alone) == 27 + 4 - 6


def test_spilled_rows_are_deleted_when_the_write_commits() -> None:
    counting = CountingStorage(WrittenTable().storage)
    table = WrittenTable(storage=counting).create()
    table.upsert([row(f"k{n}", 1, "first", DAYS[n % 3]) for n in range(9)])
    counting.reset()
    table.upsert([row(f"k{n}", 2, "new", DAYS[n % 3]) for n in range(3)], SPILL_ALL)
    calls = Counter(name for name, path in counting.touched if path.endswith(".arrow"))
    assert calls == {"open_output": len(DAYS), "open_input": len(DAYS)}
    assert not any(".hoodie/.temp" in path for _, path in counting.touched if ".arrow" in path)
    assert not [file.path for file in counting.list_tree(".hoodie/.temp")]
    assert not [file.path for file in counting.list_tree(".hoodie/.lakewright")]
    assert len(load_snapshot(counting).timeline.completed_writes) == 2
