"""What `spark.sql` does after `install`: runs calls, and statements that Spark refuses.

`run_sql` handles procedures, CREATE TABLE, statements that change a Hudi table, and queries with
table references that Spark cannot resolve. It returns None for all other texts, which go to Spark
unchanged.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from lakewright.sql.create_table import parse_create, run_create
from lakewright.sql.merge_into import run_merge
from lakewright.sql.parser import (
    Change,
    Delete,
    DropPartitions,
    Insert,
    Merge,
    StatementTarget,
    Target,
    Truncate,
    Update,
    find_target,
    parse_change,
)
from lakewright.sql.procedures.base import parse_call
from lakewright.sql.procedures.registry import run_call
from lakewright.sql.session import Session, TargetTable, retry_on_change
from lakewright.sql.statements import run_delete, run_drop, run_insert, run_truncate, run_update
from lakewright.sql.table_names import address_of, named_path
from lakewright.sql.tokenizer import marker, statement_of, tokenize, with_named_markers
from lakewright.write.writer import Commit

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# The result columns have the names that other table formats on Spark use.
_CHANGE_COLUMNS = "num_affected_rows BIGINT"
_INSERT_COLUMNS = f"{_CHANGE_COLUMNS}, num_inserted_rows BIGINT"
_MERGE_COLUMNS = (
    f"{_CHANGE_COLUMNS}, num_updated_rows BIGINT, num_deleted_rows BIGINT, num_inserted_rows BIGINT"
)


def run_change(session: Session, text: str) -> DataFrame | None:
    """Run a statement that changes a Hudi table, and return the numbers of changed rows.

    Returns None for other statements.
    """
    text = statement_of(text)
    statement = find_target(text)
    address = address_of(session.spark, statement.target.name) if statement is not None else None
    if statement is None or address is None:
        return None
    session, statement = _with_named_markers(session, text, statement)
    parsed = parse_change(statement)
    if parsed is None:
        return None
    target, change = parsed

    def load_target() -> TargetTable:
        table = session.table(address)
        return TargetTable(session, table, table.snapshot(), _alias(target))

    return _result(session, change, _commit_change(session, load_target, change, statement.ctes))


def _with_named_markers(
    session: Session, text: str, statement: StatementTarget
) -> tuple[Session, StatementTarget]:
    """Return session and statement with named markers in place of positional ones."""
    if not isinstance(session.args, (list, tuple)) or not session.args:
        return session, statement
    named = {marker(number): value for number, value in enumerate(session.args)}
    named_statement = find_target(with_named_markers(text, tokenize(text) or ()))
    assert named_statement is not None
    return replace(session, args=named), named_statement


def _alias(target: Target) -> str:
    if target.alias is not None:
        return target.alias
    return "hudi_table" if named_path(target.name) is not None else target.name[-1]


def _commit_change(
    session: Session, load_target: Callable[[], TargetTable], change: Change, ctes: str
) -> Commit | None:
    if isinstance(change, Truncate):
        return retry_on_change(session, load_target, lambda target: run_truncate(target, change))
    if isinstance(change, DropPartitions):
        return run_drop(load_target(), change)
    return retry_on_change(session, load_target, lambda target: _write_rows(target, change, ctes))


def _write_rows(target: TargetTable, change: Insert | Update | Delete | Merge, ctes: str) -> Commit:
    if isinstance(change, Insert):
        return run_insert(target, change, ctes)
    if isinstance(change, Update):
        return run_update(target, change, ctes)
    if isinstance(change, Delete):
        return run_delete(target, change, ctes)
    return run_merge(target, change, ctes)


def _result(session: Session, change: Change, commit: Commit | None) -> DataFrame:
    if commit is None or isinstance(change, (Truncate, DropPartitions)):
        return session.spark.createDataFrame([], "")
    counts = (commit.updated, commit.deleted, commit.inserted)
    if isinstance(change, Merge):
        return session.spark.createDataFrame([(sum(counts), *counts)], _MERGE_COLUMNS)
    if isinstance(change, Insert):
        return session.spark.createDataFrame([(sum(counts), commit.inserted)], _INSERT_COLUMNS)
    return session.spark.createDataFrame([(sum(counts),)], _CHANGE_COLUMNS)


def run_sql(session: Session, text: str) -> DataFrame | None:
    """Run a statement that Lakewright handles and return its result, None for all others."""
    call = parse_call(text, session.args)
    if call is not None:
        return run_call(session.spark, call, session.open)
    create_statement = parse_create(text)
    if create_statement is not None:
        return run_create(session, create_statement)
    changed = run_change(session, text)
    return changed if changed is not None else session.read(text)
