"""The clauses of MERGE INTO, from their words."""

from __future__ import annotations

from lakewright.errors import UnsupportedError
from lakewright.interfaces.statements.parsed import Action, Assignments, Clause, Merge, When
from lakewright.interfaces.statements.words import Cursor


def parse_merge(cursor: Cursor) -> Merge:
    """What follows the target of a MERGE."""
    if cursor.take("WITH", "SCHEMA", "EVOLUTION"):
        raise UnsupportedError("MERGE WITH SCHEMA EVOLUTION is not carried out")
    cursor.expect("USING")
    source, alias = _source(cursor)
    cursor.expect("ON")
    on = cursor.until(("WHEN",))
    clauses = []
    while cursor.take("WHEN"):
        clauses.append(_clause(cursor))
    if not clauses:
        raise cursor.error("WHEN MATCHED or WHEN NOT MATCHED expected")
    return Merge(source, alias, on, tuple(clauses))


def _source(cursor: Cursor) -> tuple[str, str | None]:
    """The source's text, and by which name conditions speak of it."""
    if cursor.peek() == "(":
        source, name = f"({cursor.in_brackets()})", None
    else:
        first = cursor.at
        name = cursor.name()[-1]
        if cursor.peek() == "(":  # a table function
            cursor.in_brackets()
            name = None
        else:
            _past_time(cursor)
        source = cursor.text[cursor.words[first].start : cursor.words[cursor.at - 1].end]
    if cursor.take("AS") or cursor.peek() != "ON":
        name = cursor.word().name
        if cursor.peek() == "(":  # names for the columns
            source = f"{source} AS `{name}`({cursor.in_brackets()})"
    return source, name


def _past_time(cursor: Cursor) -> None:
    """Go past `TIMESTAMP AS OF '...'`."""
    ahead = 1 if cursor.peek() == "FOR" else 0
    if cursor.peek(ahead + 1) == "AS" and cursor.peek(ahead + 2) == "OF":
        for _ in range(ahead + 4):
            cursor.word()


def _clause(cursor: Cursor) -> Clause:
    when = _when(cursor)
    condition = cursor.until(("THEN",)) if cursor.take("AND") else None
    cursor.expect("THEN")
    if when is When.NOT_MATCHED:
        cursor.expect("INSERT")
        return Clause(when, Action.INSERT, condition, _inserted(cursor))
    if cursor.take("DELETE"):
        return Clause(when, Action.DELETE, condition)
    cursor.expect("UPDATE", "SET")
    if cursor.take("*"):
        if when is When.NOT_MATCHED_BY_SOURCE:
            raise cursor.error("rows without source have no columns for a star")
        return Clause(when, Action.UPDATE, condition, None)
    return Clause(when, Action.UPDATE, condition, _assigned(cursor))


def _when(cursor: Cursor) -> When:
    if cursor.take("MATCHED"):
        return When.MATCHED
    cursor.expect("NOT", "MATCHED")
    if cursor.take("BY", "SOURCE"):
        return When.NOT_MATCHED_BY_SOURCE
    cursor.take("BY", "TARGET")
    return When.NOT_MATCHED


def _assigned(cursor: Cursor) -> Assignments:
    found = []
    while True:
        column = cursor.name()
        cursor.expect("=")
        found.append((column, cursor.until((",", "WHEN"))))
        if not cursor.take(","):
            return tuple(found)


def _inserted(cursor: Cursor) -> Assignments | None:
    if cursor.take("*"):
        return None
    columns = cursor.names()
    cursor.expect("VALUES")
    values = tuple(cursor.parts())
    if len(columns) != len(values):
        raise cursor.error(f"{len(columns)} values expected")
    return tuple(((column,), value) for column, value in zip(columns, values, strict=True))
