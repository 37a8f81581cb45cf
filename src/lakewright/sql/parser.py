"""What statements say, as values; expressions and queries in them stay as they were written."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum, auto

from lakewright.errors import InvalidError, UnsupportedError
from lakewright.sql.table_names import named_path
from lakewright.sql.tokenizer import Cursor, Token, statement_of, tokenize

Assignments = tuple[tuple[tuple[str, ...], str], ...]
# Columns of a partition with the texts of their values; None where the rows tell.
Partition = tuple[tuple[str, str | None], ...]


@dataclass(frozen=True, slots=True)
class Target:
    """The table that a statement changes, by the parts of its name, and its name in there."""

    name: tuple[str, ...]
    alias: str | None = None


@dataclass(frozen=True, slots=True)
class Insert:
    """INSERT INTO or OVERWRITE; `columns` is None if they were not listed."""

    query: str
    overwrite: bool = False
    partition: Partition = ()
    columns: tuple[str, ...] | None = None
    by_name: bool = False


@dataclass(frozen=True, slots=True)
class Delete:
    """DELETE FROM; without a condition all rows."""

    where: str | None = None


@dataclass(frozen=True, slots=True)
class Update:
    """UPDATE: columns with the expressions that they get."""

    assignments: Assignments
    where: str | None = None


class When(Enum):
    """Which rows a clause of MERGE is about."""

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
    """A clause of MERGE; `assignments` is None for a star, where columns meet by name."""

    when: When
    action: MergeAction
    condition: str | None = None
    assignments: Assignments | None = ()


@dataclass(frozen=True, slots=True)
class Merge:
    """MERGE INTO; `source` is what could follow FROM, without its alias."""

    source: str
    source_alias: str | None
    on: str
    clauses: tuple[Clause, ...]

    def of(self, when: When) -> tuple[Clause, ...]:
        """The clauses about some rows, in their order."""
        return tuple(clause for clause in self.clauses if clause.when is when)


@dataclass(frozen=True, slots=True)
class Truncate:
    """TRUNCATE TABLE, all of it or a partition."""

    partition: Partition = ()


@dataclass(frozen=True, slots=True)
class DropPartitions:
    """ALTER TABLE DROP PARTITION."""

    partitions: tuple[Partition, ...]
    if_exists: bool = False


Change = Insert | Delete | Update | Merge | Truncate | DropPartitions


# ------------------------------------------------------------------------------------------------
# The clauses of MERGE INTO, from their words.


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
        name = cursor.token().name
        if cursor.peek() == "(":  # names for the columns
            source = f"{source} AS `{name}`({cursor.in_brackets()})"
    return source, name


def _past_time(cursor: Cursor) -> None:
    """Go past `TIMESTAMP AS OF '...'`."""
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
        return Clause(when, MergeAction.INSERT, condition, _inserted(cursor))
    if cursor.take("DELETE"):
        return Clause(when, MergeAction.DELETE, condition)
    cursor.expect("UPDATE", "SET")
    if cursor.take("*"):
        if when is When.NOT_MATCHED_BY_SOURCE:
            raise cursor.error("rows without source have no columns for a star")
        return Clause(when, MergeAction.UPDATE, condition, None)
    return Clause(when, MergeAction.UPDATE, condition, _assigned(cursor))


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


# ------------------------------------------------------------------------------------------------
# Statements that change a table, from their words. Pure; nothing is evaluated.
#
# `find_target` reads as far as the name of the table: whose it is decides whether a statement is
# read
# on, or is left to Spark as it is.


# What a statement that changes a table can begin with.
_BEGINS = re.compile(r"(?:INSERT|UPDATE|DELETE|MERGE|TRUNCATE|ALTER|WITH)\b", re.I)
_AFTER_TARGET = frozenset({"SET", "WHERE", "USING", "VALUES", "SELECT", "PARTITION", "DROP", "AS"})


@dataclass(frozen=True)
class StatementTarget:
    """A statement that changes a table: which kind, which table, and where the rest begins.

    `ctes` is the WITH before it, ready to be put before a query.
    """

    kind: str
    target: Target
    ctes: str
    cursor: Cursor


def find_target(text: str) -> StatementTarget | None:
    """The table that a statement changes; None for other statements."""
    text = statement_of(text)
    if not _BEGINS.match(text):
        return None
    words = tokenize(text)
    if not words:
        return None
    cursor = Cursor(text, words)
    ctes = _ctes(cursor) if cursor.peek() == "WITH" else ""
    kind = _kind(cursor) if ctes is not None else None
    if kind is None or not cursor.words[cursor.at : cursor.at + 1]:
        return None
    if not cursor.words[cursor.at].is_name:
        return None
    return StatementTarget(kind, Target(cursor.name()), ctes or "", cursor)


def _ctes(cursor: Cursor) -> str | None:
    """The WITH that a statement begins with; None if it cannot be told where it ends."""
    first = cursor.at
    cursor.take("WITH")
    cursor.take("RECURSIVE")
    while True:
        if cursor.ended or not cursor.token().is_name:
            return None
        if cursor.peek() == "(":
            cursor.in_brackets()
        while cursor.peek() not in ("(", ""):  # AS, MAX RECURSION LEVEL n
            cursor.token()
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


def parse_change(found: StatementTarget) -> tuple[Target, Change] | None:
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
        return cursor.token().name
    if cursor.ended or cursor.peek() in _AFTER_TARGET:
        return None
    return cursor.token().name


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


# ------------------------------------------------------------------------------------------------
# Places in a query where tables of ours are read in ways that Spark does not know.
#
# `t TIMESTAMP AS OF '...'`, `t VERSION AS OF '...'`, hudi.`/path` and `hudi_table_changes(...)`.
# Pure.


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
class TableReference:
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


def table_references(text: str) -> tuple[TableReference, ...]:
    """The places of a text, in order; most texts have none, which is told quickly."""
    if not _MAY_READ.search(text):
        return ()
    words = tokenize(text)
    if words is None:
        return ()
    cursor = Cursor(text, words)
    found = []
    while cursor.at < len(words):
        here = cursor.at
        reading = _table_reference(cursor)
        if reading is not None:
            found.append(reading)
        elif cursor.at == here:
            cursor.at += 1
    return tuple(found)


def _table_reference(cursor: Cursor) -> TableReference | None:
    """The reading that begins here, if one does."""
    first = cursor.words[cursor.at]
    if not first.is_name:
        return None
    before = cursor.words[cursor.at - 1].upper if cursor.at else ""
    if first.upper == _CHANGES and cursor.peek(1) == "(":
        cursor.take(_CHANGES)
        arguments = tuple(_literal(cursor, part) for part in cursor.parts())
        return _ended(cursor, first, arguments[:1], changes=arguments[1:])
    name = [cursor.token().name]
    while cursor.peek() == "." and cursor.at + 1 < len(cursor.words):
        if not cursor.words[cursor.at + 1].is_name:
            return None
        cursor.take(".")
        name.append(cursor.token().name)
    if before not in _BEFORE_TABLE:
        return None
    time = _time(cursor)
    if time is None and named_path(name) is None:
        return None
    return _ended(cursor, first, tuple(name), as_of=time)


def _ended(
    cursor: Cursor,
    first: Token,
    name: tuple[str, ...],
    *,
    as_of: str | None = None,
    changes: tuple[str, ...] | None = None,
) -> TableReference:
    end = cursor.words[cursor.at - 1].end
    more = cursor.at < len(cursor.words) and cursor.words[cursor.at].is_name
    aliased = more and cursor.peek() not in _AFTER_TABLE
    return TableReference(first.start, end, name, as_of, changes, aliased)


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
    words = tokenize(text) or ()
    if len(words) != 1 or (words[0].value is None and not words[0].raw.isdigit()):
        raise InvalidError("an argument of hudi_table_changes is a text in quotes", argument=text)
    return words[0].value if words[0].value is not None else words[0].raw
