"""Partition paths; the expected paths are those that key generators of Hudi 1.2.0 gave."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from lakewright.errors import CorruptError, InvalidError, LakewrightError, UnsupportedError
from lakewright.model.partition_paths import (
    PartitionRule,
    escape,
    partition_paths,
    partition_rule,
    partition_values,
    time_rule,
    unescape,
)
from lakewright.model.path_patterns import matches_any

HIVE = {"hoodie.datasource.write.hive_style_partitioning": "true"}
URL = {"hoodie.datasource.write.partitionpath.urlencode": "true"}
SLASHES = {"hoodie.datasource.write.slash.separated.date.partitioning": "true"}
AS_TEXT = {"hoodie.datasource.write.keygenerator.consistent.logical.timestamp.enabled": "true"}
DEFAULT = "__HIVE_DEFAULT_PARTITION__"
DAY = "2026-02-03"
ODD = "ü\"#%'*/:=?\\{[]^"
ODD_ESCAPED = "ü%22%23%25%27%2A%2F%3A%3D%3F%5C%7B%5B%5D%5E"

# value of `a`: options, path by a single field, by two fields (the other is the day), by CUSTOM
PATHS: dict[str, tuple[str | None, dict[str, str], str, str, str]] = {
    "plain": ("x y", {}, "x y", f"x y/{DAY}", f"x y/{DAY}"),
    "hive style": ("x", HIVE, "a=x", f"a=x/b={DAY}", f"a=x/b={DAY}"),
    "null": (None, {}, DEFAULT, f"{DEFAULT}/{DAY}", f"{DEFAULT}/{DAY}"),
    "empty": ("", {}, DEFAULT, f"{DEFAULT}/{DAY}", f"{DEFAULT}/{DAY}"),
    "null in hive style": (
        None,
        HIVE | URL,
        f"a={DEFAULT}",
        f"a={DEFAULT}/b={DAY}",
        f"a={DEFAULT}/b={DAY}",
    ),
    "a slash makes levels": ("a/b", {}, "a/b", f"a/b/{DAY}", f"a/b/{DAY}"),
    "a slash is escaped": ("a/b", URL, "a%2Fb", f"a%2Fb/{DAY}", f"a%2Fb/{DAY}"),
    "odd letters": (ODD, URL, ODD_ESCAPED, f"{ODD_ESCAPED}/{DAY}", f"{ODD_ESCAPED}/{DAY}"),
    "odd letters as they are": (ODD, {}, ODD, f"{ODD}/{DAY}", f"{ODD}/{DAY}"),
    "some braces are good": ("{}~", URL, "%7B}~", f"%7B}}~/{DAY}", f"%7B}}~/{DAY}"),
    "control characters": ("\x01\x7f", URL, "%01%7F", f"%01%7F/{DAY}", f"%01%7F/{DAY}"),
    "dates with slashes": (
        "2026-01-01",
        SLASHES,
        "2026/01/01",
        f"2026-01-01/{DAY}",
        "2026/01/01/2026/02/03",
    ),
    "dates with slashes in hive style": (
        "2026-01-01",
        SLASHES | HIVE,
        "a=2026/01/01",
        f"a=2026-01-01/b={DAY}",
        "a=2026/01/01/b=2026/02/03",
    ),
}


TEXT_TIMES = {
    "hoodie.keygen.timebased.timestamp.type": "DATE_STRING",
    "hoodie.keygen.timebased.output.dateformat": "yyyy-MM-dd",
}


def separated(regex: str, patterns: str) -> list[str]:
    options = {
        **TEXT_TIMES,
        "hoodie.keygen.timebased.input.dateformat": patterns,
        "hoodie.keygen.timebased.input.dateformat.list.delimiter.regex": regex,
    }
    return [pattern.text for pattern in time_rule(options).inputs]


def test_date_patterns_are_separated_by_a_regular_expression() -> None:
    assert separated("", "yyyy,MM") == ["yyyy", "MM"]
    assert separated(r"\s*[;|]\s*", "yyyy-MM ;MM | dd") == ["yyyy-MM", "MM", "dd"]
    assert separated("(;)", "yyyy;MM") == ["yyyy", "MM"]


def test_a_regular_expression_of_the_table_takes_a_time_that_its_text_bounds() -> None:
    """Trying every way in which it may match takes others 2^50000 steps."""
    assert separated("(-+)+!", "y" + "-" * 50_000 + "y") == ["y" + "-" * 50_000 + "y"]


@pytest.mark.parametrize("regex", ["(", r"(-)\1", "(?=-)"])
def test_a_regular_expression_that_cannot_be_used_is_named(regex: str) -> None:
    with pytest.raises(InvalidError, match=r"delimiter\.regex"):
        separated(regex, "yyyy")


@pytest.mark.parametrize(
    ("value", "options", "single", "several", "custom"), PATHS.values(), ids=list(PATHS)
)
def test_values_become_a_path(
    value: str | None, options: dict[str, str], single: str, several: str, custom: str
) -> None:
    rows = pa.table({"a": pa.array([value, "z"], pa.string()), "b": [DAY, DAY]})
    for generator, fields, expected in (
        ("SIMPLE", ["a"], single),
        ("COMPLEX", ["a", "b"], several),
        ("CUSTOM", ["a:simple", "b:SIMPLE"], custom),
    ):
        paths = partition_paths(rows, partition_rule(generator, fields, options))
        assert paths[0].as_py() == expected


def test_a_table_without_partitions_has_one_folder() -> None:
    rows = pa.table({"a": [1, 2]})
    assert partition_paths(rows, PartitionRule()).to_pylist() == ["", ""]
    assert partition_rule("NON_PARTITION", [], HIVE) == PartitionRule()
    assert partition_values("", [], hive_style=True, url_encoded=False) == ()


def test_values_of_other_types_have_the_text_of_keys() -> None:
    rows = pa.table(
        {
            "n": [1],
            "d": [date(2026, 1, 1)],
            "x": [1e10],
            "s": [{"in": True}],
            "c": pa.array([Decimal("1.50")]),
        }
    )
    rule = partition_rule("COMPLEX", ["n", "d", "x", "s.in", "c"], HIVE)
    assert partition_paths(rows, rule).to_pylist() == ["n=1/d=2026-01-01/x=1.0E10/s.in=true/c=1.50"]


TIMES = "hoodie.keygen.timebased."


def timed(kind: str, output: str, **more: str) -> dict[str, str]:
    named = {TIMES + name.replace("_", "."): value for name, value in more.items()}
    return {TIMES + "timestamp.type": kind, TIMES + "output.dateformat": output, **named}


def time_path(options: dict[str, str], value: Any, kind: pa.DataType) -> str:
    rows = pa.table({"p": pa.array([value], kind)})
    path: str = partition_paths(rows, partition_rule("TIMESTAMP", ["p"], options))[0].as_py()
    return path


HOURS = "yyyy-MM-dd hh"
EAST = {"timezone": "GMT+8:00"}
LONG, TEXT, MICROS = pa.int64(), pa.string(), pa.timestamp("us", "UTC")
ISO = timed(
    "DATE_STRING",
    "yyyyMMddHH",
    input_dateformat="yyyy-MM-dd'T'HH:mm:ssZ,yyyy-MM-dd'T'HH:mm:ss.SSSZ",
    output_timezone="GMT",
)
DATES = timed("DATE_STRING", "yyyy/MM/dd", input_dateformat="yyyy-MM-dd,dd/MM/yyyy")
NUMBERS: dict[str, tuple[dict[str, str], Any, pa.DataType, str]] = {
    "seconds": (timed("UNIX_TIMESTAMP", HOURS, **EAST), 1578283932, LONG, "2020-01-06 12"),
    "seconds as int": (
        timed("UNIX_TIMESTAMP", HOURS, **EAST),
        1578283932,
        pa.int32(),
        "2020-01-06 12",
    ),
    "seconds as double": (
        timed("UNIX_TIMESTAMP", HOURS, **EAST),
        1578283932.7,
        pa.float64(),
        "2020-01-06 12",
    ),
    "seconds as decimal": (
        timed("UNIX_TIMESTAMP", HOURS, **EAST),
        Decimal("1578283932.70"),
        pa.decimal128(15, 2),
        "2020-01-06 12",
    ),
    "milliseconds": (
        timed("EPOCHMILLISECONDS", HOURS, **EAST),
        1578283932000,
        LONG,
        "2020-01-06 12",
    ),
    "microseconds": (
        timed("EPOCHMICROSECONDS", HOURS, **EAST),
        1578283932000000,
        LONG,
        "2020-01-06 12",
    ),
    "a timestamp is its number": (
        timed("EPOCHMICROSECONDS", HOURS, **EAST),
        1578283932000000,
        MICROS,
        "2020-01-06 12",
    ),
    "a timestamp is a moment by an option": (
        timed("UNIX_TIMESTAMP", "yyyy/MM/dd") | AS_TEXT,
        1578283932000000,
        MICROS,
        "2020/01/06",
    ),
    "days": (
        timed("SCALAR", HOURS, timestamp_scalar_time_unit="days", timezone="GMT"),
        20000,
        LONG,
        "2024-10-04 12",
    ),
    "a date counts days": (
        timed("SCALAR", "yyyy-MM-dd", timestamp_scalar_time_unit="DAYS"),
        date(2024, 10, 4),
        pa.date32(),
        "2024-10-04",
    ),
    "scalars are seconds": (timed("SCALAR", HOURS, **EAST), 1578283932, LONG, "2020-01-06 12"),
    "scalars of microseconds": (
        timed("SCALAR", "yyyy-MM-dd HH:mm:ss.SSS", timestamp_scalar_time_unit="microseconds"),
        20000000000000,
        LONG,
        "1970-08-20 11:33:20.000",
    ),
    "null is one second": (
        timed("UNIX_TIMESTAMP", "yyyy-MM-dd HH:mm:ss.SSS"),
        None,
        LONG,
        "1970-01-01 00:00:01.000",
    ),
    "null is one millisecond": (
        timed("EPOCHMILLISECONDS", "yyyy-MM-dd HH:mm:ss.SSS"),
        None,
        LONG,
        "1970-01-01 00:00:00.001",
    ),
    "null is no microsecond": (
        timed("EPOCHMICROSECONDS", "yyyy-MM-dd HH:mm:ss.SSS"),
        None,
        LONG,
        "1970-01-01 00:00:00.000",
    ),
    "the older spelling of options": (
        {
            "hoodie.deltastreamer.keygen.timebased.timestamp.type": "UNIX_TIMESTAMP",
            "hoodie.deltastreamer.keygen.timebased.output.dateformat": "yyyy",
        },
        1578283932,
        LONG,
        "2020",
    ),
    "UTC text": (ISO, "2020-04-01T13:01:33.428Z", TEXT, "2020040113"),
    "UTC text without a fraction": (ISO, "2020-04-01T13:01:33Z", TEXT, "2020040113"),
    "text with a distance": (ISO, "2020-04-01T13:01:33-0500", TEXT, "2020040118"),
    "text with a distance and colon": (ISO, "2020-04-01T13:01:33-05:00", TEXT, "2020040118"),
    "null text": (ISO, None, TEXT, "1970010100"),
    "the first of two patterns": (DATES, "2020-04-01", TEXT, "2020/04/01"),
    "the second of two patterns": (DATES, "01/04/2020", TEXT, "2020/04/01"),
    "hive style": (DATES | HIVE, "2020-04-01", TEXT, "p=2020/04/01"),
    "hive style, escaped": (DATES | HIVE | URL, "2020-04-01", TEXT, "p=2020%2F04%2F01"),
    "from zone to zone": (
        timed(
            "DATE_STRING",
            "yyyy-MM-dd HH:mm",
            input_dateformat="yyyy-MM-dd HH:mm",
            input_timezone="America/New_York",
            output_timezone="Europe/Oslo",
        ),
        "2020-04-01 23:30",
        TEXT,
        "2020-04-02 05:30",
    ),
    "the zone of the text": (
        timed("DATE_STRING", "HH", input_dateformat="yyyy-MM-dd'T'HH:mmZ"),
        "2020-04-01T13:01-0500",
        TEXT,
        "13",
    ),
    "numbers side by side": (
        timed("DATE_STRING", "yyyy/MM/dd/HH", input_dateformat="yyyyMMddHHmmss"),
        "20200401130102",
        TEXT,
        "2020/04/01/13",
    ),
    "names of months and halves of days": (
        timed("MIXED", "yyyy-MM-dd HH", input_dateformat="d MMM yy h a"),
        "1 Apr 20 12 pm",
        TEXT,
        "2020-04-01 12",
    ),
}


@pytest.mark.parametrize(
    ("options", "value", "kind", "expected"), NUMBERS.values(), ids=list(NUMBERS)
)
def test_a_time_becomes_a_path(
    options: dict[str, str], value: Any, kind: pa.DataType, expected: str
) -> None:
    assert time_path(options, value, kind) == expected


PATTERNS = {
    "yy": "20", "y": "2020", "yyyy": "2020", "YYYY": "2020", "xxxx": "2020", "M": "1", "MM": "01",
    "MMM": "Jan", "MMMM": "January", "d": "6", "dd": "06", "D": "6", "DDD": "006", "E": "Mon",
    "EEE": "Mon", "EEEE": "Monday", "e": "1", "w": "2", "ww": "02", "a": "AM", "h": "4", "hh": "04",
    "H": "4", "k": "4", "K": "4", "m": "12", "s": "12", "S": "0", "SS": "04", "SSS": "045",
    "SSSSSS": "045000", "Z": "+0000", "ZZ": "+00:00", "'T'HH": "T04", "'o''clock'": "o'clock",
    "''": "'",
}  # fmt: skip


@pytest.mark.parametrize(("pattern", "expected"), PATTERNS.items(), ids=list(PATTERNS))
def test_a_pattern_shows_what_joda_shows(pattern: str, expected: str) -> None:
    assert time_path(timed("EPOCHMILLISECONDS", pattern), 1578283932045, LONG) == expected


def test_distinct_times_differ_as_far_as_the_pattern_shows_them() -> None:
    seconds = np.array([-3_000_000_000, -1, 0, 1_700_000_000, 1_700_000_899, 1_700_003_600])
    rows = pa.table({"p": np.concatenate([seconds, seconds])})
    for pattern in ("yyyyMMddHH", "yyyyMMdd", "HH:mm", "ss", "SSS"):
        for zone in ("Asia/Kathmandu", "UTC", "Europe/Amsterdam"):
            rule = partition_rule(
                "TIMESTAMP", ["p"], timed("UNIX_TIMESTAMP", pattern, timezone=zone)
            )
            together = partition_paths(rows, rule).to_pylist()
            alone = [partition_paths(rows.slice(i, 1), rule)[0].as_py() for i in range(12)]
            assert together == alone


def test_custom_fields_may_hold_times() -> None:
    rows = pa.table({"q": ["qq"], "p": [1578283932]})
    options = timed("UNIX_TIMESTAMP", "yyyy-MM-dd") | HIVE
    rule = partition_rule("CUSTOM", ["q:SIMPLE", "p:timestamp"], options)
    assert partition_paths(rows, rule).to_pylist() == ["q=qq/p=2020-01-06"]


REFUSED: dict[str, tuple[str, Sequence[str], dict[str, str], Any, type[Exception]]] = {
    "text where numbers are declared": (
        "TIMESTAMP", ["p"], timed("UNIX_TIMESTAMP", "yyyy"), "2020", InvalidError),
    "numbers where text is declared": ("TIMESTAMP", ["p"], DATES, 5, InvalidError),
    "a text that follows no pattern": ("TIMESTAMP", ["p"], DATES, "2020/04/01", InvalidError),
    "an empty text": ("TIMESTAMP", ["p"], DATES, "", InvalidError),
    "a day that does not exist": ("TIMESTAMP", ["p"], DATES, "2021-02-29", InvalidError),
    "a distance that does not exist": (
        "TIMESTAMP", ["p"], ISO, "2020-04-01T13:01:33+99:00", InvalidError),
    "a time beyond all years": (
        "TIMESTAMP", ["p"], timed("UNIX_TIMESTAMP", "yyyy"), 1 << 50, InvalidError),
    "a flag": ("TIMESTAMP", ["p"], timed("UNIX_TIMESTAMP", "yyyy"), True, InvalidError),
    "no input pattern": ("TIMESTAMP", ["p"], timed("MIXED", "yyyy"), "x", InvalidError),
    "no options": ("TIMESTAMP", ["p"], {}, 5, InvalidError),
    "an unknown kind": ("TIMESTAMP", ["p"], timed("STARDATE", "yyyy"), 5, InvalidError),
    "an unknown unit": (
        "TIMESTAMP", ["p"], timed("SCALAR", "yyyy", timestamp_scalar_time_unit="weeks"), 5,
        InvalidError),
    "an unknown zone": (
        "TIMESTAMP", ["p"], timed("SCALAR", "yyyy", timezone="Mars/Base"), 5, InvalidError),
    "an empty pattern": ("TIMESTAMP", ["p"], timed("SCALAR", ""), 5, InvalidError),
    "an open quote": ("TIMESTAMP", ["p"], timed("SCALAR", "yyyy'T"), 5, InvalidError),
    "eras": ("TIMESTAMP", ["p"], timed("SCALAR", "G"), 5, UnsupportedError),
    "names of zones": ("TIMESTAMP", ["p"], timed("SCALAR", "ZZZ"), 5, UnsupportedError),
    "weeks in input": (
        "TIMESTAMP", ["p"], timed("MIXED", "yyyy", input_dateformat="yyyy-ww"), "2020-01",
        UnsupportedError),
    "several fields": (
        "TIMESTAMP", ["p", "p"], timed("SCALAR", "yyyy"), 5, InvalidError),
    "a custom field without its kind": ("CUSTOM", ["p"], {}, 5, InvalidError),
    "a field that is not there": ("SIMPLE", ["q"], {}, 5, InvalidError),
}  # fmt: skip


@pytest.mark.parametrize(
    ("generator", "fields", "options", "value", "error"), REFUSED.values(), ids=list(REFUSED)
)
def test_what_makes_no_path_is_refused(
    generator: str,
    fields: Sequence[str],
    options: dict[str, str],
    value: Any,
    error: type[LakewrightError],
) -> None:
    rows = pa.table({"p": [value]})
    with pytest.raises(error):
        partition_paths(rows, partition_rule(generator, fields, options))


BACK: dict[str, tuple[str, list[str], dict[str, bool], tuple[str | None, ...]]] = {
    "plain": ("x", ["a"], {}, ("x",)),
    "several": ("x/y", ["a", "b"], {}, ("x", "y")),
    "hive style": ("a=x/b=y", ["a", "b"], {"hive_style": True}, ("x", "y")),
    "a value with an equals sign": ("a=x=1", ["a"], {"hive_style": True}, ("x=1",)),
    "folders that only look like hive style": ("a=x", ["a"], {}, ("a=x",)),
    "null": (f"{DEFAULT}/y", ["a", "b"], {}, (None, "y")),
    "null in hive style": (f"a={DEFAULT}", ["a"], {"hive_style": True}, (None,)),
    "escaped": (ODD_ESCAPED, ["a"], {"url_encoded": True}, (ODD,)),
    "not escaped": ("a%2Fb", ["a"], {}, ("a%2Fb",)),
    "a single value with slashes": ("2026/01/01", ["a"], {}, ("2026/01/01",)),
    "a date with slashes": ("2026/01/01", ["a"], {"slashes_for_dashes": True}, ("2026-01-01",)),
    "a value with slashes among named ones": (
        "a=x/y/b=z",
        ["a", "b"],
        {"hive_style": True},
        ("x/y", "z"),
    ),
}


@pytest.mark.parametrize(("path", "fields", "flags", "values"), BACK.values(), ids=list(BACK))
def test_a_path_contains_its_values(
    path: str, fields: list[str], flags: dict[str, bool], values: tuple[str | None, ...]
) -> None:
    options = {"hive_style": False, "url_encoded": False} | flags
    assert partition_values(path, fields, **options) == values


def test_a_path_that_does_not_fit_is_an_error() -> None:
    for path, hive in (("x", False), ("x/y/z", False), ("a=x", True), ("b=x/q/a=y", True)):
        with pytest.raises(CorruptError):
            partition_values(path, ["a", "b"], hive_style=hive, url_encoded=False)


def test_escaping_is_undone() -> None:
    text = "".join(map(chr, range(1, 256))) + "😀"
    assert unescape(escape(text)) == text
    assert escape("100%") == "100%25"
    assert unescape("%zz%2") == "%zz%2"


def test_no_rows_have_no_paths() -> None:
    rows = pa.table({"a": pa.array([], pa.string()), "p": pa.array([], pa.int64())})
    for rule in (
        partition_rule("COMPLEX", ["a", "p"], HIVE | URL),
        partition_rule("TIMESTAMP", ["p"], timed("UNIX_TIMESTAMP", "yyyy")),
        partition_rule("TIMESTAMP", ["a"], DATES),
        PartitionRule(),
    ):
        assert partition_paths(rows, rule).to_pylist() == []


def test_a_column_of_nothing_but_nulls_is_the_default() -> None:
    rows = pa.table({"a": pa.nulls(2)})
    paths = partition_paths(rows, partition_rule("SIMPLE", ["a"], {}))
    assert paths.to_pylist() == [DEFAULT, DEFAULT]


WILDCARDS: dict[str, tuple[str, str, bool]] = {
    "a name matches itself": ("day=1", "day=1", True),
    "brackets are not wild": ("a1", "a[1]", False),
    "a name with brackets matches itself": ("a[1]", "a[1]", True),
    "a name with a star matches itself": ("a*", "a*", True),
    "a dot is a dot": ("axb", "a.b", False),
    "a star is any text": ("2026-01-01", "2026-*", True),
    "a star is also none": ("2026-", "2026-*", True),
    "a star stays in its level": ("2026/01", "2026*", False),
    "each level has its own": ("2026/01", "20*/0?", True),
    "a question mark is one character": ("d12", "d?", False),
    "slashes at the ends do not count": ("a/b", "/a/b/", True),
    "a table without partitions is one": ("", "", True),
    "case counts": ("A", "a", False),
}


@pytest.mark.parametrize(("path", "pattern", "fits"), WILDCARDS.values(), ids=WILDCARDS.keys())
def test_patterns_of_partitions(path: str, pattern: str, *, fits: bool) -> None:
    assert matches_any(path, ["nothing", pattern]) is fits
    assert not matches_any(path, [])


def test_patterns_that_fit_in_many_ways_but_for_their_end_are_answered() -> None:
    """Trying every way to fit would not end within years."""
    pattern = f"x/*{'a*' * 12}b"
    assert not matches_any("x/" + "a" * 4000, [pattern])
    assert matches_any("x/" + "a" * 4000 + "b", [pattern])
