"""Records of metadata tables in tests, and statistics that real Hudi combined as well."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import Any

import pyarrow as pa

from lakewright.format.metadata_table.column_values import (
    ValueType,
    Wrapper,
    stored_type,
    wrap_values,
)
from lakewright.format.metadata_table.record_schema import FILES
from lakewright.model.metadata_partitions import IndexVersion

INT, LONG, FLOAT, DOUBLE = pa.int32(), pa.int64(), pa.float32(), pa.float64()
TEXT, BYTES, FLAG, DAY = pa.string(), pa.binary(), pa.bool_(), pa.date32()
TWO, THREE = pa.decimal128(10, 2), pa.decimal128(10, 3)
NAN = float("nan")
V1 = IndexVersion.V1


def listing(**listed: dict[str, int]) -> pa.Table:
    """Records of a listing; a size of -1 marks a deleted file."""
    return pa.Table.from_pylist(
        [
            {
                "key": key,
                "files": [
                    {"name": name, "size": max(size, 0), "is_deleted": size < 0}
                    for name, size in files.items()
                ],
            }
            for key, files in listed.items()
        ],
        schema=FILES,
    )


def stats(
    column: pa.DataType | None,
    least: object = None,
    greatest: object = None,
    version: IndexVersion = IndexVersion.V2,
    **changed: Any,
) -> dict[str, Any]:
    """A record of statistics; a column without type has no values, as after deletes alone."""
    record: dict[str, Any] = {
        "key": "k",
        "type": 6,
        "file_name": "p",
        "column_name": "v",
        "value_count": 10,
        "null_count": 1,
        "total_size": 100,
        "total_uncompressed_size": 200,
        "is_deleted": False,
        "is_tight_bound": False,
    }
    stored = None if column is None else stored_type(column, version)
    for side, value in (("min", least), ("max", greatest)):
        record[f"{side}_wrapper"], record[f"{side}_value"] = int(Wrapper.NULL), b""
        if stored is not None:
            wrapped = wrap_values(pa.array([value], column), stored)
            record[f"{side}_wrapper"] = wrapped.wrappers[0].as_py()
            record[f"{side}_value"] = wrapped.values[0].as_py()
    if stored is not None:
        record |= {"value_type": stored.value_type, "value_type_info": stored.info}
    elif version is IndexVersion.V2:
        record["value_type"] = int(ValueType.NULL)
    return record | changed


@dataclass(frozen=True)
class Widened:
    """Statistics of one column, an older and a newer record, and what both together say.

    `fails` says why Hudi has no such result.
    """

    older: dict[str, Any]
    newer: dict[str, Any]
    least: object
    greatest: object
    value_type: int | None
    fails: str | None = None


ONE_CHARACTER, PAIR = "\ue000", "\U0001f600"
WIDENED = {
    "ints": Widened(stats(INT, 3, 5), stats(INT, 1, 4), 1, 5, 3),
    "an older record without a type": Widened(stats(None), stats(INT, 1, 4), 1, 4, 3),
    "a newer record without a type": Widened(
        stats(INT, 1, 4), stats(None), 1, 4, 3, fails="should be Void, but got Integer"
    ),
    "a newer record without values": Widened(stats(INT, 1, 4), stats(INT), 1, 4, 3),
    "an older record without values": Widened(stats(INT), stats(LONG, 5, 6), 5, 6, 4),
    "a newer record without values, of a wider type": Widened(
        stats(INT, 5, 6), stats(LONG), 5, 6, 4
    ),
    "ints and longs": Widened(
        stats(INT, 5, 6), stats(LONG, 1, 2**40), 1, 2**40, 4, fails="Integer cannot be cast to Long"
    ),
    "no values at all": Widened(stats(None), stats(None), None, None, 1),
    "both zeros": Widened(stats(DOUBLE, -0.0, -0.0), stats(DOUBLE, 0.0, 0.0), -0.0, 0.0, 6),
    "NaN": Widened(stats(DOUBLE, 1.0, 5.0), stats(DOUBLE, NAN, NAN), 1.0, NAN, 6),
    "floats": Widened(stats(FLOAT, 1.5, 5.0), stats(FLOAT, -0.5, 2.0), -0.5, 5.0, 5),
    "text by UTF-16": Widened(
        stats(TEXT, ONE_CHARACTER, ONE_CHARACTER), stats(TEXT, PAIR, PAIR), PAIR, ONE_CHARACTER, 7
    ),
    "signed bytes": Widened(
        stats(BYTES, b"\x01", b"\x01"), stats(BYTES, b"\x80", b"\x80"), b"\x80", b"\x01", 8
    ),
    "decimals": Widened(
        stats(TWO, Decimal("1.25"), Decimal("2.50")),
        stats(TWO, Decimal("-3.00"), Decimal("2.00")),
        Decimal("-3.00"),
        Decimal("2.50"),
        10,
    ),
    "decimals of a greater scale": Widened(
        stats(TWO, Decimal("1.25"), Decimal("2.50")),
        stats(THREE, Decimal("-3.000"), Decimal("2.000")),
        Decimal("-3.000"),
        Decimal("2.500"),
        10,
        fails="2.50 becomes 0.250",
    ),
    "dates": Widened(stats(DAY, 3, 5), stats(DAY, -1, 4), date(1969, 12, 31), date(1970, 1, 6), 12),
    "booleans": Widened(stats(FLAG, False, False), stats(FLAG, True, True), False, True, 2),
    "version 1": Widened(stats(TEXT, "a", "b", V1), stats(TEXT, "B", "C", V1), "B", "b", None),
    "dates of version 1": Widened(
        stats(DAY, 3, 5, V1), stats(DAY, 1, 4, V1), date(1970, 1, 2), date(1970, 1, 6), None
    ),
    "decimals of version 1": Widened(
        stats(TWO, Decimal("1.25"), Decimal("2.50"), V1),
        stats(TWO, Decimal("-3.00"), Decimal("2.00"), V1),
        Decimal("-3.000000000000000"),
        Decimal("2.500000000000000"),
        None,
    ),
    "version 1, then 2": Widened(stats(INT, 3, 5, V1), stats(INT, 1, 4), 1, 5, 3),
    "version 2, then 1": Widened(stats(INT, 3, 5), stats(INT, 1, 4, V1), 1, 5, None),
    "ints and longs of version 1": Widened(
        stats(INT, 3, 5, V1),
        stats(LONG, 1, 4, V1),
        1,
        5,
        None,
        fails="Integer cannot be cast to Long",
    ),
}
