"""Which partition columns a path determines, and which partitions filters exclude."""

from __future__ import annotations

from datetime import date

import pyarrow as pa
import pytest

from lakewright.model.table_config import TableConfig
from lakewright.scan.scan_plan import Comparison, PathColumn, may_match, path_columns

SCHEMA = pa.schema(
    [
        pa.field("day", pa.string()),
        pa.field("hour", pa.int32()),
        pa.field("date", pa.date32()),
        pa.field("price", pa.float64()),
    ]
)


def config(fields: str, properties: dict[str, str] | None = None) -> TableConfig:
    return TableConfig.from_properties(
        {
            "hoodie.table.name": "t",
            "hoodie.table.type": "COPY_ON_WRITE",
            "hoodie.table.version": "9",
            "hoodie.table.partition.fields": fields,
            "hoodie.table.keygenerator.type": "SIMPLE",
            **(properties or {}),
        }
    )


PATH_VALUES = {
    "text": ("day", ["2026-01-01", "x"], [PathColumn("day", 0, 1, "string")]),
    "a number": ("hour", ["7", "12"], [PathColumn("hour", 0, 1, "int32")]),
    "a date": ("date", ["2026-01-01"], [PathColumn("date", 0, 1, "date32[day]", span=(0, 10))]),
    "several levels, all of one length": (
        "day,hour",
        ["aa/1", "bb/2"],
        [
            PathColumn("day", 0, 2, "string", span=(0, 2)),
            PathColumn("hour", 1, 1, "int32", span=(3, 1)),
        ],
    ),
    "one level in doubt leaves the other": (
        "day,hour",
        ["a%2Fa/1", "bb/2"],
        [PathColumn("hour", 1, 1, "int32")],
    ),
    "null or empty": ("day", ["__HIVE_DEFAULT_PARTITION__", "a"], []),
    "a slash in a value": ("day", ["a/b"], []),
    "a number that is written in another way": ("hour", ["07"], []),
    "a type with many spellings": ("price", ["1.5"], []),
    "a column that is not there": ("nested.day", ["a"], []),
    "no partitions": ("day", [], []),
}


@pytest.mark.parametrize(
    ("fields", "partitions", "expected"), PATH_VALUES.values(), ids=list(PATH_VALUES)
)
def test_the_values_of_a_path(
    fields: str, partitions: list[str], expected: list[PathColumn]
) -> None:
    assert list(path_columns(config(fields), SCHEMA, partitions)) == expected


def test_hive_style_names_stand_before_the_value() -> None:
    hive = config("day", {"hoodie.datasource.write.hive_style_partitioning": "true"})
    (column,) = path_columns(hive, SCHEMA, ["day=a", "day=b"])
    assert column.prefix == "day="
    assert column.value("day=a") == "a"


def test_other_key_generators_change_the_value() -> None:
    by_time = config("day", {"hoodie.table.keygenerator.type": "TIMESTAMP"})
    assert path_columns(by_time, SCHEMA, ["2026"]) == ()


HOUR = (PathColumn("hour", 0, 1, "int32"),)
FILTERS = {
    "equal": (Comparison("hour", "=", 7), True),
    "not equal": (Comparison("hour", "=", 8), False),
    "less": (Comparison("hour", "<", 7), False),
    "at least": (Comparison("hour", ">=", 7), True),
    "one of": (Comparison("hour", "in", (1, 7)), True),
    "none of": (Comparison("hour", "in", (1, 2)), False),
    "another type is left to Spark": (Comparison("hour", "=", "8"), True),
    "another column is left to Spark": (Comparison("price", "=", 8), True),
    "another operator is left to Spark": (Comparison("hour", "starts with", 8), True),
}


@pytest.mark.parametrize(("comparison", "expected"), FILTERS.values(), ids=list(FILTERS))
def test_filters_on_partition_values(comparison: Comparison, expected: bool) -> None:
    assert may_match("7", HOUR, [comparison]) is expected


def test_dates_compare_as_dates() -> None:
    day = (PathColumn("date", 0, 1, "date32[day]"),)
    assert may_match("2026-01-02", day, [Comparison("date", ">", date(2026, 1, 1))])
    assert not may_match("2026-01-02", day, [Comparison("date", ">", date(2026, 1, 2))])
