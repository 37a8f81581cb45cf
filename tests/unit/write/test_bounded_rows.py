"""The rows of a partition are merged and written in bounded memory, whatever their size."""

from __future__ import annotations

import errno
import io
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from lakewright.engine.local import ArrowRows
from lakewright.errors import InvalidError, UnavailableError
from lakewright.model.merge import MergeRule, Upserts, merge_logs, merge_with_base
from lakewright.model.schema import META_COLUMNS, META_FIELDS
from lakewright.spark.worker_environment import local_folder
from lakewright.utils import arrow_rows
from lakewright.write import gathered_rows, spill, task_runner
from lakewright.write.gathered_rows import GatheredRows
from lakewright.write.operations import BulkWriter
from lakewright.write.spill import SpillFile
from lakewright.write.task import Operation
from support.soak import SOAK, sized
from support.tables import SCHEMA, Row, WrittenTable, row

KEPT = ("number",)
STORED = pa.schema([*META_FIELDS, *SCHEMA])


@pytest.fixture
def low_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits at which the rows of a small test are many."""
    monkeypatch.setattr(arrow_rows, "MAX_CHUNK_BYTES", 300)
    monkeypatch.setattr(arrow_rows, "_SMALL_BYTES", 0)
    monkeypatch.setattr(gathered_rows, "PIECE_BYTES", 2_000)
    monkeypatch.setattr(GatheredRows, "max_bytes", 1_500)
    monkeypatch.setattr(task_runner, "_CONVERTED_BYTES", 1_000)
    monkeypatch.setattr(spill, "_BATCH_ROWS", 3)


def numbered(count: int, width: int = 50) -> Iterator[pa.Table]:
    """Rows in tables of seven rows."""
    for first in range(0, count, 7):
        numbers = range(first, min(first + 7, count))
        yield pa.table({"number": numbers, "text": [f"{n}" * width for n in numbers]})


def gathered(count: int, max_bytes: int) -> GatheredRows:
    rows = GatheredRows(lambda _: KEPT, max_bytes=max_bytes)
    for table in numbered(count):
        rows.add(table)
    return rows


MEMORY = {
    "in memory": 1 << 30,
    "in a file": 2_000,
    "in a file, with the last rows in memory": 9_000,
}
GROUPS: dict[str, Sequence[Sequence[int]]] = {
    "all rows in one group": [range(100)],
    "rows in the order of their numbers": [range(10), range(10, 60), range(70, 100)],
    "rows in another order": [range(99, 49, -1), range(0, 50, 2), range(1, 50, 2)],
    "groups without rows": [[], [5, 3], [], [4], []],
    "no group": [],
}


@pytest.mark.parametrize("groups", GROUPS.values(), ids=list(GROUPS))
@pytest.mark.parametrize("max_bytes", MEMORY.values(), ids=list(MEMORY))
@pytest.mark.parametrize("piece_bytes", [1, 3_000, 1 << 30], ids=["rows", "pieces", "one piece"])
def test_every_group_gets_its_rows_in_order(
    groups: Sequence[Sequence[int]],
    max_bytes: int,
    piece_bytes: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gathered_rows, "PIECE_BYTES", piece_bytes)
    rows = gathered(100, max_bytes)
    assert len(rows) == 100
    assert rows.columns().to_pydict() == {"number": list(range(100))}
    found = []
    for pieces in rows.groups([np.array(group, np.int64) for group in groups]):
        tables = list(pieces)
        found.append([number for table in tables for number in table["number"].to_pylist()])
        for table in tables:
            assert table["text"].to_pylist() == [f"{n}" * 50 for n in table["number"].to_pylist()]
            assert table.nbytes <= 2 * max(piece_bytes, rows.nbytes // 100)
    assert found == [list(group) for group in groups]
    rows.close()


def test_a_group_whose_rows_are_not_used_does_not_disturb_the_next() -> None:
    rows = gathered(20, 100)
    groups = rows.groups([np.arange(0, 9), np.arange(9, 20)])
    next(groups)
    second = [number for piece in next(groups) for number in piece["number"].to_pylist()]
    assert second == list(range(9, 20))
    groups.close()
    rows.close()


def test_memory_holds_a_few_pieces_of_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """The buffers of all parts share the memory that the gathered rows may use."""
    monkeypatch.setattr(gathered_rows, "PIECE_BYTES", 100_000)
    rows = GatheredRows(lambda _: KEPT, max_bytes=100_000)
    before = pa.total_allocated_bytes()
    for first in range(0, 20_000, 100):
        numbers = np.arange(first, first + 100)
        rows.add(pa.table({"number": numbers, "text": ["x" * 500] * 100}))
    assert rows.nbytes > 10_000_000
    most = 0
    for pieces in rows.groups([np.arange(number, 20_000, 40) for number in range(40)]):
        for piece in pieces:
            assert len(piece)
            most = max(most, pa.total_allocated_bytes() - before)
    rows.close()
    # The kept column, the buffers, and some copies of one piece.
    assert most < 20_000 * 16 + 100_000 + 8 * 260_000


def history(table_type: str, options: dict[str, str]) -> list[Row]:
    """Inserts, updates, deletes and overwrites of texts of many lengths; then the rows."""
    text = ["x" * (n * 37 % 900) for n in range(60)]
    table = WrittenTable(options=options).create(table_type)
    table.upsert([row(f"k{n}", 1, text[n], f"2026-01-0{n % 2 + 1}") for n in range(40)])
    table.upsert([row(f"k{n}", 2, text[-n], "2026-01-01") for n in range(0, 60, 2)])
    table.upsert([row(f"k{n}", n % 3, text[n], "2026-01-01") for n in (2, 4, 2, 8, 8, 2)])
    table.write("DELETE", [row(f"k{n}", 9, day="2026-01-01") for n in range(0, 30, 4)])
    policy = {"hoodie.datasource.insert.dup.policy": "drop", "hoodie.combine.before.insert": "true"}
    table.write("INSERT", [row(f"k{n}", 3, text[n]) for n in (1, 2, 50, 50, 51)], policy)
    table.write("INSERT_OVERWRITE", [row(f"o{n}", 1, text[n], "2026-01-02") for n in range(30)])
    table.write("BULK_INSERT", [row(f"b{n}", 1, text[n], "2026-01-03") for n in range(30)])
    table.upsert([row(f"b{n}", 2, text[n + 5], "2026-01-03") for n in range(30)])
    return [
        {name: value for name, value in record.items() if name not in META_COLUMNS}
        for record in table.rows()
    ]


INDEXES = {
    "simple": {},
    "small files": {"hoodie.parquet.max.file.size": "2000"},
    "no small files": {"hoodie.parquet.small.file.limit": "0"},
    "deferred": {"lakewright.write.hand.on.bytes": "0", "hoodie.parquet.small.file.limit": "0"},
    "buckets": {"hoodie.index.type": "BUCKET", "hoodie.bucket.index.num.buckets": "3"},
}


@pytest.mark.parametrize("options", INDEXES.values(), ids=list(INDEXES))
@pytest.mark.parametrize("table_type", ["COPY_ON_WRITE", "MERGE_ON_READ"])
def test_no_row_depends_on_the_limits(
    table_type: str, options: dict[str, str], request: pytest.FixtureRequest
) -> None:
    expected = history(table_type, options)
    request.getfixturevalue("low_limits")
    assert history(table_type, options) == expected


def wide(keys: Sequence[str], chunk: pa.Array, ts: int) -> pa.Table:
    """Rows of which each chunk of 64 KB texts is the same one in memory."""
    count = len(chunk)
    assert len(keys) % count == 0
    columns = {name: pa.nulls(len(keys), pa.string()) for name in META_COLUMNS}
    return (
        pa.table(
            {
                **columns,
                "_hoodie_record_key": keys,
                "id": keys,
                "day": pa.repeat("2026-01-01", len(keys)),
                "ts": pa.repeat(ts, len(keys)),
                "note": pa.chunked_array([chunk] * (len(keys) // count), pa.string()),
            }
        )
        .select(STORED.names)
        .cast(STORED)
    )


def test_rows_of_more_than_two_gibibytes_are_merged() -> None:
    chunk = pa.array(["x" * 65_536] * 1024)
    keys = [f"k{n}" for n in range(36 * 1024)]
    rows = wide(keys, chunk, 2)
    assert rows.nbytes > 2**31
    changes = merge_logs([Upserts(rows)], STORED, MergeRule(("ts",)))
    few = changes.select(np.array([7, 36_000, 9]))
    old = wide([f"k{n}" for n in range(7, 10)], chunk.slice(0, 3), 1)
    merged = pa.concat_tables(merge_with_base(old.to_batches(), few, MergeRule(("ts",)))).sort_by(
        "ts"
    )
    assert merged["id"].to_pylist() == ["k8", "k7", "k9", "k36000"]
    assert sum(map(len, merge_with_base([], changes, MergeRule(("ts",))))) == len(keys)


def test_an_upsert_of_wide_rows() -> None:
    """In a soak run 36,000 rows of 64 KB: more than Arrow holds of one column together."""
    count = sized(2 * 1024, 36 * 1024)
    chunk = pa.array([f"{n:06d}" * 10_923 for n in range(1024)])
    table = WrittenTable(options={"hoodie.parquet.compression.codec": "zstd"}).create()
    rows = wide([f"k{n}" for n in range(count)], chunk, 1).select(SCHEMA.names)
    assert (rows.nbytes > 2**31) == SOAK
    table.writer().write(Operation.UPSERT, ArrowRows(rows.slice(0, 1024)))
    commit = table.writer().write(Operation.UPSERT, ArrowRows(rows))
    assert (commit.updated, commit.inserted) == (1024, count - 1024)


class FullDisk(io.BytesIO):
    """A file on a disk without room."""

    def write(self, data: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_is_reported_with_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda **_: FullDisk())
    file = SpillFile(str(tmp_path))
    with pytest.raises(UnavailableError, match=r"spark\.local\.dir") as caught:
        file.write(list(numbered(7)))
    assert caught.value.facts["folder"] == str(tmp_path)
    monkeypatch.undo()
    with pytest.raises(UnavailableError, match="local file"):
        SpillFile(str(tmp_path / "missing"))


@dataclass(frozen=True)
class Failure:
    error: Exception
    message: str


FAILURES = {
    "too little memory": Failure(pa.ArrowMemoryError("malloc of size 8 failed"), "memory"),
    "too little memory for numpy": Failure(MemoryError("Unable to allocate"), "memory"),
    "too much text for one array": Failure(
        pa.ArrowInvalid("offset overflow while concatenating arrays"), "2 GiB"
    ),
    "too much for a builder": Failure(pa.ArrowCapacityError("array cannot contain more"), "2 GiB"),
}


@pytest.mark.parametrize("failure", FAILURES.values(), ids=list(FAILURES))
@pytest.mark.parametrize("operation", ["UPSERT", "INSERT", "BULK_INSERT"])
def test_rows_that_are_too_large_are_an_error_of_ours(
    failure: Failure, operation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise failure.error

    name = {"UPSERT": "merge_rows", "INSERT": "insert_rows", "BULK_INSERT": "by_partition"}
    monkeypatch.setattr(task_runner, name[operation], fail)
    if operation == "BULK_INSERT":
        monkeypatch.setattr(BulkWriter, "write", fail)
    table = WrittenTable().create()
    with pytest.raises(InvalidError, match=failure.message) as caught:
        table.write(operation, [row("a"), row("b")])
    assert caught.value.facts["rows"] == 2
    assert str(failure.error) in str(caught.value.facts["cause"])


FOLDERS = {
    "no folder of Spark's": ({}, None),
    "one folder": ({"SPARK_LOCAL_DIRS": "/data/a"}, "/data/a"),
    "tasks are spread over several": ({"SPARK_LOCAL_DIRS": "/data/a,/data/b"}, "/data/b"),
}


@pytest.mark.parametrize(("environment", "folder"), FOLDERS.values(), ids=list(FOLDERS))
def test_workers_use_the_local_folders_of_spark(
    environment: dict[str, str], folder: str | None
) -> None:
    assert local_folder(7, environment) == folder
