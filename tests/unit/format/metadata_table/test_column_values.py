"""Values in column statistics: how each type is stored in both versions, and back."""

from __future__ import annotations

from datetime import date, time
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from lakewright.errors import CorruptError, InvalidError, UnsupportedError
from lakewright.format.metadata_table.column_values import (
    ValueType,
    WrappedValues,
    Wrapper,
    column_values,
    known_type,
    stored_type,
    type_of_stored,
    unwrap_values,
    wrap_values,
)
from lakewright.model.metadata_partitions import IndexVersion

V1, V2 = IndexVersion.V1, IndexVersion.V2
MILLIS, MICROS, NANOS = (pa.timestamp(unit, "UTC") for unit in ("ms", "us", "ns"))
LOCAL, OSLO = pa.timestamp("us"), pa.timestamp("us", "Europe/Oslo")
W, T = Wrapper, ValueType

# The column, a value of it, its wrapper in both versions, its bytes in hexadecimals, and its type
# in version 2. Decimals have other bytes in version 1, where their scale is 15.
STORED: dict[str, tuple[pa.DataType, Any, Wrapper, Wrapper, str, ValueType]] = {
    "boolean": (pa.bool_(), True, W.BOOLEAN, W.BOOLEAN, "01", T.BOOLEAN),
    "int": (pa.int32(), -1, W.INT, W.INT, "01", T.INT),
    "short": (pa.int16(), 64, W.INT, W.INT, "8001", T.INT),
    "long": (pa.int64(), 64, W.LONG, W.LONG, "8001", T.LONG),
    "float": (pa.float32(), 1.5, W.FLOAT, W.FLOAT, "0000c03f", T.FLOAT),
    "double": (pa.float64(), -0.0, W.DOUBLE, W.DOUBLE, "0000000000000080", T.DOUBLE),
    "string": (pa.string(), "é", W.STRING, W.STRING, "04c3a9", T.STRING),
    "empty string": (pa.string(), "", W.STRING, W.STRING, "00", T.STRING),
    "bytes": (pa.binary(), b"\xff", W.BYTES, W.BYTES, "02ff", T.BYTES),
    "fixed": (pa.binary(2), b"ab", W.BYTES, W.BYTES, "046162", T.FIXED),
    "decimal": (pa.decimal128(9, 2), Decimal("-1.28"), W.DECIMAL, W.BYTES, "0280", T.DECIMAL),
    "date": (pa.date32(), date(1970, 1, 2), W.DATE, W.INT, "02", T.DATE),
    "time, ms": (pa.time32("ms"), time(0, 0, 0, 1000), W.INT, W.INT, "02", T.TIME_MILLIS),
    "time, us": (pa.time64("us"), time(0, 0, 0, 1), W.LONG, W.LONG, "02", T.TIME_MICROS),
    "timestamp, ms": (MILLIS, 1, W.LONG, W.LONG, "02", T.TIMESTAMP_MILLIS),
    "timestamp, us": (MICROS, 1, W.LONG, W.LONG, "02", T.TIMESTAMP_MICROS),
    "timestamp, ns": (NANOS, 1, W.LONG, W.LONG, "02", T.TIMESTAMP_NANOS),
    "timestamp, zone": (OSLO, 1, W.LONG, W.LONG, "02", T.TIMESTAMP_MICROS),
    "local timestamp, ms": (
        pa.timestamp("ms"), 1, W.LONG, W.LONG, "02", T.LOCAL_TIMESTAMP_MILLIS,
    ),
    "local timestamp, us": (LOCAL, 1, W.LONG, W.LONG, "02", T.LOCAL_TIMESTAMP_MICROS),
    "local timestamp, ns": (
        pa.timestamp("ns"), 1, W.LONG, W.LONG, "02", T.LOCAL_TIMESTAMP_NANOS,
    ),
}  # fmt: skip
V1_DECIMAL = "0e" + (-128 * 10**13).to_bytes(7, "big", signed=True).hex()


