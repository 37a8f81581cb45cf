"""Values that real Hudi confuses, changes or refuses: what we refuse, and why."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from real_hudi import RealHudi, RealHudiError, Row

from lakewright.clock import SystemClock
from lakewright.errors import InvalidError
from lakewright.storage.local import LocalStorage
from support.tables import NO_SERVICES, WrittenTable

COLUMNS = ("id", "a", "p", "q")
DDL = "id STRING, a STRING, p STRING, q STRING, ts BIGINT"
URL = {"hoodie.datasource.write.partitionpath.urlencode": "true"}
META = {"_hoodie_record_key", "_hoodie_partition_path"}


def options(key: str, partition: str, more: Mapping[str, str] | None = None) -> dict[str, str]:
    return {
        "hoodie.table.name": "written",
        "hoodie.datasource.write.recordkey.field": key,
        "hoodie.datasource.write.partitionpath.field": partition,
        "hoodie.datasource.write.operation": "upsert",
        "hoodie.table.ordering.fields": "ts",
        "hoodie.metadata.enable": "false",
        **(more or {}),
    }


def row(ts: int, **values: str | None) -> Row:
    return {**dict.fromkeys(COLUMNS, "x"), **values, "ts": ts}


def ours(path: Path, schema: pa.Schema) -> WrittenTable:
    storage = LocalStorage(str(path))
    return WrittenTable(storage, SystemClock(), NO_SERVICES, schema)


ONE_OF_TWO: dict[str, tuple[str, str, list[Row]]] = {
    "keys by a comma": ("a,q", "p", [row(1, a="x,q:y", q="z"), row(2, a="x", q="y,q:z")]),
    "null and its text": ("a,q", "p", [row(1, a=None), row(2, a="__null__")]),
    "the empty text and its text": ("a,q", "p", [row(1, a=""), row(2, a="__empty__")]),
    "no partition and its folder": (
        "id",
        "p",
        [row(1, p=None), row(2, p="__HIVE_DEFAULT_PARTITION__")],
    ),
}


@pytest.mark.parametrize(("key", "partition", "rows"), ONE_OF_TWO.values(), ids=list(ONE_OF_TWO))
def test_two_rows_are_one_to_real_hudi_and_we_refuse_one_of_them(
    real_hudi: RealHudi, tmp_path: Path, key: str, partition: str, rows: list[Row]
) -> None:
    real_hudi.write(tmp_path / "theirs", rows, DDL, options(key, partition))
    [stored] = real_hudi.read(tmp_path / "theirs")
    assert stored["ts"] == 2
    schema = pa.schema([*((name, pa.string()) for name in COLUMNS), ("ts", pa.int64())])
    table = ours(tmp_path / "ours", schema)
    table.create(key=tuple(key.split(",")), partition_by=(partition,))
    with pytest.raises(InvalidError):
        table.upsert(rows)
    # What is there is read, and goes on being written.
    theirs = ours(tmp_path / "theirs", schema)
    assert len(theirs.rows()) == 1
    theirs.upsert([row(3, id="new", a="new")])
    assert len(theirs.rows()) == len(real_hudi.read(tmp_path / "theirs")) == 2


def test_real_hudi_cannot_read_slashes_in_several_partition_fields(
    real_hudi: RealHudi, tmp_path: Path
) -> None:
    rows = [row(1, p="a/b", q="c"), row(2, p="a", q="b/c")]
    real_hudi.write(tmp_path / "plain", rows, DDL, options("id", "p,q"))
    with pytest.raises(RealHudiError, match="non-encoded slashes"):
        real_hudi.read(tmp_path / "plain")
    real_hudi.write(tmp_path / "encoded", rows, DDL, options("id", "p,q", URL))
    assert len(real_hudi.read(tmp_path / "encoded")) == 2


def test_rows_in_folders_of_dots_are_lost_to_real_hudi(real_hudi: RealHudi, tmp_path: Path) -> None:
    """Encoding leaves dots as they are: the folder is the table's own, or lies outside of it."""
    inside, outside = tmp_path / "inside", tmp_path / "folder" / "outside"
    real_hudi.write(inside, [row(1, p=".")], DDL, options("id", "p", URL))
    assert list(inside.glob("*.parquet"))
    with pytest.raises(RealHudiError):
        real_hudi.read(inside)
    real_hudi.write(outside, [row(1, p="..")], DDL, options("id", "p", URL))
    assert list(outside.parent.glob("*.parquet"))
    assert real_hudi.read(outside) == []


def typed(path: Path, x: pa.DataType, first: object, key: str) -> WrittenTable:
    plain = {"id": pa.string(), "day": pa.string(), "ts": pa.int64(), "x": x}
    table = ours(path, pa.schema(list(plain.items()))).create(key=(key,))
    table.upsert([{"id": "0", "day": "d", "ts": 1, "x": first}])
    return table


def numbered(values: list[Any]) -> list[Row]:
    return [{"id": str(n), "day": "d", "ts": 1, "x": x} for n, x in enumerate(values, 1)]


def test_real_hudi_refuses_microseconds_in_a_table_of_milliseconds(
    real_hudi: RealHudi, tmp_path: Path
) -> None:
    """By their type alone, so Spark writes nothing there; we take the times that stay the same."""
    first = datetime(2026, 1, 1, tzinfo=UTC)
    table = typed(tmp_path, pa.timestamp("ms", "UTC"), first, "id")
    ddl = "id STRING, day STRING, ts BIGINT, x TIMESTAMP"
    for text in ("2026-01-01T00:00:01.000Z", "2026-01-01T00:00:01.000001Z"):
        with pytest.raises(RealHudiError, match="SchemaBackwardsCompatibilityException"):
            real_hudi.write(tmp_path, numbered([text]), ddl, options("id", "day"))
    micros = pa.schema(
        [f.with_type(pa.timestamp("us", "UTC")) if f.name == "x" else f for f in table.schema]
    )
    table.write("UPSERT", numbered([first.replace(microsecond=5000)]), schema=micros)
    with pytest.raises(InvalidError, match="would change"):
        table.write("UPSERT", numbered([first.replace(microsecond=5001)]), schema=micros)
    rows = real_hudi.read(tmp_path, columns=["id", "unix_micros(x) % 1000000 AS micros"])
    times = {record["id"]: record["micros"] for record in rows}
    assert times == {"0": 0, "1": 5000}


def test_real_hudi_rounds_longs_in_a_column_of_doubles_and_loses_a_row(
    real_hudi: RealHudi, tmp_path: Path
) -> None:
    longs = [2**53, 2**53 + 1]
    table = typed(tmp_path, pa.float64(), 1.0, "x")
    long_schema = pa.schema([f.with_type(pa.int64()) if f.name == "x" else f for f in table.schema])
    with pytest.raises(InvalidError, match="would change"):
        table.write("UPSERT", numbered(longs), schema=long_schema)
    ddl = "id STRING, day STRING, ts BIGINT, x BIGINT"
    real_hudi.write(tmp_path, numbered(longs), ddl, options("x", "day"))
    assert sorted(record["x"] for record in real_hudi.read(tmp_path)) == [1.0, float(2**53)]
