"""Parsing of SQL: statements that change a table, and table references that Spark cannot resolve.

`find_target` reads a statement up to the name of its table. If that is a Hudi table,
`parse_change` parses the rest into an `Insert`, `Delete`, `Update`, `Merge`, `Truncate` or
`DropPartitions`; otherwise the statement goes to Spark unchanged. `table_references` finds time
travel, tables by path and `hudi_table_changes` in queries.

Expressions and queries inside statements stay text, exactly as written; Spark evaluates them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum, auto

from lakewright.errors import InvalidError, UnsupportedError
from lakewright.sql.table_names import named_path
from lakewright.sql.tokenizer import Cursor, Token, statement_of, tokenize

Assignments = tuple[tuple[tuple[str, ...], str], ...]
# Partition columns with the texts of their values; None where the values come from the rows.
Partition = tuple[tuple[str, str | None], ...]


@dataclass(frozen=True, slots=True)
class Target:
    """The table that a statement changes: the parts of its name, and its alias."""

    name: tuple[str, ...]
    alias: str | None = None


@dataclass(frozen=True, slots=True)
class Insert:
    """INSERT INTO or INSERT OVERWRITE; `columns` is None if the statement has no column list."""

    query: str
    overwrite: bool = False
    partition: Partition = ()
    columns: tuple[str, ...] | None = None
    by_name: bool = False


@dataclass(frozen=True, slots=True)
class Delete:
    """DELETE FROM; without a condition it deletes all rows."""

    where: str | None = None


@dataclass(frozen=True, slots=True)
class Update:
    """UPDATE with the columns and the expressions assigned to them."""

    assignments: Assignments
    where: str | None = None


class When(Enum):
    """The rows that a clause of MERGE applies to."""

    MATCHED = auto()
    NOT_MATCHED = auto()
    NOT_MATCHED_BY_SOURCE = auto()


class MergeAction(Enum):
    """What a clause of MERGE does with a row."""

    UPDATE = auto()
    DELETE = auto()
    INSERT = auto()


@dataclass(frozen=True, slots=True)
class Clause:
    """A clause of MERGE; `assignments` is None for `*`, which assigns columns by name."""

    when: When
    action: MergeAction
    condition: str | None = None
    assignments: Assignments | None = ()


@dataclass(frozen=True, slots=True)
class Merge:
    """MERGE INTO; `source` is a table or subquery as after FROM, without its alias."""

    source: str
    source_alias: str | None
    on: str
    clauses: tuple[Clause, ...]

    def clauses_for(self, when: When) -> tuple[Clause, ...]:
        """The clauses that apply to these rows, in the order of the statement."""
        return tuple(clause for clause in self.clauses if clause.when is when)


@dataclass(frozen=True, slots=True)
class Truncate:
    """TRUNCATE TABLE, of the whole table or of one partition."""

    partition: Partition = ()


@dataclass(frozen=True, slots=True)
class DropPartitions:
    """ALTER TABLE DROP PARTITION."""

    partitions: tuple[Partition, ...]
    if_exists: bool = False


Change = Insert | Delete | Update | Merge | Truncate | DropPartitions


# MERGE INTO.


def parse_merge(cursor: Cursor) -> Merge:
    """Parse a MERGE statement after its target."""
    if cursor.take("WITH", "SCHEMA", "EVOLUTION"):
        raise UnsupportedError("MERGE WITH SCHEMA EVOLUTION is not supported")
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
    """Parse the source; return its text, and the name that conditions refer to it by."""
    if cursor.peek() == "(":
        source, name = f"({cursor.in_brackets()})", None
    else:
        first = cursor.at
        name = cursor.name()[-1]
        if cursor.peek() == "(":  # a table function
            cursor.in_brackets()
            name = None
        else:
            _skip_time_travel(cursor)
        source = cursor.text[cursor.tokens[first].start : cursor.tokens[cursor.at - 1].end]
    if cursor.take("AS") or cursor.peek() != "ON":
        name = cursor.token().name
        if cursor.peek() == "(":  # column aliases
            source = f"{source} AS `{name}`({cursor.in_brackets()})"
    return source, name


def _skip_time_travel(cursor: Cursor) -> None:
    """Advance past `TIMESTAMP AS OF '...'`, if it follows."""
    ahead = 1 if cursor.peek() == "FOR" else 0
    if cursor.peek(ahead + 1) == "AS" and cursor.peek(ahead + 2) == "OF":
        for _ in range(ahead + 4):
            cursor.token()


def _clause(cursor: Cursor) -> Clause:
    when = _when(cursor)
    condition = cursor.until(("THEN",)) if cursor.take("AND") else None
    cursor.expect("THEN")
    if when is When.NOT_MATCHED:
        cursor.expect("INSERT")
        return Clause(when, MergeAction.INSERT, condition, _insert_assignments(cursor))
    if cursor.take("DELETE"):
        return Clause(when, MergeAction.DELETE, condition)
    cursor.expect("UPDATE", "SET")
    if cursor.take("*"):
        if when is When.NOT_MATCHED_BY_SOURCE:
            raise cursor.error("rows without source have no columns for a star")
        return Clause(when, MergeAction.UPDATE, condition, None)
    return Clause(when, MergeAction.UPDATE, condition, _update_assignments(cursor))


def _when(cursor: Cursor) -> When:
    if cursor.take("MATCHED"):
        return When.MATCHED
    cursor.expect("NOT", "MATCHED")
    if cursor.take("BY", "SOURCE"):
        return When.NOT_MATCHED_BY_SOURCE
    cursor.take("BY", "TARGET")
    return When.NOT_MATCHED


def _update_assignments(cursor: Cursor) -> Assignments:
    assignments = []
    while True:
        column = cursor.name()
        cursor.expect("=")
        assignments.append((column, cursor.until((",", "WHEN"))))
        if not cursor.take(","):
            return tuple(assignments)


def _insert_assignments(cursor: Cursor) -> Assignments | None:
    if cursor.take("*"):
        return None
    columns = cursor.names()
    cursor.expect("VALUES")
    values = tuple(cursor.parts())
    if len(columns) != len(values):
        raise cursor.error(f"{len(columns)} values expected")
    return tuple(((column,), value) for column, value in zip(columns, values, strict=True))


# Statements that change a table.

_MAY_CHANGE = re.compile(r"(?:INSERT|UPDATE|DELETE|MERGE|TRUNCATE|ALTER|WITH)\b", re.I)
_AFTER_TARGET = frozenset({"SET", "WHERE", "USING", "VALUES", "SELECT", "PARTITION", "DROP", "AS"})


@dataclass(frozen=True)
class StatementTarget:
    """The kind and the table of a statement, and a cursor behind the name of the table.

    `ctes` is the WITH clause before the statement, to put in front of a query.
    """

    kind: str
    target: Target
    ctes: str
    cursor: Cursor


def find_target(text: str) -> StatementTarget | None:
    """Return the target of a statement that changes a table, None for other statements."""
    text = statement_of(text)
    if not _MAY_CHANGE.match(text):
        return None
    tokens = tokenize(text)
    if not tokens:
        return None
    cursor = Cursor(text, tokens)
    ctes = _ctes(cursor) if cursor.peek() == "WITH" else ""
    kind = _kind(cursor) if ctes is not None else None
    if kind is None or not cursor.tokens[cursor.at : cursor.at + 1]:
        return None
    if not cursor.tokens[cursor.at].is_name:
        return None
    return StatementTarget(kind, Target(cursor.name()), ctes or "", cursor)


def _ctes(cursor: Cursor) -> str | None:
    """Parse the leading WITH clause; None if its end cannot be determined: Spark reports errors."""
    first = cursor.at
    try:
        parsed = _skip_ctes(cursor)
    except InvalidError:
        parsed = False
    if not parsed:
        return None
    return f"{cursor.text[cursor.tokens[first].start : cursor.tokens[cursor.at - 1].end]} "


def _skip_ctes(cursor: Cursor) -> bool:
    cursor.take("WITH")
    cursor.take("RECURSIVE")
    while True:
        if cursor.ended or not cursor.token().is_name:
            return False
        if cursor.peek() == "(":
            cursor.in_brackets()
        while cursor.peek() not in ("(", ""):  # AS, MAX RECURSION LEVEL n
            cursor.token()
        cursor.in_brackets()
        if not cursor.take(","):
            return True


def _kind(cursor: Cursor) -> str | None:
    """Advance to the name of the target table; return the kind of statement."""
    if cursor.take("INSERT"):
        kind = "INTO" if cursor.take("INTO") else "OVERWRITE" if cursor.take("OVERWRITE") else None
        # INSERT OVERWRITE DIRECTORY writes files, not a table.
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


def parse_change(statement: StatementTarget) -> tuple[Target, Change] | None:
    """Parse a statement on a Hudi table; None for an ALTER TABLE that only changes the catalog.

    Raises:
        InvalidError: the statement does not parse.
        UnsupportedError: the statement uses a feature that is not supported.
    """
    cursor, target = statement.cursor, statement.target
    if statement.kind in ("INTO", "OVERWRITE"):
        return target, _insert(cursor, overwrite=statement.kind == "OVERWRITE")
    if statement.kind == "ALTER":
        drop = _drop_partitions(cursor)
        return None if drop is None else (target, drop)
    if statement.kind == "TRUNCATE":
        partition = _partition(cursor) if cursor.take("PARTITION") else ()
        return target, _at_end(cursor, Truncate(partition))
    target = Target(target.name, _alias(cursor))
    if statement.kind == "MERGE":
        return target, _at_end(cursor, parse_merge(cursor))
    if statement.kind == "DELETE":
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
    _expect_end(cursor)
    return None


def _at_end(cursor: Cursor, change: Change) -> Change:
    """Return the parsed statement; InvalidError if more text follows."""
    _expect_end(cursor)
    return change


def _expect_end(cursor: Cursor) -> None:
    if not cursor.ended:
        raise cursor.error("the end expected")


def _alias(cursor: Cursor) -> str | None:
    if cursor.take("AS"):
        return cursor.token().name
    if cursor.ended or cursor.peek() in _AFTER_TARGET:
        return None
    return cursor.token().name


def parse_assignments(cursor: Cursor, ends: tuple[str, ...]) -> Assignments:
    """Parse comma-separated assignments `column = expression`."""
    assignments = []
    while True:
        column = cursor.name()
        cursor.expect("=")
        assignments.append((column, cursor.until(ends)))
        if not cursor.take(","):
            return tuple(assignments)


def _insert(cursor: Cursor, *, overwrite: bool) -> Insert:
    partition = _partition(cursor) if cursor.take("PARTITION") else ()
    if cursor.take("IF", "NOT", "EXISTS"):
        raise UnsupportedError("INSERT OVERWRITE IF NOT EXISTS is not supported: leave it out")
    if cursor.take("REPLACE", "WHERE"):
        raise UnsupportedError(
            "INSERT INTO REPLACE WHERE is not supported: delete the rows first, or use "
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
    """Parse `(column = value, column, ...)`."""
    columns: list[tuple[str, str | None]] = []
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
        columns.append((column[0], value))
        if not cursor.take(","):
            break
    cursor.expect(")")
    return tuple(columns)


def _drop_partitions(cursor: Cursor) -> DropPartitions | None:
    if not cursor.take("DROP"):
        return None
    if_exists = cursor.take("IF", "EXISTS")
    if not cursor.take("PARTITION"):
        return None
    partitions = [_partition(cursor)]
    while cursor.take(",", "PARTITION"):
        partitions.append(_partition(cursor))
    cursor.take("PURGE")
    _expect_end(cursor)
    return DropPartitions(tuple(partitions), if_exists)


# Table references in queries that Spark cannot resolve: `t TIMESTAMP AS OF '...'`,
# `t VERSION AS OF '...'`, hudi.`/path` and `hudi_table_changes(...)`.

_MAY_REFER = re.compile(r"\bAS\s+OF\b|\bhudi\s*\.\s*`|\bhudi_table_changes\s*\(", re.I)
_TIME_TRAVEL = frozenset({"TIMESTAMP", "SYSTEM_TIME", "VERSION", "SYSTEM_VERSION"})
_BEFORE_TABLE = frozenset({"FROM", "JOIN", ",", "(", "TABLE", "USING"})
_CHANGES = "HUDI_TABLE_CHANGES"
# The keywords that can follow a table without an alias.
_AFTER_TABLE = frozenset(
    {"WHERE", "GROUP", "HAVING", "ORDER", "LIMIT", "OFFSET", "QUALIFY", "WINDOW", "LATERAL"}
    | {"JOIN", "INNER", "LEFT", "RIGHT", "FULL", "CROSS", "NATURAL", "ANTI", "SEMI", "ON", "USING"}
    | {"UNION", "EXCEPT", "MINUS", "INTERSECT", "TABLESAMPLE", "PIVOT", "UNPIVOT"}
    | {"CLUSTER", "DISTRIBUTE", "SORT", "WHEN", "SELECT", "SET"}
)


@dataclass(frozen=True, slots=True)
class TableReference:
    """A table reference, with its range in the text.

    `as_of` is the time of a time travel query, None if there is none, and empty if it is an
    expression instead of a literal. `changes` are the arguments of `hudi_table_changes` after the
    table. `aliased` is whether an alias follows.
    """

    start: int
    end: int
    name: tuple[str, ...]
    as_of: str | None = None
    changes: tuple[str, ...] | None = None
    aliased: bool = False


def table_references(text: str) -> tuple[TableReference, ...]:
    """Return the table references of a text in order; a quick check rules most texts out."""
    if not _MAY_REFER.search(text):
        return ()
    tokens = tokenize(text)
    if tokens is None:
        return ()
    cursor = Cursor(text, tokens)
    references = []
    while cursor.at < len(tokens):
        start = cursor.at
        reference = _table_reference(cursor)
        if reference is not None:
            references.append(reference)
        elif cursor.at == start:
            cursor.at += 1
    return tuple(references)


def _table_reference(cursor: Cursor) -> TableReference | None:
    """Parse the table reference that begins at the cursor, if any."""
    first = cursor.tokens[cursor.at]
    if not first.is_name:
        return None
    previous = cursor.tokens[cursor.at - 1].upper if cursor.at else ""
    if first.upper == _CHANGES and cursor.peek(1) == "(":
        cursor.take(_CHANGES)
        arguments = tuple(_literal(cursor, part) for part in cursor.parts())
        return _finish_reference(cursor, first, arguments[:1], changes=arguments[1:])
    name = [cursor.token().name]
    while cursor.peek() == "." and cursor.at + 1 < len(cursor.tokens):
        if not cursor.tokens[cursor.at + 1].is_name:
            return None
        cursor.take(".")
        name.append(cursor.token().name)
    if previous not in _BEFORE_TABLE:
        return None
    time = _time_travel(cursor)
    if time is None and named_path(name) is None:
        return None
    return _finish_reference(cursor, first, tuple(name), as_of=time)


def _finish_reference(
    cursor: Cursor,
    first: Token,
    name: tuple[str, ...],
    *,
    as_of: str | None = None,
    changes: tuple[str, ...] | None = None,
) -> TableReference:
    end = cursor.tokens[cursor.at - 1].end
    name_follows = cursor.at < len(cursor.tokens) and cursor.tokens[cursor.at].is_name
    aliased = name_follows and cursor.peek() not in _AFTER_TABLE
    return TableReference(first.start, end, name, as_of, changes, aliased)


def _time_travel(cursor: Cursor) -> str | None:
    """Advance past `TIMESTAMP AS OF ...` and return its time.

    The result is empty if the time is an expression, None if no time travel clause follows.
    """
    ahead = 1 if cursor.peek() == "FOR" else 0
    if cursor.peek(ahead) not in _TIME_TRAVEL or cursor.peek(ahead + 1) != "AS":
        return None
    if cursor.peek(ahead + 2) != "OF" or cursor.at + ahead + 3 >= len(cursor.tokens):
        return None
    index = cursor.at + ahead + 3
    if cursor.tokens[index].upper in ("TIMESTAMP", "DATE") and index + 1 < len(cursor.tokens):
        index += 1
    token = cursor.tokens[index]
    value = token.value if token.value is not None else token.raw if token.raw.isdigit() else ""
    follows = cursor.tokens[index + 1].raw if index + 1 < len(cursor.tokens) else ""
    cursor.at = index + 1
    return value if follows not in ("+", "-", "||", "(", ".") else ""


def _literal(cursor: Cursor, text: str) -> str:
    """Return the string or number that an argument of `hudi_table_changes` is."""
    tokens = tokenize(text) or ()
    if len(tokens) != 1 or (tokens[0].value is None and not tokens[0].raw.isdigit()):
        raise InvalidError("an argument of hudi_table_changes is a text in quotes", argument=text)
    return tokens[0].value if tokens[0].value is not None else tokens[0].raw
