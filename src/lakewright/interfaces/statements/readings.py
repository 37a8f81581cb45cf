"""Places in a query where tables of ours are read in ways that Spark does not know.

`t TIMESTAMP AS OF '...'`, `t VERSION AS OF '...'`, hudi.`/path` and `hudi_table_changes(...)`.
Pure.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from lakewright.errors import InvalidError
from lakewright.interfaces.statements.names import named_path
from lakewright.interfaces.statements.words import Cursor, Word, words_of

_MAY_READ = re.compile(r"\bAS\s+OF\b|\bhudi\s*\.\s*`|\bhudi_table_changes\s*\(", re.I)
_TIMES = frozenset({"TIMESTAMP", "SYSTEM_TIME", "VERSION", "SYSTEM_VERSION"})
_BEFORE_TABLE = frozenset({"FROM", "JOIN", ",", "(", "TABLE", "USING"})
_CHANGES = "HUDI_TABLE_CHANGES"
# What can follow a table that has no other name there.
_AFTER_TABLE = frozenset(
    {"WHERE", "GROUP", "HAVING", "ORDER", "LIMIT", "OFFSET", "QUALIFY", "WINDOW", "LATERAL"}
    | {"JOIN", "INNER", "LEFT", "RIGHT", "FULL", "CROSS", "NATURAL", "ANTI", "SEMI", "ON", "USING"}
    | {"UNION", "EXCEPT", "MINUS", "INTERSECT", "TABLESAMPLE", "PIVOT", "UNPIVOT"}
    | {"CLUSTER", "DISTRIBUTE", "SORT", "WHEN", "SELECT", "SET"}
)


@dataclass(frozen=True, slots=True)
class Reading:
    """A table that is read between two places of a text.

    `as_of` is the point in time, None for now; it is empty where it is told by an expression.
    `changes` are the arguments of the table function. `aliased` tells whether a name follows.
    """

    start: int
    end: int
    name: tuple[str, ...]
    as_of: str | None = None
    changes: tuple[str, ...] | None = None
    aliased: bool = False


def readings(text: str) -> tuple[Reading, ...]:
    """The places of a text, in order; most texts have none, which is told quickly."""
    if not _MAY_READ.search(text):
        return ()
    words = words_of(text)
    if words is None:
        return ()
    cursor = Cursor(text, words)
    found = []
    while cursor.at < len(words):
        here = cursor.at
        reading = _reading(cursor)
        if reading is not None:
            found.append(reading)
        elif cursor.at == here:
            cursor.at += 1
    return tuple(found)


def _reading(cursor: Cursor) -> Reading | None:
    """The reading that begins here, if one does."""
    first = cursor.words[cursor.at]
    if not first.is_name:
        return None
    before = cursor.words[cursor.at - 1].upper if cursor.at else ""
    if first.upper == _CHANGES and cursor.peek(1) == "(":
        cursor.take(_CHANGES)
        arguments = tuple(_literal(cursor, part) for part in cursor.parts())
        return _ended(cursor, first, arguments[:1], changes=arguments[1:])
    name = [cursor.word().name]
    while cursor.peek() == "." and cursor.at + 1 < len(cursor.words):
        if not cursor.words[cursor.at + 1].is_name:
            return None
        cursor.take(".")
        name.append(cursor.word().name)
    if before not in _BEFORE_TABLE:
        return None
    time = _time(cursor)
    if time is None and named_path(name) is None:
        return None
    return _ended(cursor, first, tuple(name), as_of=time)


def _ended(
    cursor: Cursor,
    first: Word,
    name: tuple[str, ...],
    *,
    as_of: str | None = None,
    changes: tuple[str, ...] | None = None,
) -> Reading:
    end = cursor.words[cursor.at - 1].end
    more = cursor.at < len(cursor.words) and cursor.words[cursor.at].is_name
    aliased = more and cursor.peek() not in _AFTER_TABLE
    return Reading(first.start, end, name, as_of, changes, aliased)


def _time(cursor: Cursor) -> str | None:
    """Go past a point in time; what it is if it is a literal, empty if not, None if none is."""
    ahead = 1 if cursor.peek() == "FOR" else 0
    if cursor.peek(ahead) not in _TIMES or cursor.peek(ahead + 1) != "AS":
        return None
    if cursor.peek(ahead + 2) != "OF" or cursor.at + ahead + 3 >= len(cursor.words):
        return None
    at = cursor.at + ahead + 3
    if cursor.words[at].upper in ("TIMESTAMP", "DATE") and at + 1 < len(cursor.words):
        at += 1
    word = cursor.words[at]
    value = word.value if word.value is not None else word.raw if word.raw.isdigit() else ""
    follows = cursor.words[at + 1].raw if at + 1 < len(cursor.words) else ""
    cursor.at = at + 1
    return value if follows not in ("+", "-", "||", "(", ".") else ""


def _literal(cursor: Cursor, text: str) -> str:
    """The text or number that an argument of the table function is."""
    words = words_of(text) or ()
    if len(words) != 1 or (words[0].value is None and not words[0].raw.isdigit()):
        raise InvalidError("an argument of hudi_table_changes is a text in quotes", argument=text)
    return words[0].value if words[0].value is not None else words[0].raw
