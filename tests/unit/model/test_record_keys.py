"""Record keys; the expected texts are those that key generators of Hudi 1.2.0 gave."""

from __future__ import annotations

from datetime import date
from decimal import Decimal

import pyarrow as pa
import pytest

from lakewright.errors import InvalidError, UnsupportedError
from lakewright.model.record_keys import (
    KeyRule,
    bucket_ids,
    field_column,
    generated_keys,
    hash_keys,
    java_double,
    java_float,
    key_rule,
    record_keys,
    value_text,
)

RULES: dict[str, tuple[KeyRule, KeyRule]] = {
    "a single field": (key_rule("SIMPLE", ["a"]), KeyRule(("a",))),
    "a single field of an Avro generator": (key_rule("SIMPLE_AVRO", ["a"]), KeyRule(("a",))),
    "a time-based generator": (key_rule("TIMESTAMP", ["a"]), KeyRule(("a",))),
    "no partitions": (key_rule("NON_PARTITION", ["a"]), KeyRule(("a",))),
    "no partitions, several fields": (
        key_rule("NON_PARTITION", ["a", "b"]),
        KeyRule(("a", "b"), names_fields=True),
    ),
    "custom": (key_rule("CUSTOM", ["a"]), KeyRule(("a",))),
    "custom, several fields": (
        key_rule("CUSTOM", ["a", "b"]),
        KeyRule(("a", "b"), names_fields=True),
    ),
    "complex": (key_rule("COMPLEX", ["a", "b"]), KeyRule(("a", "b"), names_fields=True)),
    "complex, a single field": (key_rule("COMPLEX", ["a"]), KeyRule(("a",), names_fields=True)),
    "complex, a single field, the other encoding": (
        key_rule("complex", ["a"], names_single_field=False),
        KeyRule(("a",)),
    ),
    "no key generator, a single field": (key_rule("", ["a"]), KeyRule(("a",))),
    "no key generator, several fields": (
        key_rule("", ["a", "b"]),
        KeyRule(("a", "b"), names_fields=True),
    ),
}


@pytest.mark.parametrize(("rule", "expected"), RULES.values(), ids=list(RULES))
def test_a_key_generator_has_its_rule(rule: KeyRule, expected: KeyRule) -> None:
    assert rule == expected


def test_a_generator_without_a_rule_is_refused() -> None:
    with pytest.raises(InvalidError):
        key_rule("SIMPLE", ["a", "b"])
    with pytest.raises(UnsupportedError):
        key_rule("USER_PROVIDED", ["a"])
    with pytest.raises(UnsupportedError):
        key_rule("SIMPLE", [])


KEYS: dict[str, tuple[list[str | None], KeyRule, str]] = {
    "plain": (["x", "y"], KeyRule(("a",)), "x"),
    "named": (["x", "y"], KeyRule(("a",), names_fields=True), "a:x"),
    "several": (["x", "y"], KeyRule(("a", "b"), names_fields=True), "a:x,b:y"),
    "in the order of the rule": (["x", "y"], KeyRule(("b", "a"), names_fields=True), "b:y,a:x"),
    "with a null": ([None, "y"], KeyRule(("a", "b"), names_fields=True), "a:__null__,b:y"),
    "with an empty value": (["", "y"], KeyRule(("a", "b"), names_fields=True), "a:__empty__,b:y"),
    "nothing is escaped": (
        ["x:1,b", "y,z:"],
        KeyRule(("a", "b"), names_fields=True),
        "a:x:1,b,b:y,z:",
    ),
}


@pytest.mark.parametrize(("values", "rule", "expected"), KEYS.values(), ids=list(KEYS))
def test_values_become_a_key(values: list[str | None], rule: KeyRule, expected: str) -> None:
    rows = pa.table({"a": pa.array([values[0]] * 2, pa.string()), "b": pa.array([values[1]] * 2)})
    assert record_keys(rows, rule).to_pylist() == [expected] * 2


NO_KEY: dict[str, tuple[list[str | None], KeyRule]] = {
    "null": ([None, "y"], KeyRule(("a",))),
    "empty": (["", "y"], KeyRule(("a",))),
    "a named null": ([None, "y"], KeyRule(("a",), names_fields=True)),
    "all null": ([None, None], KeyRule(("a", "b"), names_fields=True)),
    "null and empty": ([None, ""], KeyRule(("a", "b"), names_fields=True)),
}


@pytest.mark.parametrize(("values", "rule"), NO_KEY.values(), ids=list(NO_KEY))
def test_a_row_without_a_key_is_refused(values: list[str | None], rule: KeyRule) -> None:
    rows = pa.table(
        {"a": pa.array(["k", values[0]], pa.string()), "b": pa.array(["l", values[1]], pa.string())}
    )
    with pytest.raises(InvalidError) as caught:
        record_keys(rows, rule)
    assert caught.value.facts["rows"] == 1


