"""Spark's ANSI store assignment: which types a column accepts, and the casts to its type."""

from __future__ import annotations

from collections.abc import Iterable

from pyspark.sql import types as T

from lakewright.errors import InvalidError

_PRIMITIVE_NUMBERS = (
    T.ByteType,
    T.ShortType,
    T.IntegerType,
    T.LongType,
    T.FloatType,
    T.DoubleType,
)
_DATETIMES = (T.DateType, T.TimestampType, T.TimestampNTZType)


def quoted(name: str) -> str:
    """Return a name in backquotes, with backquotes inside it escaped."""
    return f"`{name.replace('`', '``')}`"


def type_sql(kind: T.DataType) -> str:
    """Return a type in SQL, with backquotes around the names of fields."""
    if isinstance(kind, T.ArrayType):
        return f"ARRAY<{type_sql(kind.elementType)}>"
    if isinstance(kind, T.MapType):
        return f"MAP<{type_sql(kind.keyType)}, {type_sql(kind.valueType)}>"
    if isinstance(kind, T.StructType):
        fields = (f"{quoted(f.name)}: {type_sql(f.dataType)}" for f in kind.fields)
        return f"STRUCT<{', '.join(fields)}>"
    return kind.simpleString().upper()


def storable(source: T.DataType, target: T.DataType) -> bool:
    """Whether values of a type may be stored in a column of another type."""
    if isinstance(source, T.NullType) or source == target:
        return True
    if isinstance(target, T.ArrayType) and isinstance(source, T.ArrayType):
        return storable(source.elementType, target.elementType)
    if isinstance(target, T.MapType) and isinstance(source, T.MapType):
        keys = storable(source.keyType, target.keyType)
        return keys and storable(source.valueType, target.valueType)
    if isinstance(target, T.StructType) and isinstance(source, T.StructType):
        pairs = zip(source.fields, target.fields, strict=False)
        return len(source.fields) == len(target.fields) and all(
            one.name.lower() == other.name.lower() and storable(one.dataType, other.dataType)
            for one, other in pairs
        )
    return _storable_atomic(source, target)


def _storable_atomic(source: T.DataType, target: T.DataType) -> bool:
    nested = (T.ArrayType, T.MapType, T.StructType)
    if isinstance(source, nested) or isinstance(target, nested):
        return False
    if isinstance(target, T.StringType):
        return not isinstance(source, T.BinaryType)
    numbers = (*_PRIMITIVE_NUMBERS, T.DecimalType)
    if isinstance(target, numbers):
        return isinstance(source, numbers)
    return isinstance(target, _DATETIMES) and isinstance(source, _DATETIMES)


def stored(text: str, source: T.DataType, target: T.StructField, *, ansi: bool) -> str:
    """Return an expression cast to the type of a column; an overflow is an error at run time.

    In a session without ANSI mode a plain cast would silently truncate the number.
    """
    if not storable(source, target.dataType):
        raise InvalidError(
            "a value of this type cannot be stored in the column: cast it",
            column=target.name,
            type=target.dataType.simpleString(),
            given=source.simpleString(),
        )
    kind = type_sql(target.dataType)
    cast = f"CAST(({text}) AS {kind})"
    if ansi or source == target.dataType or not _may_overflow(source, target.dataType):
        return cast
    message = f"a value does not fit into column {target.name}".replace("\\", "").replace("'", "")
    return (
        f"CASE WHEN ({text}) IS NOT NULL AND try_cast(({text}) AS {kind}) IS NULL "
        f"THEN raise_error('{message}') ELSE {cast} END"
    )


def _may_overflow(source: T.DataType, target: T.DataType) -> bool:
    return isinstance(source, (*_PRIMITIVE_NUMBERS, T.DecimalType)) and isinstance(
        target, (*_PRIMITIVE_NUMBERS, T.DecimalType)
    )


def column_named(columns: Iterable[T.StructField], name: str) -> T.StructField:
    """Return the column with a name; InvalidError if there is none.

    An exact match takes precedence over one that differs in case.
    """
    candidates = list(columns)
    exact = [column for column in candidates if column.name == name]
    matches = exact or [column for column in candidates if column.name.lower() == name.lower()]
    if not matches:
        raise InvalidError(
            "the table has no such column",
            column=name,
            columns=[column.name for column in candidates],
        )
    return matches[0]