@pytest.mark.parametrize("version", IndexVersion)
@pytest.mark.parametrize("name", STORED)
def test_a_value_is_stored_and_comes_back(name: str, version: IndexVersion) -> None:
    column, value, in_v1, in_v2, expected, value_type = STORED[name]
    values = pa.array([None, value, None], column)
    stored = stored_type(column, version)
    assert stored is not None
    wrapper = in_v1 if version is V1 else in_v2
    expected = V1_DECIMAL if wrapper is W.DECIMAL else expected
    assert stored.wrapper is wrapper
    assert stored.value_type == (None if version is V1 else value_type)
    wrapped = wrap_values(values, stored)
    assert wrapped.wrappers.to_pylist() == [Wrapper.NULL, wrapper, Wrapper.NULL]
    assert [found.hex() for found in wrapped.values.to_pylist()] == ["", expected, ""]
    # Text and bytes of a record come back in the types that statistics have.
    again = type_of_stored(wrapper, stored.value_type, stored.info)
    types = pa.array([again.value_type] * 3, pa.int32())
    infos = pa.array([again.info] * 3, pa.string())
    back = column_values(wrapped, types, infos, values.type)
    assert back.cast(values.type).equals(values)


@pytest.mark.parametrize(
    "column",
    [pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string())],
    ids=str,
)
def test_other_forms_of_text_are_text(column: pa.DataType) -> None:
    stored = stored_type(column, V2)
    assert stored is not None
    assert stored.value_type is ValueType.STRING
    values = pa.array(["a", None], column)
    assert unwrap_values(wrap_values(values, stored), stored).to_pylist() == ["a", None]


@pytest.mark.parametrize("version", IndexVersion)
@pytest.mark.parametrize(
    "column",
    [
        pa.list_(pa.int32()),
        pa.struct([("a", pa.int32())]),
        pa.map_(pa.string(), pa.int32()),
        pa.null(),
        pa.duration("us"),
        pa.uint64(),
    ],
    ids=str,
)
def test_columns_of_other_types_have_no_statistics(
    column: pa.DataType, version: IndexVersion
) -> None:
    assert stored_type(column, version) is None


@pytest.mark.parametrize(
    ("precision", "scale", "fits"),
    [
        (30, 15, True),
        (15, 0, True),
        (16, 0, False),
        (17, 2, True),
        (38, 15, False),
        (20, 16, False),
    ],
)
def test_version_1_has_decimals_that_fit_its_own(precision: int, scale: int, fits: bool) -> None:
    column = pa.decimal128(precision, scale)
    assert (stored_type(column, V1) is not None) is fits
    assert stored_type(column, V2) is not None


