"""Execution of MERGE INTO: one join for each kind of WHEN clause, and one commit for all rows.

The commit is an upsert. A boolean column marks the rows that the upsert deletes.
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

_SOURCE_ALIAS = "_lakewright_source"
# The queries raise these errors; `_translate_error` recognizes them by their texts.
_SEVERAL_MATCHES = "lakewright: a row of the table matches several rows of the source"
_KEY_CHANGES = "lakewright: a row would get another key or partition"


def run_merge(target: TargetTable, merge: Merge, ctes: str) -> Commit:
    """Run a MERGE on a snapshot of the table."""
    target.require_keys()
    # Two or three queries read the source, and must see the same rows.
    source = target.session.query(f"{ctes}SELECT * FROM {merge.source}").cache()
    try:
        queries = _MergeQueries(target, merge, source, ctes)
        results = (queries.matched(), queries.not_matched(), queries.not_matched_by_source())
        frames = [frame for frame in results if frame is not None]
        rows = reduce(lambda one, other: one.unionAll(other), frames)
        return target.write(Operation.UPSERT, rows, marked=True)
    except InvalidError as error:
        raise _translate_error(error) from error
    finally:
        source.unpersist()


def _translate_error(error: InvalidError) -> InvalidError:
    reason = str(error.facts.get("reason", ""))
    if _SEVERAL_MATCHES in reason:
        return InvalidError(
            "a row of the table matches several rows of the source: make the source's rows unique"
        )
    if _KEY_CHANGES in reason:
        return InvalidError(
            "MERGE would give a row another key or partition: match rows by these columns, or "
            "leave them out of the assignments"
        )
    return error


class _MergeQueries:
    """The queries that compute the rows to write, one for each kind of WHEN clause."""

    def __init__(self, target: TargetTable, merge: Merge, source: DataFrame, ctes: str) -> None:
        self.target, self.merge, self.source, self.ctes = target, merge, source, ctes
        self.alias = quoted(target.alias)
        self.source_alias = quoted(merge.source_alias or _SOURCE_ALIAS)
        if self.alias.lower() == self.source_alias.lower():
            raise InvalidError(
                "target and source have the same name: give one of them another by AS",
                name=target.alias,
            )

    def matched(self) -> DataFrame | None:
        """Return the rows of the table that match a row of the source, updated or deleted."""
        clauses = self.merge.clauses_for(When.MATCHED)
        join = ("INNER JOIN ", self.source, f" AS {self.source_alias} ON {self.merge.on}")
        return self._changed_rows(clauses, join, unique=True) if clauses else None

    def not_matched_by_source(self) -> DataFrame | None:
        """Return the rows of the table that match no row of the source, updated or deleted."""
        clauses = self.merge.clauses_for(When.NOT_MATCHED_BY_SOURCE)
        join = ("LEFT ANTI JOIN ", self.source, f" AS {self.source_alias} ON {self.merge.on}")
        return self._changed_rows(clauses, join, unique=False) if clauses else None

    def not_matched(self) -> DataFrame | None:
        """Return the rows to insert for rows of the source that match no row of the table."""
        clauses = self.merge.clauses_for(When.NOT_MATCHED)
        if not clauses:
            return None
        joined = (
            self.source,
            f" AS {self.source_alias} LEFT ANTI JOIN ",
            self.target.rows,
            f" AS {self.alias} ON {self.merge.on}",
        )
        values = [self._values(clause) for clause in clauses]
        types = self._types(values, joined)
        columns = [
            _first_applicable(clauses, [self._stored(column, texts, types) for texts in values])
            + f" AS {quoted(column.name)}"
            for column in self.target.columns
        ]
        return self._select([*columns, f"false AS {MOVED_COLUMN}"], joined, clauses)

    def _changed_rows(
        self, clauses: Sequence[Clause], join: tuple[str | DataFrame, ...], *, unique: bool
    ) -> DataFrame:
        joined = (self.target.rows, f" AS {self.alias} ", *join)
        values = [self._values(clause) for clause in clauses]
        types = self._types(values, joined)
        columns = []
        for column in self.target.columns:
            old = f"{self.alias}.{quoted(column.name)}"
            texts = [self._stored(column, assigned, types, old) for assigned in values]
            if column.name in self.target.fixed:
                texts = [_unchanged_or_error(text, old) for text in texts]
            columns.append(f"{_first_applicable(clauses, texts)} AS {quoted(column.name)}")
        deletes = ["true" if clause.action is MergeAction.DELETE else "false" for clause in clauses]
        is_deleted = _first_applicable(clauses, deletes)
        if unique:
            keys = f"{self.alias}.{RECORD_KEY}, {self.alias}.{PARTITION_PATH}"
            several = f"count(1) OVER (PARTITION BY {keys}) > 1"
            is_deleted = (
                f"CASE WHEN {several} THEN raise_error('{_SEVERAL_MATCHES}') ELSE {is_deleted} END"
            )
        return self._select([*columns, f"{is_deleted} AS {MOVED_COLUMN}"], joined, clauses)

    def _select(
        self,
        columns: Sequence[str],
        joined: tuple[str | DataFrame, ...],
        clauses: Sequence[Clause],
    ) -> DataFrame:
        conditions = [f"({clause.condition})" if clause.condition else "true" for clause in clauses]
        return self.target.session.query(
            f"{self.ctes}SELECT {', '.join(columns)} FROM ",
            *joined,
            f" WHERE {' OR '.join(conditions)}",
        )

    def _values(self, clause: Clause) -> dict[str, str]:
        """Return the expressions that a clause assigns, by column."""
        if clause.action is MergeAction.DELETE:
            return {}
        if clause.assignments is None:
            return self._star_values()
        assigned = _assigned_values(self.target, clause.assignments)
        if clause.action is MergeAction.INSERT:
            return {column.name: "NULL" for column in self.target.columns} | assigned
        return assigned

    def _star_values(self) -> dict[str, str]:
        """Return the columns of the source with the names of the table's columns."""
        fields = T.StructType(self.source.schema.fields).fields
        try:
            return {
                column.name: f"{self.source_alias}.{quoted(column_named(fields, column.name).name)}"
                for column in self.target.columns
            }
        except InvalidError as error:
            raise InvalidError(
                "the source lacks a column for the star: list the assignments", **error.facts
            ) from error

    def _types(
        self, values: Sequence[Mapping[str, str]], joined: tuple[str | DataFrame, ...]
    ) -> dict[str, T.DataType]:
        """Return the types of the expressions; Spark analyzes the query without running it."""
        texts = list(dict.fromkeys(text for assigned in values for text in assigned.values()))
        if not texts:
            return {}
        columns = ", ".join(f"({text}) AS _{number}" for number, text in enumerate(texts))
        frame = self.target.session.query(f"{self.ctes}SELECT {columns} FROM ", *joined)
        return dict(zip(texts, (field.dataType for field in frame.schema.fields), strict=True))

    def _stored(
        self,
        column: T.StructField,
        values: Mapping[str, str],
        types: Mapping[str, T.DataType],
        old: str = "NULL",
    ) -> str:
        text = values.get(column.name)
        return old if text is None else self.target.stored(text, types[text], column)


def _assigned_values(target: TargetTable, assignments: Assignments) -> dict[str, str]:
    values = {target.column(parts).name: default_as_null(text) for parts, text in assignments}
    if len(values) < len(assignments):
        raise InvalidError("a column is assigned twice", columns=sorted(values))
    return values


def _first_applicable(clauses: Sequence[Clause], texts: Sequence[str]) -> str:
    """Return an expression for the text of the first clause whose condition is true."""
    whens = [
        f"WHEN {clause.condition or 'true'} THEN {text}"
        for clause, text in zip(clauses, texts, strict=True)
    ]
    return f"CASE {' '.join(whens)} END"


def _unchanged_or_error(text: str, old: str) -> str:
    """Return an expression that raises an error if the new value differs from the old one."""
    if text == old:
        return old
    return f"CASE WHEN ({text}) <=> {old} THEN {old} ELSE raise_error('{_KEY_CHANGES}') END"
