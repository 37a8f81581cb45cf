"""Statements that change a table, from their words. Pure; nothing is evaluated.

`find_target` reads as far as the name of the table: whose it is decides whether a statement is read
on, or is left to Spark as it is.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from lakewright.errors import UnsupportedError
from lakewright.interfaces.leading import statement_of
from lakewright.interfaces.statements.parse_merge import parse_merge
from lakewright.interfaces.statements.parsed import (
    Assignments,
    Change,
    Delete,
    DropPartitions,
    Insert,
    Partition,
    Target,
    Truncate,
    Update,
)
from lakewright.interfaces.statements.words import Cursor, words_of

# What a statement that changes a table can begin with.
_BEGINS = re.compile(r"(?:INSERT|UPDATE|DELETE|MERGE|TRUNCATE|ALTER|WITH)\b", re.I)
_AFTER_TARGET = frozenset({"SET", "WHERE", "USING", "VALUES", "SELECT", "PARTITION", "DROP", "AS"})


@dataclass(frozen=True)
class Found:
    """A statement that changes a table: which kind, which table, and where the rest begins.

    `ctes` is the WITH before it, ready to be put before a query.
    """

    kind: str
    target: Target
    ctes: str
    cursor: Cursor


def find_target(text: str) -> Found | None:
    """The table that a statement changes; None for other statements."""
    text = statement_of(text)
    if not _BEGINS.match(text):
        return None
    words = words_of(text)
    if not words:
        return None
    cursor = Cursor(text, words)
    ctes = _ctes(cursor) if cursor.peek() == "WITH" else ""
    kind = _kind(cursor) if ctes is not None else None
    if kind is None or not cursor.words[cursor.at : cursor.at + 1]:
        return None
    if not cursor.words[cursor.at].is_name:
        return None
    return Found(kind, Target(cursor.name()), ctes or "", cursor)


def _ctes(cursor: Cursor) -> str | None:
    """The WITH that a statement begins with; None if it cannot be told where it ends."""
    first = cursor.at
    cursor.take("WITH")
    cursor.take("RECURSIVE")
    while True:
        if cursor.ended or not cursor.word().is_name:
            return None
        if cursor.peek() == "(":
            cursor.in_brackets()
        while cursor.peek() not in ("(", ""):  # AS, MAX RECURSION LEVEL n
            cursor.word()
        cursor.in_brackets()
        if not cursor.take(","):
            break
    return f"{cursor.text[cursor.words[first].start : cursor.words[cursor.at - 1].end]} "


def _kind(cursor: Cursor) -> str | None:
    """Go past the words before the name of the table that a statement changes."""
    if cursor.take("INSERT"):
        kind = "INTO" if cursor.take("INTO") else "OVERWRITE" if cursor.take("OVERWRITE") else None
        # INSERT OVERWRITE DIRECTORY writes files.
        if kind == "OVERWRITE" and cursor.peek() in ("DIRECTORY", "LOCAL"):
            return None
        if cursor.peek() == "TABLE" and cursor.peek(1) != ".":
            cursor.take("TABLE")
        return kind
    for kind, words in {
        "UPDATE": ("UPDATE",),
        "DELETE": ("DELETE", "FROM"),
        "MERGE": ("MERGE", "INTO"),
        "TRUNCATE": ("TRUNCATE", "TABLE"),
        "ALTER": ("ALTER", "TABLE"),
    }.items():
        if cursor.take(*words):
            return kind
    return None


def parse_change(found: Found) -> tuple[Target, Change] | None:
    """What is to be done with a table of ours; None for what Spark does in its catalog alone.

    Raises:
        InvalidError: it does not parse.
        UnsupportedError: it says something that is not carried out.
    """
    cursor, target = found.cursor, found.target
    if found.kind in ("INTO", "OVERWRITE"):
        return target, _insert(cursor, overwrite=found.kind == "OVERWRITE")
    if found.kind == "ALTER":
        dropped = _dropped(cursor)
        return None if dropped is None else (target, dropped)
    if found.kind == "TRUNCATE":
        partition = _partition(cursor) if cursor.take("PARTITION") else ()
        return target, _whole(cursor, Truncate(partition))
    target = Target(target.name, _alias(cursor))
    if found.kind == "MERGE":
        return target, _whole(cursor, parse_merge(cursor))
    if found.kind == "DELETE":
        return target, Delete(_where(cursor))
    cursor.expect("SET")
    assignments = parse_assignments(cursor, ("WHERE", ","))
    return target, Update(assignments, _where(cursor))


def _where(cursor: Cursor) -> str | None:
    if cursor.take("WHERE"):
        condition = cursor.rest()
        if not condition:
            raise cursor.error("a condition expected")
        return condition
    _nothing(cursor)
    return None


def _whole(cursor: Cursor, change: Change) -> Change:
    _nothing(cursor)
    return change


def _nothing(cursor: Cursor) -> None:
    if not cursor.ended:
        raise cursor.error("the end expected")


def _alias(cursor: Cursor) -> str | None:
    if cursor.take("AS"):
        return cursor.word().name
    if cursor.ended or cursor.peek() in _AFTER_TARGET:
        return None
    return cursor.word().name


def parse_assignments(cursor: Cursor, ends: tuple[str, ...]) -> Assignments:
    """`column = expression`, with commas between them."""
    found = []
    while True:
        column = cursor.name()
        cursor.expect("=")
        found.append((column, cursor.until(ends)))
        if not cursor.take(","):
            return tuple(found)


def _insert(cursor: Cursor, *, overwrite: bool) -> Insert:
    partition = _partition(cursor) if cursor.take("PARTITION") else ()
    if cursor.take("IF", "NOT", "EXISTS"):
        raise UnsupportedError("INSERT OVERWRITE IF NOT EXISTS is not carried out: leave it out")
    if cursor.take("REPLACE", "WHERE"):
        raise UnsupportedError(
            "INSERT INTO REPLACE WHERE is not carried out: delete the rows first, or use "
            "INSERT OVERWRITE for whole partitions"
        )
    by_name = cursor.take("BY", "NAME")
    columns = None
    if cursor.peek() == "(" and cursor.peek(1) not in ("SELECT", "WITH", "VALUES", "FROM", "("):
        columns = cursor.names()
    query = cursor.rest()
    if not query:
        raise cursor.error("a query or VALUES expected")
    return Insert(query, overwrite, partition, columns, by_name)


def _partition(cursor: Cursor) -> Partition:
    """The columns and values in brackets."""
    found: list[tuple[str, str | None]] = []
    cursor.expect("(")
    while True:
        column = cursor.name()
        if len(column) > 1:
            raise cursor.error("the name of a partition column expected")
        value = None
        if cursor.take("="):
            value = cursor.until((",", ")"))
        elif cursor.peek() not in (",", ")"):
            raise UnsupportedError(
                "partitions are named by column = value", column=column[0], found=cursor.peek()
            )
        found.append((column[0], value))
        if not cursor.take(","):
            break
    cursor.expect(")")
    return tuple(found)


def _dropped(cursor: Cursor) -> DropPartitions | None:
    if not cursor.take("DROP"):
        return None
    if_exists = cursor.take("IF", "EXISTS")
    if not cursor.take("PARTITION"):
        return None
    found = [_partition(cursor)]
    while cursor.take(",", "PARTITION"):
        found.append(_partition(cursor))
    cursor.take("PURGE")
    _nothing(cursor)
    return DropPartitions(tuple(found), if_exists)
