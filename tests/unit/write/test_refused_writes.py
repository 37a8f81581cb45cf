"""What a write refuses; each refusal says why and changes nothing on storage."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pyarrow as pa
import pytest

from lakewright.errors import InvalidError, LakewrightError, UnsupportedError
from lakewright.format.table_properties import (
    format_properties,
    parse_properties,
    with_table_checksum,
)
from lakewright.table.properties import PROPERTIES
from support.tables import SCHEMA, WrittenTable, row

Case = tuple[Callable[[WrittenTable], object], type[LakewrightError], str]


def with_property(table: WrittenTable, **changed: str) -> WrittenTable:
    values = parse_properties(table.storage.read(PROPERTIES))
    values |= {key.replace("_", "."): value for key, value in changed.items()}
    table.storage.replace(PROPERTIES, format_properties(with_table_checksum(values)))
    return table


def without(name: str) -> pa.Schema:
    return SCHEMA.remove(SCHEMA.get_field_index(name))


def renamed(old: str, new: str) -> pa.Schema:
    return pa.schema([f.with_name(new) if f.name == old else f for f in SCHEMA])


CASES: dict[str, Case] = {
    "a row without key": (
        lambda table: table.upsert([row("a"), {**row("b"), "id": None}]),
        InvalidError,
        "no record key",
    ),
    "a row with an empty key": (lambda t: t.upsert([row("")]), InvalidError, "no record key"),
    "the key column is missing": (
        lambda t: t.write("UPSERT", [row("a")], schema=without("id")),
        InvalidError,
        "missing=\\['id'\\]",
    ),
    "the key column was renamed": (
        lambda t: t.write("UPSERT", [], schema=renamed("id", "key")),
        InvalidError,
        "missing=\\['id'\\]",
    ),
    "the ordering column is missing": (
        lambda t: t.write("UPSERT", [row("a")], schema=without("ts")),
        InvalidError,
        "missing=\\['ts'\\]",
    ),
    "the partition column is missing": (
        lambda t: t.write("UPSERT", [row("a")], schema=without("day")),
        InvalidError,
        "day",
    ),
    "a column of the table is missing": (
        lambda t: t.write("UPSERT", [row("a")], schema=without("note")),
        InvalidError,
        "note",
    ),
    "a column has another type": (
        lambda t: t.write(
            "UPSERT",
            [{**row("a"), "note": 1}],
            schema=SCHEMA.set(3, pa.field("note", pa.int64())),
        ),
        InvalidError,
        "note",
    ),
    **{
        f"a column of a reserved name: {name}, {operation}": (
            partial(
                lambda t, name, operation: t.write(
                    operation,
                    [{**row("k1"), name: True}],
                    schema=SCHEMA.append(pa.field(name, pa.bool_())),
                ),
                name=name,
                operation=operation,
            ),
            InvalidError,
            f"reserved names.*columns=\\['{name}'\\]",
        )
        for name, operation in (
            ("_HOODIE_RECORD_KEY", "UPSERT"),
            ("_Hoodie_Operation", "INSERT_OVERWRITE_TABLE"),
            ("_lakewright_leaves", "UPSERT"),
            ("_lakewright_leaves", "INSERT"),
            ("_Lakewright_Route", "DELETE"),
        )
    },
    "the options name another table": (
        lambda t: t.upsert([row("a")], {"hoodie.table.name": "other"}),
        InvalidError,
        "Config conflict",
    ),
    "the options name another key": (
        lambda t: t.upsert([row("a")], {"hoodie.datasource.write.recordkey.field": "note"}),
        InvalidError,
        "Config conflict",
    ),
    "the options name another ordering": (
        lambda t: t.upsert([row("a")], {"hoodie.datasource.write.precombine.field": "note"}),
        InvalidError,
        "Config conflict",
    ),
    "an option does not exist": (
        lambda t: t.upsert([row("a")], {"hoodie.upsert.shufle.parallelism": "2"}),
        InvalidError,
        "did_you_mean='hoodie.upsert.shuffle.parallelism'",
    ),
    "an option has a wrong value": (
        lambda t: t.upsert([row("a")], {"hoodie.parquet.max.file.size": "much"}),
        InvalidError,
        "does not parse",
    ),
    "an index that is not maintained": (
        lambda t: t.upsert([row("a")], {"hoodie.index.type": "RECORD_INDEX"}),
        UnsupportedError,
        "RECORD_INDEX",
    ),
    "several writers without blocking on copy-on-write": (
        lambda t: t.upsert(
            [row("a")],
            {"hoodie.write.concurrency.mode": "NON_BLOCKING_CONCURRENCY_CONTROL"},
        ),
        InvalidError,
        "merge-on-read",
    ),
    "an ordered delete without ordering column": (
        lambda t: t.write("DELETE", [row("a")], ordered=True, schema=without("ts")),
        InvalidError,
        "missing=\\['ts'\\]",
    ),
    "an ordered delete without ordering value": (
        lambda t: t.write("DELETE", [row("a"), {**row("a"), "ts": None}], ordered=True),
        InvalidError,
        "no ordering value.*columns=\\['ts'\\]",
    ),
    "no partition to delete is named": (
        lambda t: t.delete_partitions(),
        InvalidError,
        "no partition",
    ),
    "duplicates are to fail the insert": (
        lambda t: t.write("INSERT", [row("k1")], {"hoodie.datasource.insert.dup.policy": "fail"}),
        InvalidError,
        "already",
    ),
    "event times in a column that holds none": (
        lambda t: t.upsert(
            [row("a", note="x")],
            {
                "hoodie.payload.event.time.field": "flag",
                "hoodie.write.track.event.time.watermark": "true",
            },
        ),
        InvalidError,
        "flag",
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_a_refusal_changes_nothing(case: Case) -> None:
    run, kind, message = case
    table = WrittenTable().create()
    table.upsert([row("k1"), row("k2")])
    before = files(table)
    with pytest.raises(kind, match=message):
        run(table)
    assert files(table) == before


PROPERTIES_REFUSED = {
    "a record index": {"hoodie_table_metadata_partitions": "files,record_index"},
    "a secondary index": {"hoodie_table_metadata_partitions": "files,secondary_index_note"},
    "rows without meta columns": {"hoodie_populate_meta_fields": "false"},
    "merging by a class": {"hoodie_record_merge_mode": "CUSTOM"},
    "updates in part": {"hoodie_table_partial_update_mode": "IGNORE_DEFAULTS"},
}


@pytest.mark.parametrize("changed", PROPERTIES_REFUSED.values(), ids=list(PROPERTIES_REFUSED))
def test_features_that_are_not_maintained_are_refused(changed: dict[str, str]) -> None:
    table = WrittenTable().create()
    table.upsert([row("k1")])
    with_property(table, **changed)
    before = files(table)
    with pytest.raises(UnsupportedError):
        table.upsert([row("k2")])
    assert files(table) == before


def test_no_table_there() -> None:
    with pytest.raises(InvalidError, match="no table"):
        WrittenTable().upsert([row("a")])


def test_a_newer_table_version() -> None:
    table = with_property(WrittenTable().create(), hoodie_table_version="10")
    with pytest.raises(UnsupportedError, match="version"):
        table.upsert([row("a")])


def test_no_rows_are_an_empty_commit() -> None:
    table = WrittenTable().create()
    table.upsert([row("a")])
    commit = table.upsert([])
    assert (commit.partitions, commit.inserted, commit.updated) == ((), 0, 0)
    assert [record["id"] for record in table.rows()] == ["a"]


def files(table: WrittenTable) -> dict[str, bytes]:
    return {file.path: table.storage.read(file.path) for file in table.storage.list_tree("")}