def test_decimals_are_stored_in_as_few_bytes_as_they_need() -> None:
    stored = stored_type(pa.decimal128(38, 0), V2)
    assert stored is not None
    numbers = [0, 127, 128, -128, -129, 10**37, -(10**37)]
    wrapped = wrap_values(pa.array(map(Decimal, numbers), stored.arrow), stored)
    for number, value in zip(numbers, wrapped.values.to_pylist(), strict=True):
        size = max(1, (number if number >= 0 else ~number).bit_length() // 8 + 1)
        assert value == bytes([size * 2]) + number.to_bytes(size, "big", signed=True)


def test_nothing_is_stored_as_nothing() -> None:
    stored = stored_type(pa.int32(), V2)
    assert stored is not None
    for values in (pa.array([], pa.int32()), pa.array([None, None], pa.int32())):
        wrapped = wrap_values(values, stored)
        assert wrapped.values.to_pylist() == [b""] * len(values)
        assert unwrap_values(wrapped, stored).equals(values)


def test_values_of_another_type_are_refused() -> None:
    stored = stored_type(pa.int32(), V2)
    assert stored is not None
    with pytest.raises(InvalidError):
        wrap_values(pa.array(["a"]), stored)
    with pytest.raises(InvalidError):
        wrap_values(pa.array([2**40]), stored)


def wrapped_as(*pairs: tuple[Wrapper, str]) -> WrappedValues:
    return WrappedValues(
        pa.array([int(wrapper) for wrapper, _ in pairs], pa.int8()),
        pa.array([bytes.fromhex(value) for _, value in pairs], pa.binary()),
    )


DAMAGED = {
    "cut off": (Wrapper.LONG, "80"),
    "too long": (Wrapper.LONG, "0202"),
    "empty": (Wrapper.LONG, ""),
    "text that ends early": (Wrapper.STRING, "0461"),
    "text that is not text": (Wrapper.STRING, "02ff"),
    "a decimal of nothing": (Wrapper.DECIMAL, "00"),
    "a decimal that is too long": (Wrapper.DECIMAL, "22" + "01" * 17),
    "an int that is a long": (Wrapper.INT, "ffffffffffffffffff01"),
}


@pytest.mark.parametrize("value", DAMAGED.values(), ids=list(DAMAGED))
def test_a_damaged_value_is_an_error(value: tuple[Wrapper, str]) -> None:
    with pytest.raises(CorruptError):
        unwrap_values(wrapped_as(value), type_of_stored(value[0], None, None))


@pytest.mark.parametrize(
    ("wrapper", "value_type", "info", "error"),
    [
        (Wrapper.ARRAY, None, None, UnsupportedError),
        (Wrapper.NULL, None, None, UnsupportedError),
        (Wrapper.INT, 21, None, UnsupportedError),
        (Wrapper.INT, -1, None, UnsupportedError),
        (Wrapper.INT, 0, None, UnsupportedError),
        (Wrapper.INT, int(ValueType.LONG), None, CorruptError),
        (Wrapper.BYTES, int(ValueType.DECIMAL), None, CorruptError),
        (Wrapper.BYTES, int(ValueType.DECIMAL), "10", CorruptError),
        (Wrapper.BYTES, int(ValueType.DECIMAL), "a,b", CorruptError),
        (Wrapper.BYTES, int(ValueType.DECIMAL), "39,0", CorruptError),
        (Wrapper.BYTES, int(ValueType.DECIMAL), "2,3", CorruptError),
    ],
)
def test_an_unknown_type_is_an_error(
    wrapper: Wrapper, value_type: int | None, info: str | None, error: type[Exception]
) -> None:
    with pytest.raises(error):
        type_of_stored(wrapper, value_type, info)


def test_a_record_without_values_may_not_tell_its_type() -> None:
    assert known_type(Wrapper.NULL, None, None) is None
    assert known_type(Wrapper.NULL, int(ValueType.NULL), None) is None
    for wrapper, value_type in ((Wrapper.NULL, int(ValueType.LONG)), (Wrapper.LONG, None)):
        found = known_type(wrapper, value_type, None)
        assert found is not None
        assert found.arrow == pa.int64()


# Values of one column that several writers stored, and its type now.
MIXED: dict[str, tuple[list[tuple[Wrapper, str, int | None]], pa.DataType, list[Any]]] = {
    "an int that became a long": (
        [(Wrapper.INT, "02", 3), (Wrapper.LONG, "04", 4), (Wrapper.NULL, "", 1)],
        pa.int64(),
        [1, 2, None],
    ),
    "a float that became a double": (
        [(Wrapper.FLOAT, "0000c03f", 5)],
        pa.float64(),
        [1.5],
    ),
    "both versions": ([(Wrapper.DATE, "02", None), (Wrapper.INT, "04", 12)], pa.date32(), [1, 2]),
    "timestamps of version 1": ([(Wrapper.LONG, "02", None)], MICROS, [1]),
    "timestamps of a Java type": ([(Wrapper.TIMESTAMP_MICROS, "02", None)], MICROS, [1]),
    "local timestamps of version 1": ([(Wrapper.LONG, "02", None)], LOCAL, [1]),
    "nothing": ([], pa.int32(), []),
}


@pytest.mark.parametrize(("stored", "column", "expected"), MIXED.values(), ids=list(MIXED))
def test_values_are_read_in_the_type_of_the_column(
    stored: list[tuple[Wrapper, str, int | None]], column: pa.DataType, expected: list[Any]
) -> None:
    wrapped = wrapped_as(*((wrapper, value) for wrapper, value, _ in stored))
    types = pa.array([value_type for _, _, value_type in stored], pa.int32())
    infos = pa.nulls(len(stored), pa.string())
    assert column_values(wrapped, types, infos, column).equals(pa.array(expected, column))


def test_a_value_that_does_not_become_the_column_is_an_error() -> None:
    wrapped = wrapped_as((Wrapper.STRING, "0261"))
    types, infos = pa.array([7], pa.int32()), pa.nulls(1, pa.string())
    with pytest.raises(UnsupportedError):
        column_values(wrapped, types, infos, pa.int32())
