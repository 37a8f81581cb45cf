"""Tables that real Hudi makes now, with what the golden tables lack: we read what it reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from real_hudi import RealHudi, Row

from lakewright.scan.planner import plan_read_optimized, plan_snapshot
from lakewright.storage.factory import storage_for
from lakewright.table.snapshot import load_snapshot
from lakewright.testing.local_reads import read_plan
from support.golden import as_json
from support.soak import SOAK, some

pytestmark = pytest.mark.sampled(2)

OPTIONS = {
    "hoodie.datasource.write.recordkey.field": "id",
    "hoodie.datasource.write.precombine.field": "ts",
    "hoodie.datasource.write.partitionpath.field": "p",
    "hoodie.datasource.write.table.type": "MERGE_ON_READ",
    "hoodie.metadata.enable": "false",
    "hoodie.compact.inline": "false",
    "hoodie.table.timeline.timezone": "UTC",
}


@dataclass(frozen=True)
class Case:
    """A table: its schema, the rows of each write, and options beyond the usual."""

    schema: str
    writes: tuple[list[Row], ...]
    options: Mapping[str, str] = field(default_factory=dict)
    deletes: list[Row] = field(default_factory=list)
    later: list[Row] = field(default_factory=list)


def rows(*pairs: tuple[str, object], **same: object) -> list[Row]:
    return [{"id": key, "ts": ts, "p": "a", **same} for key, ts in pairs]


CASES = {
    "timestamps order versions and deletes": Case(
        "id STRING, ts TIMESTAMP, p STRING, v STRING",
        (
            rows(*((f"k{n}", "2026-01-01T00:00:01Z") for n in range(6)), v="first"),
            rows(("k1", "2026-01-01T00:00:02Z"), ("k2", "2026-01-01T00:00:00Z"), v="second"),
        ),
        deletes=rows(("k3", "2026-01-01T00:00:05Z"), ("k4", "2026-01-01T00:00:00Z")),
    ),
    "texts order versions": Case(
        "id STRING, ts STRING, p STRING, v STRING",
        (
            rows(*((f"k{n}", "b") for n in range(4)), v="first"),
            rows(("k1", "c"), ("k2", "a"), v="second"),
        ),
        deletes=rows(("k3", "d")),
    ),
    "decimals order versions": Case(
        "id STRING, ts DECIMAL(10,2), p STRING, v STRING",
        (
            rows(*((f"k{n}", 5.25) for n in range(4)), v="first"),
            rows(("k1", 10.5), ("k2", 4.75), v="second"),
        ),
        deletes=rows(("k3", 7.0)),
    ),
    "dates order versions": Case(
        "id STRING, ts DATE, p STRING, v STRING",
        (
            rows(*((f"k{n}", "2026-01-02") for n in range(4)), v="first"),
            rows(("k1", "2026-01-03"), ("k2", "2026-01-01"), v="second"),
        ),
        deletes=rows(("k3", "2026-02-01")),
    ),
    "integers order versions, and zero is no order": Case(
        "id STRING, ts INT, p STRING, v STRING",
        (
            rows(*((f"k{n}", 5) for n in range(4)), v="first"),
            rows(("k1", 7), ("k2", 3), v="second"),
        ),
        deletes=rows(("k3", 0)),
    ),
    "rows that come back after an unconditional delete": Case(
        "id STRING, ts BIGINT, p STRING, v STRING",
        (rows(*((f"k{n}", 10) for n in range(4)), v="first"),),
        deletes=rows(("k1", 0), ("k2", 0)),
        later=rows(("k1", 3), ("k2", 12), v="again"),
    ),
    "all kinds of values": Case(
        "id STRING, ts BIGINT, p STRING, b BOOLEAN, i INT, f FLOAT, d DOUBLE, n DECIMAL(30,10), "
        "day DATE, at TIMESTAMP, bytes BINARY, list ARRAY<STRING>, map MAP<STRING,BIGINT>, "
        "deep STRUCT<x: INT, ys: ARRAY<STRUCT<z: STRING>>>",
        (
            [
                {
                    "id": f"k{n}",
                    "ts": 1,
                    "p": "a",
                    "b": True,
                    "i": n,
                    "f": 1.5,
                    "d": 2.25,
                    "n": 12345.678,
                    "day": "1969-12-31",
                    "at": "2026-01-01T01:02:03.004Z",
                    "bytes": "AQID",
                    "list": ["x", "y"],
                    "map": {"one": 1},
                    "deep": {"x": n, "ys": [{"z": "a"}, {"z": None}]},
                }
                for n in range(3)
            ]
            + [{"id": "k9", "ts": 1, "p": "a"}],
            [
                {
                    "id": "k1",
                    "ts": 2,
                    "p": "a",
                    "list": [],
                    "map": {},
                    "deep": {"x": None, "ys": None},
                    "n": -0.5,
                }
            ],
        ),
    ),
    "parquet log blocks of all kinds of values": Case(
        "id STRING, ts BIGINT, p STRING, n DECIMAL(12,2), day DATE, at TIMESTAMP, "
        "list ARRAY<STRING>, map MAP<STRING,BIGINT>, deep STRUCT<x: INT, ys: ARRAY<STRING>>",
        (
            rows(*((f"k{n}", 1) for n in range(3))),
            [
                {
                    "id": "k1",
                    "ts": 2,
                    "p": "a",
                    "n": 7.5,
                    "day": "2026-01-01",
                    "at": "2026-01-01T01:02:03Z",
                    "list": ["x"],
                    "map": {"one": 1},
                    "deep": {"x": 1, "ys": ["q"]},
                }
            ],
        ),
        {"hoodie.logfile.data.block.format": "parquet"},
    ),
    "dates as partitions": Case(
        "id STRING, ts BIGINT, p DATE, v INT",
        ([{"id": f"k{n}", "ts": 1, "p": f"2026-01-0{n + 1}", "v": n} for n in range(3)],),
    ),
    "numbers as partitions, hive style": Case(
        "id STRING, ts BIGINT, p INT, v INT",
        ([{"id": f"k{n}", "ts": 1, "p": n, "v": n} for n in range(3)],),
        {"hoodie.datasource.write.hive_style_partitioning": "true"},
    ),
    "odd partition values, encoded": Case(
        "id STRING, ts BIGINT, p STRING, v INT",
        (
            [
                {"id": f"k{n}", "ts": 1, "p": value, "v": n}
                for n, value in enumerate(["a/b", "c%d", "e f", "g=h", "ø:*", None])
            ],
        ),
        {"hoodie.datasource.write.partitionpath.urlencode": "true"},
    ),
    "a column of its own marks deletes": Case(
        "id STRING, ts BIGINT, p STRING, op STRING",
        (
            rows(*((f"k{n}", 1) for n in range(4)), op="I"),
            rows(("k1", 2), ("k2", 2), op="D"),
            rows(("k2", 3), op="U"),
        ),
        {
            "hoodie.datasource.write.payload.class": (
                "org.apache.hudi.common.model.DefaultHoodieRecordPayload"
            ),
            "hoodie.payload.delete.field": "op",
            "hoodie.payload.delete.marker": "D",
        },
    ),
}


def ours(path: Path, *, optimized: bool = False) -> list[str]:
    storage = storage_for(path)
    plan = (plan_read_optimized if optimized else plan_snapshot)(load_snapshot(storage))
    return sorted(
        as_json(row) for row in read_plan(storage, plan).to_pylist(maps_as_pydicts="strict")
    )


def theirs(hudi: RealHudi, path: Path, *, optimized: bool = False) -> list[str]:
    options = {"hoodie.datasource.query.type": "read_optimized"} if optimized else {}
    return sorted(as_json(row) for row in hudi.read(path, options))


NAMES = some(list(CASES), 0, 3, 5, 6, 7, 10, 11)


@pytest.mark.parametrize("case", [CASES[name] for name in NAMES], ids=NAMES)
def test_we_read_what_real_hudi_reads(case: Case, real_hudi: RealHudi, tmp_path: Path) -> None:
    path = tmp_path / "fresh"
    options = {**OPTIONS, "hoodie.table.name": "fresh", **case.options}
    for number, data in enumerate(case.writes):
        real_hudi.write(path, data, case.schema, options, "append" if number else "overwrite")
        if SOAK:
            assert ours(path) == theirs(real_hudi, path)
    if case.deletes:
        deleting = {**options, "hoodie.datasource.write.operation": "delete"}
        real_hudi.write(path, case.deletes, case.schema, deleting)
        if SOAK:
            assert ours(path) == theirs(real_hudi, path)
    if case.later:
        real_hudi.write(path, case.later, case.schema, options)
    assert ours(path) == theirs(real_hudi, path)
    assert ours(path, optimized=True) == theirs(real_hudi, path, optimized=True)


def test_a_type_that_became_wider(real_hudi: RealHudi, tmp_path: Path) -> None:
    path = tmp_path / "wider"
    options = {**OPTIONS, "hoodie.table.name": "wider"}
    narrow, wide = ("id STRING, ts BIGINT, p STRING, v " + kind for kind in ("INT", "BIGINT"))
    real_hudi.write(path, rows(("k1", 1), ("k2", 1), v=1), narrow, options, "overwrite")
    real_hudi.write(path, rows(("k2", 2), v=2**40), wide, options)
    assert ours(path) == theirs(real_hudi, path)


def test_rows_updated_in_part(real_hudi: RealHudi, tmp_path: Path) -> None:
    """MERGE INTO writes the changed columns alone; a late one among them loses."""
    path = tmp_path / "parts"
    listed = {"hoodie.metadata.enable": "false"}
    real_hudi.sql(
        "CREATE TABLE parts (id STRING, ts BIGINT, a STRING, b STRING, p STRING) USING hudi "
        "TBLPROPERTIES (type='mor', primaryKey='id', preCombineField='ts', "
        "'hoodie.compact.inline'='false') "
        f"PARTITIONED BY (p) LOCATION '{path}'",
        listed,
    )
    real_hudi.sql(
        "INSERT INTO parts VALUES ('k1', 1L, 'a1', 'b1', 'x'), ('k2', 10L, 'a1', 'b1', 'x'), "
        "('k3', 1L, 'a1', 'b1', 'x')",
        listed,
    )
    for times, column in (((5, 5, 5), "a"), ((3, 12, 7), "b")):
        values = " UNION ALL ".join(
            f"SELECT 'k{n}' AS id, {time}L AS ts, '{column}{time}' AS {column}, 'x' AS p"
            for n, time in enumerate(times, 1)
        )
        real_hudi.sql(
            f"MERGE INTO parts t USING ({values}) s ON t.id = s.id AND t.p = s.p "
            f"WHEN MATCHED THEN UPDATE SET ts = s.ts, {column} = s.{column}",
            listed,
        )
        assert ours(path) == theirs(real_hudi, path)
    assert any(ours(path, optimized=True)[n] != ours(path)[n] for n in range(3))
