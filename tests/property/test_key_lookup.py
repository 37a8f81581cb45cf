"""Keys are found where a search that takes one file slice after the other finds them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakewright.engine.local import ArrowRows, LocalEngine
from lakewright.format.parquet_footer import parse_footer
from lakewright.model.file_group import FileSlice
from lakewright.model.schema import RECORD_KEY
from lakewright.scan.scan_plan import plan_scan
from lakewright.scan.slice_reader import read_slices
from lakewright.table.snapshot import load_snapshot
from lakewright.testing.storage import CountingStorage
from lakewright.utils import arrow_rows
from lakewright.write import index
from lakewright.write.index import NOWHERE, Positions, lookup_keys
from lakewright.write.task import Operation, WriteStatus, WriteTask
from lakewright.write.writer import RowSource
from support.soak import sized
from support.tables import NO_SERVICES, WrittenTable, row

MANY_GROUPS = {**NO_SERVICES, "hoodie.parquet.small.file.limit": "0"}
KEYS = [f"k{n:02d}" for n in range(24)]
COMPACTED = {"hoodie.compact.inline.max.delta.commits": "1"}


# The reference: one slice after the other, each with a set of all keys that are not found yet.


def found_one_by_one(task: WriteTask, slices: Sequence[FileSlice], keys: pa.Array) -> Positions:
    locations = np.full(len(keys), NOWHERE, np.int64)
    unresolved = np.arange(len(keys))
    for position in sorted(range(len(slices)), key=lambda index: bool(slices[index].logs)):
        item = slices[position]
        hits = keys_in_slice(task, item, keys.take(pa.array(unresolved)))
        key_indices = unresolved[hits]
        if item.base is None or not item.logs:
            locations[key_indices] = position
            unresolved = np.delete(unresolved, hits)
            continue
        ambiguous = key_indices[locations[key_indices] != NOWHERE]
        locations[key_indices[locations[key_indices] == NOWHERE]] = position
        live = ambiguous[matches(merged_keys(task, item), keys.take(pa.array(ambiguous)))]
        locations[live] = position
    return locations


def keys_in_slice(task: WriteTask, item: FileSlice, keys: pa.Array) -> Positions:
    if item.base is None:
        return matches(merged_keys(task, item), keys)
    with task.storage.open_input(item.path(item.base)) as source:
        file = pq.ParquetFile(source)
        footer = parse_footer(file.metadata.metadata)
        may_contain = footer.may_contain if task.uses_blooms else footer.in_range
        candidates = np.flatnonzero(may_contain(keys))
        stored = file.read(columns=[RECORD_KEY]).column(0)
    in_base = candidates[matches(stored, keys.take(pa.array(candidates)))]
    completed = task.snapshot.timeline.by_time[item.base.instant].completed_at or ""
    older = tuple(log for log in item.logs if log.instant < completed)
    if not older:
        return in_base
    in_logs = merged_keys(task, replace(item, base=None, logs=older))
    return np.union1d(in_base, matches(in_logs, keys))


def merged_keys(task: WriteTask, item: FileSlice) -> pa.ChunkedArray:
    schema = task.snapshot.schema(task.snapshot.view())
    plan = plan_scan(task.config, schema, [item], columns=(RECORD_KEY,))
    columns = [batch.column(0) for batch in read_slices(task.storage, plan)]
    return pa.chunked_array(columns, pa.string())


def matches(stored: pa.ChunkedArray, keys: pa.Array) -> Positions:
    indices = pc.index_in(stored, value_set=keys).drop_null()
    return np.unique(np.asarray(indices.combine_chunks(), dtype=np.int64))


class NotingEngine(LocalEngine):
    """Keeps the task of the last write."""

    task: WriteTask

    def write(self, task: WriteTask, rows: RowSource) -> Sequence[WriteStatus]:
        self.task = task
        return super().write(task, rows)


@dataclass(frozen=True)
class Found:
    """A table's task, and base and log files of its file groups."""

    task: WriteTask
    groups: tuple[FileSlice, ...]


def found_in(table: WrittenTable, keys: Sequence[str] = ("last",)) -> Found:
    """Write a last row, and return the task of a write that would follow."""
    engine = NotingEngine()
    client = replace(table.writer(), local_engine=engine)
    rows = pa.Table.from_pylist([row(key, 99) for key in keys], table.schema)
    client.write(Operation.INSERT, ArrowRows(rows))
    task = replace(engine.task, snapshot=load_snapshot(table.storage))
    groups = task.snapshot.groups(task.snapshot.view())
    # Log files of all slices of a group, whatever base file a compaction wrote since.
    slices = [
        replace(
            group.latest_merged_slice(),
            logs=tuple(sorted(chain(*(s.logs for s in group.slices)), key=lambda log: log.order)),
        )
        for group in groups
    ]
    return Found(task, tuple(slices))


