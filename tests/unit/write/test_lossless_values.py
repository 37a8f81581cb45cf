"""Rows keep their values on their way into a table, and no two rows get one key or partition."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

from lakewright.errors import InvalidError
from lakewright.model.partition_paths import PartitionField, PartitionRule, partition_paths
from lakewright.table.snapshot import load_snapshot
from support.tables import NO_SERVICES, WrittenTable, row

START = datetime(2026, 1, 1, 0, 0, 1, tzinfo=UTC)
MILLIS, MICROS = pa.timestamp("ms", "UTC"), pa.timestamp("us", "UTC")
HIVE = {"hoodie.datasource.write.hive_style_partitioning": "true"}
URL = {"hoodie.datasource.write.partitionpath.urlencode": "true"}
SLASHES = {"hoodie.datasource.write.slash.separated.date.partitioning": "true"}


def schema(kind: pa.DataType, **more: pa.DataType) -> pa.Schema:
    plain = {"id": pa.string(), "day": pa.string(), "ts": pa.int64(), "x": kind}
    return pa.schema(list({**plain, **more}.items()))


def files(table: WrittenTable) -> dict[str, bytes]:
    return {file.path: table.storage.read(file.path) for file in table.storage.list_tree("")}


def refused(
    table: WrittenTable, operation: str, rows: list[dict[str, Any]], input_schema: pa.Schema
) -> str:
    """What a write is refused with, which changes nothing."""
    before = files(table)
    with pytest.raises(InvalidError) as caught:
        table.write(operation, rows, schema=input_schema)
    assert files(table) == before
    return str(caught.value)


USES: dict[str, dict[str, Any]] = {
    "key": {"key": ("x",)},
    "one of the keys": {"key": ("id", "x")},
    "partition": {"partition_by": ("x",)},
    "ordering": {"ordering": ("x",)},
    "plain column": {},
}
TIMES = [START + timedelta(microseconds=n) for n in (1, 2, 999)]
LONGS = [2**53, 2**53 + 1, 2**53 + 3]


@pytest.mark.parametrize("table_type", ["COPY_ON_WRITE", "MERGE_ON_READ"])
@pytest.mark.parametrize("use", USES.values(), ids=list(USES))
@pytest.mark.parametrize(
    ("stored", "written", "first", "values"),
    [(MILLIS, MICROS, START, TIMES), (pa.float64(), pa.int64(), 1.0, LONGS)],
    ids=["microseconds", "longs"],
)
def test_no_value_changes(
    stored: pa.DataType,
    written: pa.DataType,
    first: object,
    values: list[Any],
    use: dict[str, Any],
    table_type: str,
) -> None:
    table = WrittenTable(options=NO_SERVICES, schema=schema(stored)).create(table_type, **use)
    table.upsert([{**row("first"), "x": first}])
    rows = [{**row(f"k{n}"), "x": value} for n, value in enumerate(values)]
    for operation in ("UPSERT", "INSERT", "BULK_INSERT", "INSERT_OVERWRITE"):
        message = refused(table, operation, rows, schema(written))
        assert "would change" in message
        assert "column='x'" in message
    if use.get("key"):
        assert "would change" in refused(table, "DELETE", rows, schema(written))


def test_values_that_fit_the_types_of_the_table_are_written() -> None:
    """A DataFrame has microseconds alone, and rows of a JSON source have longs."""
    stored = schema(MILLIS, long=pa.int64(), double=pa.float64())
    table = WrittenTable(options=NO_SERVICES, schema=stored).create(key=("x",))
    values = {"x": START, "long": 1, "double": 2}
    input_schema = schema(MICROS, long=pa.int32(), double=pa.int64())
    for ts in (1, 2):
        table.write("UPSERT", [{**row("a", ts), **values}], schema=input_schema)
    [returned] = table.rows()
    assert {name: returned[name] for name in ("ts", *values)} == {"ts": 2, **values}


def several(table_type: str = "COPY_ON_WRITE", **how: Any) -> WrittenTable:
    columns = pa.schema([*(pa.field(n, pa.string()) for n in "abpq"), pa.field("ts", pa.int64())])
    table = WrittenTable(options=NO_SERVICES, schema=columns)
    return table.create(table_type, **{"key": ("a", "b"), "partition_by": ("p",), **how})


def record(a: str | None = "a", b: str | None = "b", p: str = "p", q: str = "q") -> dict[str, Any]:
    return {"a": a, "b": b, "p": p, "q": q, "ts": 1}


KEYS: dict[str, tuple[dict[str, Any], str]] = {
    "what comes before the next field": (record(a="x,b:y", b="z"), "field='a', value='x,b:y'"),
    "the text that stands for null": (record(a="__null__"), "value='__null__', rows=1"),
    "the text that stands for the empty one": (record(b="__empty__"), "field='b'"),
}


@pytest.mark.parametrize(("bad", "expected"), KEYS.values(), ids=list(KEYS))
def test_no_two_rows_get_one_key(bad: dict[str, Any], expected: str) -> None:
    table = several()
    good = [
        record(a="x", b="y,b:z"),
        record(a=None),
        record(b=""),
        record(a="x,c:y"),
        record(a=",b"),
    ]
    table.upsert(good)
    assert expected in refused(table, "UPSERT", [*good, bad], table.schema)
    assert len(table.rows()) == len(good)


def test_a_single_key_field_may_have_any_text() -> None:
    for options in ({}, {"hoodie.datasource.write.keygenerator.type": "COMPLEX"}):
        table = several(key=("a",), options=options)
        table.upsert(
            [record(a="__null__"), record(a="__empty__"), record(a="x,b:y"), record(a="a:x")]
        )
        assert len(table.rows()) == 4


def test_rows_with_keys_that_others_have_written_can_be_deleted() -> None:
    table = several()
    table.upsert([record(a=None), record()])
    table.write("DELETE", [record(a="__null__")])
    assert table.rows() == [record()]


DEFAULT = "__HIVE_DEFAULT_PARTITION__"
PARTITIONS: dict[str, tuple[tuple[str, ...], Mapping[str, str], dict[str, Any], str]] = {
    "a slash": (("p", "q"), {}, record(p="a/b", q="c"), "urlencode"),
    "a slash in the last field": (("p", "q"), {}, record(p="a", q="b/c"), "urlencode"),
    "the name of a field": (("p", "q"), HIVE, record(p="a/q=b"), "the name of a partition field"),
    "a slash where dashes become slashes": (
        ("p",),
        SLASHES,
        record(p="2026/01/01"),
        "write dashes",
    ),
    "where rows without value go": (("p",), {}, record(p=DEFAULT), "write NULL"),
    "where rows without value go, by name": (
        ("p", "q"),
        HIVE | URL,
        record(q=DEFAULT),
        "write NULL",
    ),
}


@pytest.mark.parametrize(
    ("fields", "options", "bad", "expected"), PARTITIONS.values(), ids=list(PARTITIONS)
)
def test_no_two_values_get_one_partition(
    fields: tuple[str, ...], options: Mapping[str, str], bad: dict[str, Any], expected: str
) -> None:
    table = several(partition_by=fields, options=options)
    table.upsert([record()])
    message = refused(table, "UPSERT", [bad], table.schema)
    assert "could be taken for another" in message
    assert expected in message


ALLOWED: dict[str, tuple[tuple[str, ...], Mapping[str, str], list[dict[str, Any]]]] = {
    "a slash in a single field": (("p",), {}, [record(p="a/b"), record(p="a"), record(p="a/b/c")]),
    "slashes with names": (("p", "q"), HIVE, [record(p="a/b", q="c"), record(p="a", q="b/c")]),
    "slashes that are encoded": (("p", "q"), URL, [record(p="a/b", q="c"), record(p="a", q="b/c")]),
    "dashes that become slashes": (("p",), SLASHES, [record(p="2026-01-01"), record(p="2026-02")]),
}


@pytest.mark.parametrize(("fields", "options", "rows"), ALLOWED.values(), ids=list(ALLOWED))
def test_values_that_paths_distinguish_are_accepted(
    fields: tuple[str, ...], options: Mapping[str, str], rows: list[dict[str, Any]]
) -> None:
    table = several(partition_by=fields, options=options)
    table.upsert(rows)
    assert len(table.rows()) == len(load_snapshot(table.storage).files()) == len(rows)


@pytest.mark.parametrize("value", [".", ".."])
def test_the_names_of_folders_that_are_there_already_are_no_partitions(value: str) -> None:
    """Encoding leaves dots as they are, and readers would not find other letters in their place."""
    table = several(options=URL)
    assert value in refused(table, "UPSERT", [record(p=value)], table.schema)
    table.upsert([record(p=f"{value}x"), record(p=f"a/{value}")])
    assert len(table.rows()) == 2


def test_partitions_can_still_be_named() -> None:
    rows = pa.table({"p": ["a/b"], "q": [DEFAULT]})
    rule = PartitionRule((PartitionField("p"), PartitionField("q")))
    assert partition_paths(rows, rule).to_pylist() == [f"a/b/{DEFAULT}"]
