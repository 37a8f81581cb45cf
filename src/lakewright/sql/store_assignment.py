"""What may be stored in a column, and how it is cast, as Spark's ANSI store assignment has it."""

from __future__ import annotations

from collections.abc import Iterable

from pyspark.sql import types as T

from lakewright.errors import InvalidError

_NUMBERS = (T.ByteType, T.ShortType, T.IntegerType, T.LongType, T.FloatType, T.DoubleType)
_TIMES = (T.DateType, T.TimestampType, T.TimestampNTZType)


def quoted(name: str) -> str:
    """A name in quotes, whatever characters are in it."""
    return f"`{name.replace('`', '``')}`"


def type_sql(kind: T.DataType) -> str:
    """A type as SQL writes it, with quotes around the names of fields."""
    if isinstance(kind, T.ArrayType):
        return f"ARRAY<{type_sql(kind.elementType)}>"
    if isinstance(kind, T.MapType):
        return f"MAP<{type_sql(kind.keyType)}, {type_sql(kind.valueType)}>"
    if isinstance(kind, T.StructType):
        fields = (f"{quoted(f.name)}: {type_sql(f.dataType)}" for f in kind.fields)
        return f"STRUCT<{', '.join(fields)}>"
    return kind.simpleString().upper()


def storable(given: T.DataType, wanted: T.DataType) -> bool:
    """Whether values of a type may be stored in a column of another one."""
    if isinstance(given, T.NullType) or given == wanted:
        return True
    if isinstance(wanted, T.ArrayType) and isinstance(given, T.ArrayType):
        return storable(given.elementType, wanted.elementType)
    if isinstance(wanted, T.MapType) and isinstance(given, T.MapType):
        keys = storable(given.keyType, wanted.keyType)
        return keys and storable(given.valueType, wanted.valueType)
    if isinstance(wanted, T.StructType) and isinstance(given, T.StructType):
        pairs = zip(given.fields, wanted.fields, strict=False)
        return len(given.fields) == len(wanted.fields) and all(
            one.name.lower() == other.name.lower() and storable(one.dataType, other.dataType)
            for one, other in pairs
        )
    return _storable_value(given, wanted)


def _storable_value(given: T.DataType, wanted: T.DataType) -> bool:
    nested = (T.ArrayType, T.MapType, T.StructType)
    if isinstance(given, nested) or isinstance(wanted, nested):
        return False
    if isinstance(wanted, T.StringType):
        return not isinstance(given, T.BinaryType)
    numbers = (*_NUMBERS, T.DecimalType)
    if isinstance(wanted, numbers):
        return isinstance(given, numbers)
    return isinstance(wanted, _TIMES) and isinstance(given, _TIMES)


def stored(text: str, given: T.DataType, wanted: T.StructField, *, ansi: bool) -> str:
    """An expression cast to the type of a column; a number that does not fit is an error.

    Sessions with ANSI switched off would cut it off silently.
    """
    if not storable(given, wanted.dataType):
        raise InvalidError(
            "a value of this type cannot be stored in the column: cast it",
            column=wanted.name,
            type=wanted.dataType.simpleString(),
            given=given.simpleString(),
        )
    kind = type_sql(wanted.dataType)
    cast = f"CAST(({text}) AS {kind})"
    if ansi or given == wanted.dataType or not _may_overflow(given, wanted.dataType):
        return cast
    told = f"a value does not fit into column {wanted.name}".replace("\\", "").replace("'", "")
    return (
        f"CASE WHEN ({text}) IS NOT NULL AND try_cast(({text}) AS {kind}) IS NULL "
        f"THEN raise_error('{told}') ELSE {cast} END"
    )


def _may_overflow(given: T.DataType, wanted: T.DataType) -> bool:
    return isinstance(given, (*_NUMBERS, T.DecimalType)) and isinstance(
        wanted, (*_NUMBERS, T.DecimalType)
    )


def column_named(columns: Iterable[T.StructField], name: str) -> T.StructField:
    """The column with a name, in whatever case; InvalidError if there is none."""
    known = list(columns)
    exact = [column for column in known if column.name == name]
    found = exact or [column for column in known if column.name.lower() == name.lower()]
    if not found:
        raise InvalidError(
            "the table has no such column", column=name, columns=[column.name for column in known]
        )
    return found[0]