MICROS = 1767225600250000
TEXTS: dict[str, tuple[pa.Array, str]] = {
    "string": (pa.array(["v/a l:ü"]), "v/a l:ü"),
    "long string": (pa.array(["v"], pa.large_string()), "v"),
    "dictionary": (pa.array(["v"]).dictionary_encode(), "v"),
    "byte": (pa.array([-5], pa.int8()), "-5"),
    "int": (pa.array([-5], pa.int32()), "-5"),
    "long": (pa.array([12345678901]), "12345678901"),
    "float": (pa.array([1.1], pa.float32()), "1.1"),
    "double": (pa.array([1e10]), "1.0E10"),
    "boolean": (pa.array([True]), "true"),
    "bytes": (pa.array([b"\x01\xc8A"]), "01c841"),
    "fixed bytes": (pa.array([b"\x01\xc8A"], pa.binary(3)), "01c841"),
    "date": (pa.array([date(2026, 1, 1)]), "2026-01-01"),
    "timestamp in microseconds": (pa.array([MICROS], pa.timestamp("us", "UTC")), str(MICROS)),
    "timestamp in milliseconds": (
        pa.array([MICROS // 1000], pa.timestamp("ms", "UTC")),
        str(MICROS // 1000),
    ),
    "local timestamp": (pa.array([MICROS], pa.timestamp("us")), str(MICROS)),
    "time in microseconds": (pa.array([3600000000], pa.time64("us")), "3600000000"),
    "time in milliseconds": (pa.array([3600000], pa.time32("ms")), "3600000"),
    "decimal": (pa.array([Decimal("3.00")], pa.decimal128(12, 2)), "3.00"),
    "small decimal": (pa.array([Decimal("1E-10")], pa.decimal128(20, 10)), "1E-10"),
    "decimal zero": (pa.array([Decimal("0E-10")], pa.decimal128(20, 10)), "0E-10"),
    "decimal below zero": (pa.array([Decimal("-123.45")], pa.decimal128(12, 4)), "-123.4500"),
}


@pytest.mark.parametrize(("column", "text"), TEXTS.values(), ids=list(TEXTS))
def test_a_value_has_the_text_of_java(column: pa.Array, text: str) -> None:
    assert value_text(column, "a").to_pylist() == [text]
    with_null = pa.concat_arrays([column, pa.nulls(1, column.type)])
    assert value_text(with_null, "a").to_pylist() == [text, None]


MOMENTS = {
    "with a fraction": (MICROS, "2026-01-01 00:00:00.25"),
    "without a fraction": (MICROS - 250000, "2026-01-01 00:00:00.0"),
    "with all digits": (MICROS + 6, "2026-01-01 00:00:00.250006"),
}


@pytest.mark.parametrize(("micros", "text"), MOMENTS.values(), ids=list(MOMENTS))
def test_a_timestamp_can_be_date_and_time(micros: int, text: str) -> None:
    column = pa.array([micros, None], pa.timestamp("us", "UTC"))
    assert value_text(column, "a", timestamps_as_text=True).to_pylist() == [text, None]
    local = pa.array([micros], pa.timestamp("us"))
    assert value_text(local, "a", timestamps_as_text=True).to_pylist() == [str(micros)]


DOUBLES = {
    1.0: "1.0",
    -1.5: "-1.5",
    0.001: "0.001",
    0.0001: "1.0E-4",
    1e7: "1.0E7",
    9999999.0: "9999999.0",
    123456789.125: "1.23456789125E8",
    1e22: "1.0E22",
    1.1e21: "1.1E21",
    5e-324: "4.9E-324",
    1.7976931348623157e308: "1.7976931348623157E308",
    0.1 + 0.2: "0.30000000000000004",
    100.0: "100.0",
    120.0: "120.0",
    float("inf"): "Infinity",
    float("-inf"): "-Infinity",
}


@pytest.mark.parametrize(("value", "text"), DOUBLES.items(), ids=list(DOUBLES.values()))
def test_a_double_is_written_as_java_does(value: float, text: str) -> None:
    assert java_double(value) == text


FLOATS = {
    1.1: "1.1",
    1e10: "1.0E10",
    16777216.0: "1.6777216E7",
    3.4028235e38: "3.4028235E38",
    1.4e-45: "1.4E-45",
    0.001: "0.001",
    1e-4: "1.0E-4",
}


@pytest.mark.parametrize(("value", "text"), FLOATS.items(), ids=list(FLOATS.values()))
def test_a_float_is_written_as_java_does(value: float, text: str) -> None:
    assert java_float(value) == text


def test_zero_has_a_sign() -> None:
    assert (java_double(0.0), java_double(-0.0)) == ("0.0", "-0.0")
    assert (java_float(0.0), java_float(-0.0)) == ("0.0", "-0.0")


def test_what_is_no_number_is_written_as_java_does() -> None:
    assert java_double(float("nan")) == java_float(float("nan")) == "NaN"


def test_a_nested_value_makes_no_key() -> None:
    for column in (pa.array([[1]]), pa.array([{"x": 1}])):
        with pytest.raises(InvalidError):
            value_text(column, "a")


NESTED = pa.table({"s": [{"a": {"b": "deep"}}, None], "x.y": ["flat", "flat"]})


def test_a_dot_leads_into_a_struct() -> None:
    assert field_column(NESTED, "s.a.b").to_pylist() == ["deep", None]
    assert field_column(NESTED, "x.y").to_pylist() == ["flat", "flat"]
    key = record_keys(NESTED.slice(0, 1), KeyRule(("s.a.b",), names_fields=True))
    assert key.to_pylist() == ["s.a.b:deep"]


@pytest.mark.parametrize("name", ["t", "s.b", "s.a.b.c", "s.a.c"])
def test_a_field_that_is_not_there_is_an_error(name: str) -> None:
    with pytest.raises(InvalidError):
        field_column(NESTED, name)


def test_generated_keys_are_distinct() -> None:
    first = generated_keys("20260101000000000", 3, 0, 2)
    assert first.to_pylist() == ["20260101000000000_3_0", "20260101000000000_3_1"]
    assert generated_keys("20260101000000000", 3, 2, 1).to_pylist() == ["20260101000000000_3_2"]


# The key, the hash fields, the values that are hashed, and the bucket of 256.
HASHED: list[tuple[str, list[str], tuple[str | None, ...], int]] = [
    ("plain", ["a"], ("plain",), 233),
    ("a:1,b:2", ["a"], ("1",), 80),
    ("a:1,b:2", ["b"], ("2",), 81),
    ("a:1,b:2", ["a", "b"], ("1", "2"), 226),
    ("a:1,b:2", [], ("1", "2"), 226),
    ("a:1", ["a"], ("a:1",), 119),
    ("a:1,b:__null__", ["b"], (None,), 31),
    ("a:1,b:__null__", [], ("1", None), 176),
    ("a:__empty__,b:2", ["a"], ("",), 31),
    ("a:__empty__,b:2", [], ("", "2"), 243),
    ("a:x,y,b:2", ["a"], ("x,y",), 100),
    ("a:x,y,b:2", [], ("x,y", "2"), 78),
    ("a:x:y,b:2", ["a"], ("x:y",), 22),
    ("a:x,y:z,b:2", ["a"], ("x",), 151),
    ("a:x,y:z,b:2", ["b"], ("2",), 81),
    ("a:x,y:z,b:2", ["a", "b"], ("x", "2"), 123),
    ("a:x,y:z,b:2", [], ("x", "z", "2"), 207),
    ("x,y", ["a"], ("x,y",), 100),
    ("a:,b:", [], ("", ""), 193),
    ("a:1,b:2,c:3", ["a", "b"], ("1", "2"), 226),
    ("a:1,b:2,c:3", [], ("1", "2", "3"), 145),
    ("https://x,y", ["a"], ("https://x,y",), 53),
    ("https://x,y", [], ("//x,y",), 132),
]


@pytest.mark.parametrize(("key", "fields", "values", "bucket"), HASHED)
def test_a_key_has_the_bucket_of_hudi(
    key: str, fields: list[str], values: tuple[str | None, ...], bucket: int
) -> None:
    assert hash_keys(key, fields) == values
    for names in (("a",), ("a", "b"), ("b", "a"), ("a", "b", "c")):
        column = pa.array(["other", key])
        assert bucket_ids(column, KeyRule(names, names_fields=True), fields, 256)[1] == bucket


def test_a_key_on_which_hudi_never_ends_ends_here() -> None:
    assert hash_keys("b:2,a:x:,", ["b"]) == ("2",)
    assert hash_keys("b:2,a:x:,", ["a"]) == ("x:,",)


def test_no_rows_have_no_keys() -> None:
    rows = pa.table({"a": pa.array([], pa.string()), "b": pa.array([], pa.float64())})
    for rule in (KeyRule(("a",)), KeyRule(("a", "b"), names_fields=True)):
        keys = record_keys(rows, rule)
        assert keys.to_pylist() == []
        assert bucket_ids(keys, rule, (), 4).tolist() == []
    with pytest.raises(InvalidError):
        record_keys(pa.table({"a": pa.nulls(2)}), KeyRule(("a",)))