OPERATIONS = ["UPSERT", "UPSERT", "INSERT", "DELETE", "COMPACT"]
steps = st.lists(
    st.tuples(
        st.sampled_from(OPERATIONS),
        st.lists(st.sampled_from(KEYS), min_size=1, max_size=8, unique=True),
    ),
    min_size=1,
    max_size=7,
)
TABLES = {
    "copy on write": ("COPY_ON_WRITE", {}),
    "copy on write, bloom index": ("COPY_ON_WRITE", {"hoodie.index.type": "BLOOM"}),
    "merge on read": ("MERGE_ON_READ", {}),
    "merge on read, bloom index": ("MERGE_ON_READ", {"hoodie.index.type": "BLOOM"}),
}


@pytest.mark.parametrize(("table_type", "options"), TABLES.values(), ids=list(TABLES))
@given(steps=steps, data=st.data())
@settings(max_examples=sized(8, 300))
def test_keys_are_found_as_by_a_search_of_one_slice_after_the_other(
    table_type: str,
    options: dict[str, str],
    steps: list[tuple[str, list[str]]],
    data: st.DataObject,
) -> None:
    table = WrittenTable(options={**MANY_GROUPS, **options}).create(table_type, partition_by=())
    table.upsert([row(key) for key in KEYS[:3]])
    for number, (operation, keys) in enumerate(steps, start=1):
        if operation != "COMPACT":
            table.write(operation, [row(key, number) for key in keys])
        elif table_type == "MERGE_ON_READ":
            table.services(COMPACTED).run("compaction")
    found = found_in(table)
    slices = []
    for item in data.draw(st.permutations(found.groups)):
        logs = data.draw(st.lists(st.sampled_from(item.logs), unique=True)) if item.logs else []
        logs.sort(key=lambda log: log.order)
        keeps_base = not logs or data.draw(st.booleans())
        slices.append(replace(item, logs=tuple(logs), base=item.base if keeps_base else None))
    chosen = data.draw(st.lists(st.sampled_from([*KEYS, "none", "last"]), unique=True))
    wanted = pa.array(chosen, pa.string())
    slices = [item for item in slices if item.base is not None or item.logs]
    expected = found_one_by_one(found.task, slices, wanted)
    assert lookup_keys(found.task, slices, wanted).tolist() == expected.tolist()


def many_files(files: int, keys_in_file: int, *, ordered: bool) -> Found:
    """A table of some files; their keys are consecutive, or all files have the same key range."""
    table = WrittenTable(storage=CountingStorage(WrittenTable().storage), options=MANY_GROUPS)
    table.create(partition_by=())
    for number in range(files):
        table.write("INSERT", [row(key) for key in file_keys(number, files, keys_in_file, ordered)])
    return found_in(table, ["z"])


def file_keys(number: int, files: int, count: int, ordered: bool) -> list[str]:
    first, step = (number * count, 1) if ordered else (number, files)
    return [f"k{first + n * step:06d}" for n in range(count)]


def test_the_wanted_keys_are_indexed_a_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many stored keys as wanted ones are compared at once, and not file by file."""
    sizes: list[tuple[int, int]] = []

    def noted(values: pa.ChunkedArray, keys: pa.Array) -> pa.Array:
        sizes.append((len(values), len(keys)))
        return compare(values, keys)

    compare = arrow_rows.index_in
    monkeypatch.setattr(index, "index_in", noted)
    found = many_files(30, 10, ordered=False)
    wanted = pa.array([f"k{n:06d}" for n in range(0, 300, 3)])
    locations = lookup_keys(found.task, found.groups, wanted)
    assert (locations != NOWHERE).all()
    assert len(sizes) <= 12
    # No key is looked for again once it is found.
    assert [keys for _, keys in sizes] == sorted((keys for _, keys in sizes), reverse=True)
    assert sum(keys for _, keys in sizes) <= 300 + 100


def test_files_without_wanted_keys_in_their_range_are_not_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read: list[int] = []

    def noted(file: pq.ParquetFile) -> pa.ChunkedArray:
        read.append(file.metadata.num_rows)
        return read_keys(file)

    read_keys = index._read_keys
    monkeypatch.setattr(index, "_read_keys", noted)
    found = many_files(12, 10, ordered=True)
    for wanted, files in {("k000003", "k000115"): 2, ("a", "k000119x", "zz"): 0}.items():
        read.clear()
        locations = lookup_keys(found.task, found.groups, pa.array(wanted))
        assert len(set(locations.tolist()) - {NOWHERE}) == files
        assert len(read) == files


def test_a_few_files_are_read_ahead() -> None:
    """A search that has found all keys in the first file has opened no more than the next ones."""
    found = many_files(30, 3, ordered=False)
    storage = found.task.storage
    assert isinstance(storage, CountingStorage)
    storage.reset()
    (position,) = lookup_keys(found.task, found.groups[:-1], pa.array(["k000000"])).tolist()
    opened = [path for name, path in storage.touched if name == "open_input"]
    assert len(opened) <= position + index._FILES_AHEAD
