"""Properties text exactly as Java reads and writes it, and the checks on a table's own file.

The expected readings were compared with `java.util.Properties` of JDK 17.
"""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from lakewright.errors import CorruptError, InvalidError
from lakewright.format.table_properties import (
    check_table_properties,
    choose_properties,
    format_properties,
    parse_properties,
    table_checksum,
    with_table_checksum,
)

GOLDEN = Path(__file__).parents[2] / "golden"

READINGS: dict[str, tuple[bytes, dict[str, str]]] = {
    "an equals sign separates": (b"a=b", {"a": "b"}),
    "a colon separates": (b"a:b", {"a": "b"}),
    "blanks separate": (b"a \t b", {"a": "b"}),
    "blanks around the separator are dropped": (b"a \f=\t b", {"a": "b"}),
    "only the first separator separates": (b"a==b", {"a": "=b"}),
    "blanks end the key before a second separator": (b"a b=c", {"a": "b=c"}),
    "blanks after the value stay": (b"a=b \t", {"a": "b \t"}),
    "a key needs no value": (b"a", {"a": ""}),
    "a value needs no key": (b"=b", {"": "b"}),
    "leading blanks are dropped": (b" \t\f a=b", {"a": "b"}),
    "blank lines say nothing": (b"\n \t\n\r\na=b\n\n", {"a": "b"}),
    "lines end with any line end": (
        b"a=1\rb=2\r\nc=3\nd=4",
        dict(zip("abcd", "1234", strict=True)),
    ),
    "other control characters end no line": (b"a=\x85\x1c\x0bz", {"a": "\x85\x1c\x0bz"}),
    "comments say nothing": (b"#a=b\n  !c=d\\\ne=f", {"e": "f"}),
    "a hash inside a line is no comment": (b"a=#b", {"a": "#b"}),
    "a backslash joins lines and drops the blanks that follow": (b"a=b\\\n  c", {"a": "bc"}),
    "a joined line is no comment": (b"a=b\\\n#c", {"a": "b#c"}),
    "a line that is only joined may be followed by a comment": (b"\\\n#a=b\nc=d", {"c": "d"}),
    "a joined key": (b"a\\\r\n b=c", {"ab": "c"}),
    "an even number of backslashes joins nothing": (b"a=b\\\\\nc=d", {"a": "b\\", "c": "d"}),
    "an odd number of backslashes joins": (b"a=b\\\\\\\nc", {"a": "b\\c"}),
    "a backslash at the end of the file is dropped": (b"a=b\\", {"a": "b"}),
    "a blank line ends a joined line": (b"a=b\\\n\nc=d", {"a": "b", "c": "d"}),
    "separators can be escaped in keys": (b"a\\=b\\:c\\ d=e", {"a=b:c d": "e"}),
    "letters for blanks": (b"a=\\t\\n\\r\\f", {"a": "\t\n\r\f"}),
    "an unknown escape is the letter itself": (b"a=\\q\\z", {"a": "qz"}),
    "a unit by its number": (b"a\\u00e9=\\u00E9", {"aé": "é"}),
    "two units make one character": (b"a=\\ud83d\\ude00", {"a": "😀"}),
    "bytes above 127 are Latin-1": (b"a=\xe9", {"a": "é"}),
    "of a repeated key the last value counts": (b"a=1\na=2", {"a": "2"}),
    "an empty file has no keys": (b"", {}),
}


@pytest.mark.parametrize(("data", "expected"), READINGS.values(), ids=list(READINGS))
def test_reading(data: bytes, expected: dict[str, str]) -> None:
    assert parse_properties(data) == expected


BROKEN_ESCAPES = {
    "digits missing at the end": b"a=\\u00",
    "a letter that is no digit": b"a=\\u00g0",
    "digits missing in a key": b"a\\u=b",
}


@pytest.mark.parametrize("data", BROKEN_ESCAPES.values(), ids=list(BROKEN_ESCAPES))
def test_a_broken_unit_is_corrupt(data: bytes) -> None:
    with pytest.raises(CorruptError, match="four hexadecimal digits"):
        parse_properties(data)


WRITINGS: dict[str, tuple[dict[str, str], bytes]] = {
    "plain": ({"a.b": "c d"}, b"a.b=c d\n"),
    "all blanks of a key are escaped": ({"a b ": "c"}, b"a\\ b\\ =c\n"),
    "only the first blank of a value is escaped": ({"a": "  b "}, b"a=\\  b \n"),
    "separators and comment signs are escaped everywhere": (
        {"a=:#!\\": "=:#!\\"},
        b"a\\=\\:\\#\\!\\\\=\\=\\:\\#\\!\\\\\n",
    ),
    "blanks have letters": ({"a": "\t\n\r\f"}, b"a=\\t\\n\\r\\f\n"),
    "what is not printable is written as upper-case units": (
        {"é": "\x00\x7f😀"},
        b"\\u00E9=\\u0000\\u007F\\uD83D\\uDE00\n",
    ),
    "order is kept": ({"b": "1", "a": "2"}, b"b=1\na=2\n"),
}


@pytest.mark.parametrize(("values", "expected"), WRITINGS.values(), ids=list(WRITINGS))
def test_writing(values: dict[str, str], expected: bytes) -> None:
    assert format_properties(values) == expected


