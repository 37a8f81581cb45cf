"""What may be stored in which column."""

from __future__ import annotations

import pytest
from pyspark.sql import types as T

from lakewright.errors import InvalidError
from lakewright.sql.store_assignment import column_named, storable, stored, type_sql

INT, LONG, TEXT, DAY = T.IntegerType(), T.LongType(), T.StringType(), T.DateType()


def struct(*fields: tuple[str, T.DataType]) -> T.StructType:
    return T.StructType([T.StructField(name, kind) for name, kind in fields])


CASES = [
    (INT, LONG, True),
    (LONG, INT, True),
    (T.DoubleType(), INT, True),
    (T.DecimalType(38, 10), T.DecimalType(5, 2), True),
    (T.NullType(), DAY, True),
    (INT, TEXT, True),
    (T.BooleanType(), TEXT, True),
    (TEXT, INT, False),
    (TEXT, DAY, False),
    (T.BooleanType(), INT, False),
    (INT, T.BooleanType(), False),
    (DAY, T.TimestampType(), True),
    (T.TimestampType(), DAY, True),
    (INT, DAY, False),
    (T.BinaryType(), TEXT, False),
    (T.ArrayType(INT), T.ArrayType(LONG), True),
    (T.ArrayType(TEXT), T.ArrayType(LONG), False),
    (T.ArrayType(INT), TEXT, False),
    (T.MapType(TEXT, INT), T.MapType(TEXT, LONG), True),
    (struct(("a", INT)), struct(("A", LONG)), True),
    (struct(("a", INT)), struct(("b", LONG)), False),
    (struct(("a", INT)), struct(("a", INT), ("b", INT)), False),
]


@pytest.mark.parametrize(("source", "target", "may"), CASES, ids=[f"{a}-{b}" for a, b, _ in CASES])
def test_what_may_be_stored(source: T.DataType, target: T.DataType, may: bool) -> None:
    assert storable(source, target) is may


def test_types_in_sql() -> None:
    kind = struct(("a `b`", T.ArrayType(T.DecimalType(5, 2))), ("c", T.MapType(TEXT, LONG)))
    assert type_sql(kind) == "STRUCT<`a ``b```: ARRAY<DECIMAL(5,2)>, `c`: MAP<STRING, BIGINT>>"


def test_how_it_is_cast() -> None:
    column = T.StructField("it's", INT)
    assert stored("a + 1", LONG, column, ansi=True) == "CAST((a + 1) AS INT)"
    checked = stored("a", LONG, column, ansi=False)
    assert "try_cast((a) AS INT)" in checked
    assert "raise_error('a value does not fit into column its')" in checked
    assert stored("a", INT, column, ansi=False) == "CAST((a) AS INT)"
    with pytest.raises(InvalidError, match="cast it"):
        stored("a", TEXT, column, ansi=True)


def test_columns_by_name() -> None:
    columns = [T.StructField("Id", INT), T.StructField("id", LONG)]
    assert column_named(columns, "id").dataType == LONG
    assert column_named(columns, "ID").dataType == INT
    with pytest.raises(InvalidError, match="no such column"):
        column_named(columns, "other")
