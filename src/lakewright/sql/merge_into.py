"""MERGE INTO: one join for the rows that match, one for those that do not, one commit for all.

Rows to delete go with the others as rows of one upsert that are marked to leave.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import types as T

from lakewright.errors import InvalidError
from lakewright.model.schema import PARTITION_PATH, RECORD_KEY
from lakewright.sql.parser import Assignments, Clause, Merge, MergeAction, When
from lakewright.sql.session import TargetTable
from lakewright.sql.statements import default_as_null
from lakewright.sql.store_assignment import column_named, quoted
from lakewright.write.incoming_rows import MOVED_COLUMN
from lakewright.write.task import Operation
from lakewright.write.writer import Commit

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_SOURCE = "_lakewright_source"
_TWICE = "lakewright: a row of the table matches several rows of the source"
_MOVES = "lakewright: a row would get another key or partition"


def run_merge(goal: TargetTable, merge: Merge, ctes: str) -> Commit:
    """Carry a MERGE out on the table as it was seen."""
    goal.require_keys()
    # It is read by two or three queries, which must see the same rows.
    source = goal.session.query(f"{ctes}SELECT * FROM {merge.source}").cache()
    try:
        parts = _Parts(goal, merge, source, ctes)
        each = (parts.matched(), parts.new(), parts.left())
        frames = [frame for frame in each if frame is not None]
        rows = reduce(lambda one, other: one.unionAll(other), frames)
        return goal.write(Operation.UPSERT, rows, marked=True)
    except InvalidError as error:
        raise _translate_error(error) from error
    finally:
        source.unpersist()


def _translate_error(error: InvalidError) -> InvalidError:
    reason = str(error.facts.get("reason", ""))
    if _TWICE in reason:
        return InvalidError(
            "a row of the table matches several rows of the source: make the source's rows unique"
        )
    if _MOVES in reason:
        return InvalidError(
            "MERGE would give a row another key or partition: match rows by these columns, or "
            "leave them out of the assignments"
        )
    return error


class _Parts:
    """The rows that a MERGE writes, by what is about them."""

    def __init__(self, goal: TargetTable, merge: Merge, source: DataFrame, ctes: str) -> None:
        self.goal, self.merge, self.source, self.ctes = goal, merge, source, ctes
        self.alias = quoted(goal.alias)
        self.source_alias = quoted(merge.source_alias or _SOURCE)
        if self.alias.lower() == self.source_alias.lower():
            raise InvalidError(
                "target and source have the same name: give one of them another by AS",
                name=goal.alias,
            )

    def matched(self) -> DataFrame | None:
        """The rows of the table that match one of the source, with new values or to be deleted."""
        clauses = self.merge.of(When.MATCHED)
        join = ("INNER JOIN ", self.source, f" AS {self.source_alias} ON {self.merge.on}")
        return self._changed(clauses, join, unique=True) if clauses else None

    def left(self) -> DataFrame | None:
        """The rows of the table that match none of the source."""
        clauses = self.merge.of(When.NOT_MATCHED_BY_SOURCE)
        join = ("LEFT ANTI JOIN ", self.source, f" AS {self.source_alias} ON {self.merge.on}")
        return self._changed(clauses, join, unique=False) if clauses else None

    def new(self) -> DataFrame | None:
        """The rows of the source that match none of the table."""
        clauses = self.merge.of(When.NOT_MATCHED)
        if not clauses:
            return None
        joined = (
            self.source,
            f" AS {self.source_alias} LEFT ANTI JOIN ",
            self.goal.rows,
            f" AS {self.alias} ON {self.merge.on}",
        )
        values = [self._values(clause) for clause in clauses]
        types = self._types(values, joined)
        columns = [
            _chosen(clauses, [self._stored(column, texts, types) for texts in values])
            + f" AS {quoted(column.name)}"
            for column in self.goal.columns
        ]
        return self._select([*columns, f"false AS {MOVED_COLUMN}"], joined, clauses)

    def _changed(
        self, clauses: Sequence[Clause], join: tuple[str | DataFrame, ...], *, unique: bool
    ) -> DataFrame:
        joined = (self.goal.rows, f" AS {self.alias} ", *join)
        values = [self._values(clause) for clause in clauses]
        types = self._types(values, joined)
        columns = []
        for column in self.goal.columns:
            old = f"{self.alias}.{quoted(column.name)}"
            texts = [self._stored(column, found, types, old) for found in values]
            if column.name in self.goal.fixed:
                texts = [_unmoved(text, old) for text in texts]
            columns.append(f"{_chosen(clauses, texts)} AS {quoted(column.name)}")
        leaves = ["true" if clause.action is MergeAction.DELETE else "false" for clause in clauses]
        flag = _chosen(clauses, leaves)
        if unique:
            keys = f"{self.alias}.{RECORD_KEY}, {self.alias}.{PARTITION_PATH}"
            several = f"count(1) OVER (PARTITION BY {keys}) > 1"
            flag = f"CASE WHEN {several} THEN raise_error('{_TWICE}') ELSE {flag} END"
        return self._select([*columns, f"{flag} AS {MOVED_COLUMN}"], joined, clauses)

    def _select(
        self,
        columns: Sequence[str],
        joined: tuple[str | DataFrame, ...],
        clauses: Sequence[Clause],
    ) -> DataFrame:
        conditions = [f"({clause.condition})" if clause.condition else "true" for clause in clauses]
        return self.goal.session.query(
            f"{self.ctes}SELECT {', '.join(columns)} FROM ",
            *joined,
            f" WHERE {' OR '.join(conditions)}",
        )

    def _values(self, clause: Clause) -> dict[str, str]:
        """The expressions that a clause assigns to columns."""
        if clause.action is MergeAction.DELETE:
            return {}
        if clause.assignments is None:
            return self._by_name()
        found = _assigned(self.goal, clause.assignments)
        if clause.action is MergeAction.INSERT:
            return {column.name: "NULL" for column in self.goal.columns} | found
        return found

    def _by_name(self) -> dict[str, str]:
        known = T.StructType(self.source.schema.fields).fields
        try:
            return {
                column.name: f"{self.source_alias}.{quoted(column_named(known, column.name).name)}"
                for column in self.goal.columns
            }
        except InvalidError as error:
            raise InvalidError(
                "the source lacks a column for the star: list the assignments", **error.facts
            ) from error

    def _types(
        self, values: Sequence[Mapping[str, str]], joined: tuple[str | DataFrame, ...]
    ) -> dict[str, T.DataType]:
        """The types of the expressions; Spark looks at them, and evaluates nothing."""
        texts = list(dict.fromkeys(text for found in values for text in found.values()))
        if not texts:
            return {}
        listed = ", ".join(f"({text}) AS _{number}" for number, text in enumerate(texts))
        frame = self.goal.session.query(f"{self.ctes}SELECT {listed} FROM ", *joined)
        return dict(zip(texts, (field.dataType for field in frame.schema.fields), strict=True))

    def _stored(
        self,
        column: T.StructField,
        values: Mapping[str, str],
        types: Mapping[str, T.DataType],
        old: str = "NULL",
    ) -> str:
        text = values.get(column.name)
        return old if text is None else self.goal.stored(text, types[text], column)


def _assigned(goal: TargetTable, assignments: Assignments) -> dict[str, str]:
    found = {goal.column(parts).name: default_as_null(text) for parts, text in assignments}
    if len(found) < len(assignments):
        raise InvalidError("a column is assigned twice", columns=sorted(found))
    return found


def _chosen(clauses: Sequence[Clause], texts: Sequence[str]) -> str:
    """What the first clause gives whose condition holds."""
    whens = [
        f"WHEN {clause.condition or 'true'} THEN {text}"
        for clause, text in zip(clauses, texts, strict=True)
    ]
    return f"CASE {' '.join(whens)} END"


def _unmoved(text: str, old: str) -> str:
    if text == old:
        return old
    return f"CASE WHEN ({text}) <=> {old} THEN {old} ELSE raise_error('{_MOVES}') END"