def test_comments_come_first_and_cannot_break_out() -> None:
    written = format_properties({"a": "b"}, ["saved on é", "two\r\nlines \N{SNOWMAN}"])
    assert written == b"#saved on \xe9\n#two\n#lines \\u2603\na=b\n"


def golden_properties() -> dict[str, bytes]:
    properties = {}
    for archive in sorted(GOLDEN.glob("*.zip")):
        with zipfile.ZipFile(archive) as files:
            for name in files.namelist():
                if name.endswith("/hoodie.properties"):
                    properties[name] = files.read(name)
    return properties


REAL_FILES = golden_properties()


@pytest.mark.parametrize("data", REAL_FILES.values(), ids=list(REAL_FILES))
def test_real_files_are_read_checked_and_written_back(data: bytes) -> None:
    values = parse_properties(data)
    check_table_properties(values)
    comments = [line[1:] for line in data.decode().splitlines() if line.startswith("#")]
    assert format_properties(values, comments) == data


def test_checksum_of_real_tables() -> None:
    assert table_checksum(None, "cow_basic") == 1551336106
    assert table_checksum("", "cow_basic") == 1551336106
    assert table_checksum("db", "cow_basic") != 1551336106


TABLE = {
    "hoodie.table.name": "trips",
    "hoodie.table.type": "COPY_ON_WRITE",
    "hoodie.table.version": "9",
    "hoodie.timeline.layout.version": "2",
}


def test_the_checksum_is_written_last() -> None:
    values = with_table_checksum({"hoodie.table.checksum": "1", **TABLE})
    assert list(values)[-1] == "hoodie.table.checksum"
    check_table_properties(values)


def test_a_table_without_checksum_is_accepted() -> None:
    check_table_properties(TABLE)
    assert choose_properties(format_properties(TABLE), None) == TABLE


UNUSABLE = {
    "a wrong checksum": (TABLE | {"hoodie.table.checksum": "1"}, "wrong checksum"),
    "a checksum that is no number": (TABLE | {"hoodie.table.checksum": ""}, "wrong checksum"),
    "the checksum of another database": (
        with_table_checksum(TABLE) | {"hoodie.database.name": "db"},
        "wrong checksum",
    ),
    "no name": (TABLE | {"hoodie.table.name": ""}, r"missing=\['hoodie.table.name'\]"),
    "nothing at all": ({}, "missing=.*type.*version"),
}


@pytest.mark.parametrize(("values", "message"), UNUSABLE.values(), ids=list(UNUSABLE))
def test_unusable_tables_are_corrupt(values: dict[str, str], message: str) -> None:
    with pytest.raises(CorruptError, match=message):
        check_table_properties(values)


OLD = with_table_checksum(TABLE)
NEW = with_table_checksum(TABLE | {"added": "1"})
OLD_FILE, NEW_FILE = format_properties(OLD), format_properties(NEW)

CHOICES: dict[str, tuple[bytes | None, bytes | None, dict[str, str]]] = {
    "the main file counts": (NEW_FILE, None, NEW),
    "a whole main file counts over the backup": (NEW_FILE, OLD_FILE, NEW),
    "the backup counts while the main file is missing": (None, OLD_FILE, OLD),
    "the backup counts while the main file is empty": (b"", OLD_FILE, OLD),
    "a half-written backup does not count": (OLD_FILE, NEW_FILE[:60], OLD),
    "an empty backup does not count": (OLD_FILE, b"", OLD),
}


@pytest.mark.parametrize(("main", "backup", "expected"), CHOICES.values(), ids=list(CHOICES))
def test_choice_between_main_and_backup(
    main: bytes | None, backup: bytes | None, expected: dict[str, str]
) -> None:
    assert choose_properties(main, backup) == expected


def test_a_main_file_cut_anywhere_loses_to_the_backup() -> None:
    for size in range(len(NEW_FILE)):
        assert choose_properties(NEW_FILE[:size], OLD_FILE) == OLD, size


def test_no_file_is_no_table() -> None:
    with pytest.raises(InvalidError, match="no table"):
        choose_properties(None, None)


def test_without_a_usable_copy_the_error_is_that_of_the_main_file() -> None:
    with pytest.raises(CorruptError, match=r"hoodie\.timeline\.layout\.version"):
        choose_properties(NEW_FILE[:40], b"")


def test_a_half_written_backup_alone_is_corrupt() -> None:
    with pytest.raises(CorruptError, match="backup cannot be used"):
        choose_properties(None, NEW_FILE[:40])


MANY = 2_000_000

LONG_LINES = {
    "backslashes in a line": (b"a=" + b"\\" * MANY + b"b", {"a": "\\" * (MANY // 2) + "b"}),
    "lines that are joined": (b"a=" + b"b\\\n" * (MANY // 10), {"a": "b" * (MANY // 10)}),
}


@pytest.mark.parametrize(("data", "expected"), LONG_LINES.values(), ids=list(LONG_LINES))
def test_the_work_grows_with_the_text_and_not_with_its_square(
    data: bytes, expected: dict[str, str]
) -> None:
    """Looking from every backslash on for the end of the line would take hours here."""
    assert parse_properties(data) == expected
