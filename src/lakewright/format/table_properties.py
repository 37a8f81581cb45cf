r"""The format of `java.util.Properties`, and the checks that `hoodie.properties` must pass.

The encoding is ISO-8859-1. Each line is one `key=value`, where `=`, `:` or blanks separate; `#` and
`!` start a comment. A backslash escapes the next character or, at the end of a line, continues it
on the next line. `\uXXXX` is one UTF-16 unit: characters beyond the basic plane take two.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from zlib import crc32

from lakewright.errors import CorruptError, InvalidError

TABLE_NAME = "hoodie.table.name"
DATABASE_NAME = "hoodie.database.name"
TABLE_CHECKSUM = "hoodie.table.checksum"
REQUIRED_KEYS = (
    TABLE_NAME,
    "hoodie.table.type",
    "hoodie.table.version",
    "hoodie.timeline.layout.version",
)

_BLANKS = " \t\f"
_LINE_END = re.compile(r"\r\n|\n|\r")
_KEY = re.compile(r"(?:[^\\=: \t\f]|\\.?)*", re.DOTALL)
_SEPARATOR = re.compile(r"[ \t\f]*[=:]?[ \t\f]*")
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|u|.|\Z)", re.DOTALL)
_ESCAPED_BLANKS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_BLANK_ESCAPES = {blank: f"\\{letter}" for letter, blank in _ESCAPED_BLANKS.items()}


def parse_properties(data: bytes) -> dict[str, str]:
    r"""Parse a properties file; the last value of a repeated key counts.

    Raises:
        CorruptError: a `\u` is not followed by four hexadecimal digits.
    """
    return dict(_parsed(data))


# Every load of a timeline parses the table's properties, which hardly ever change.
@lru_cache(maxsize=32)
def _parsed(data: bytes) -> Mapping[str, str]:
    values: dict[str, str] = {}
    for line in _logical_lines(data.decode("iso-8859-1")):
        key = _KEY.match(line)
        end = key.end() if key else 0
        separator = _SEPARATOR.match(line, end)
        start = separator.end() if separator else end
        values[_unescape(line[:end])] = _unescape(line[start:])
    return values


def format_properties(values: Mapping[str, str], comments: Sequence[str] = ()) -> bytes:
    """Return a properties file in the order of `values`, below one `#` line for each comment."""
    heads = [f"#{_escape_non_latin(line)}" for text in comments for line in _LINE_END.split(text)]
    lines = [f"{_escape_key(key)}={_escape_value(value)}" for key, value in values.items()]
    return "".join(f"{line}\n" for line in (*heads, *lines)).encode("iso-8859-1")


def table_checksum(database: str | None, table: str) -> int:
    """Return the checksum of a table's names; it does not cover other properties."""
    # A lone surrogate has no UTF-8 form; Java writes a question mark, as "replace" does.
    return crc32(f"{database or ''}.{table}".encode("utf-8", "replace"))


def with_table_checksum(values: Mapping[str, str]) -> dict[str, str]:
    """Return `values` with their checksum as the last key, which a truncated file lacks."""
    rest = {key: value for key, value in values.items() if key != TABLE_CHECKSUM}
    return rest | {TABLE_CHECKSUM: str(_expected_checksum(values))}


def check_table_properties(values: Mapping[str, str]) -> None:
    """Check that a table's properties are complete and belong to the table.

    Raises:
        CorruptError: a required key is missing or the checksum is wrong.
    """
    missing = [key for key in REQUIRED_KEYS if not values.get(key)]
    if missing:
        raise CorruptError("hoodie.properties is incomplete", missing=missing)
    checksum = values.get(TABLE_CHECKSUM)
    if checksum is not None and checksum != str(_expected_checksum(values)):
        raise CorruptError(
            "hoodie.properties has a wrong checksum",
            found=checksum,
            expected=_expected_checksum(values),
        )


def choose_properties(main: bytes | None, backup: bytes | None) -> dict[str, str]:
    """Return the properties of a table, although an update of them may have crashed.

    An update writes the backup, replaces the main file and removes the backup. So the main file
    counts if it is complete, otherwise the backup.

    Raises:
        InvalidError: neither file exists, so there is no table.
        CorruptError: neither file can be used.
    """
    if main is None and backup is None:
        raise InvalidError("there is no table: hoodie.properties is missing")
    backup_values = _parse_backup(backup)
    try:
        return _parse_complete(main, backup_values)
    except CorruptError:
        if backup_values is None:
            raise
        return backup_values


def _parse_backup(backup: bytes | None) -> dict[str, str] | None:
    try:
        return None if backup is None else _parse_complete(backup, None)
    except CorruptError:
        return None


def _parse_complete(main: bytes | None, backup_values: Mapping[str, str] | None) -> dict[str, str]:
    if main is None:
        raise CorruptError("hoodie.properties is missing and its backup cannot be used")
    values = parse_properties(main)
    check_table_properties(values)
    if backup_values is None:
        return values
    if TABLE_CHECKSUM in backup_values and TABLE_CHECKSUM not in values:
        raise CorruptError("hoodie.properties is incomplete", missing=[TABLE_CHECKSUM])
    if not main.endswith((b"\n", b"\r")):
        raise CorruptError("hoodie.properties ends in the middle of a line")
    return values


def _expected_checksum(values: Mapping[str, str]) -> int:
    return table_checksum(values.get(DATABASE_NAME), values.get(TABLE_NAME, ""))


def _logical_lines(text: str) -> Iterator[str]:
    joined: list[str] = []
    for line in _LINE_END.split(text):
        part = line.lstrip(_BLANKS)
        if not joined and part.startswith(("#", "!")):
            continue
        if _is_continued(part):
            # A line with only a backslash continues nothing: a comment may follow it.
            joined += filter(None, [part[:-1]])
            continue
        if joined or part:
            yield "".join((*joined, part))
        joined = []
    if joined:
        yield "".join(joined)


def _is_continued(line: str) -> bool:
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text
    units = _ESCAPE.sub(_unescaped, text)
    return units.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")


def _unescaped(match: re.Match[str]) -> str:
    escape = match[1]
    if escape == "u":
        raise CorruptError("a \\u escape needs four hexadecimal digits", text=match.string)
    if len(escape) == 5:
        return chr(int(escape[1:], 16))
    return _ESCAPED_BLANKS.get(escape, escape)


def _escape_key(text: str) -> str:
    return "".join("\\ " if char == " " else _escape(char) for char in text)


def _escape_value(text: str) -> str:
    # Only the first blank needs an escape: the parser drops blanks before the value, not inside it.
    head = "\\" if text.startswith(" ") else ""
    return head + "".join(map(_escape, text))


def _escape(char: str) -> str:
    if char in "\\=:#!":
        return f"\\{char}"
    if char in _BLANK_ESCAPES:
        return _BLANK_ESCAPES[char]
    return char if " " <= char <= "~" else _unicode_escape(char)


def _escape_non_latin(text: str) -> str:
    return "".join(char if char <= "\xff" else _unicode_escape(char) for char in text)


def _unicode_escape(char: str) -> str:
    units = char.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[i]:02X}{units[i + 1]:02X}" for i in range(0, len(units), 2))
