"""A statement on a session: carried out here if it is about a table of ours."""

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

_AFFECTED = "num_affected_rows BIGINT"
_INSERTED = f"{_AFFECTED}, num_inserted_rows BIGINT"
_MERGED = f"{_AFFECTED}, num_updated_rows BIGINT, num_deleted_rows BIGINT, num_inserted_rows BIGINT"


def run_change(session: Session, text: str) -> DataFrame | None:
    """Carry out a statement that changes a table of ours; None for all others.

    Gives how many rows were changed, in columns as other table formats on Spark name them.
    """
    text = statement_of(text)
    found = find_target(text)
    address = address_of(session.spark, found.target.name) if found is not None else None
    if found is None or address is None:
        return None
    session, found = _with_named_markers(session, text, found)
    parsed = parse_change(found)
    if parsed is None:
        return None
    target, change = parsed

    def look() -> TargetTable:
        table = session.table(address)
        return TargetTable(session, table, table.snapshot(), _alias(target))

    return _answer(session, change, _done(session, look, change, found.ctes))


def _with_named_markers(
    session: Session, text: str, found: StatementTarget
) -> tuple[Session, StatementTarget]:
    """The same with names for parameters that have only a place."""
    if not isinstance(session.args, (list, tuple)) or not session.args:
        return session, found
    named = {marker(number): value for number, value in enumerate(session.args)}
    again = find_target(with_named_markers(text, tokenize(text) or ()))
    assert again is not None
    return replace(session, args=named), again


def _alias(target: Target) -> str:
    if target.alias is not None:
        return target.alias
    return "hudi_table" if named_path(target.name) is not None else target.name[-1]


def _done(
    session: Session, look: Callable[[], TargetTable], change: Change, ctes: str
) -> Commit | None:
    if isinstance(change, Truncate):
        return run_truncate(look(), change)
    if isinstance(change, DropPartitions):
        return run_drop(look(), change)
    return retry_on_change(session, look, lambda goal: _written(goal, change, ctes))


def _written(goal: TargetTable, change: Insert | Update | Delete | Merge, ctes: str) -> Commit:
    if isinstance(change, Insert):
        return run_insert(goal, change, ctes)
    if isinstance(change, Update):
        return run_update(goal, change, ctes)
    if isinstance(change, Delete):
        return run_delete(goal, change, ctes)
    return run_merge(goal, change, ctes)


def _answer(session: Session, change: Change, commit: Commit | None) -> DataFrame:
    if commit is None or isinstance(change, (Truncate, DropPartitions)):
        return session.spark.createDataFrame([], "")
    counts = (commit.updated, commit.deleted, commit.inserted)
    if isinstance(change, Merge):
        return session.spark.createDataFrame([(sum(counts), *counts)], _MERGED)
    if isinstance(change, Insert):
        return session.spark.createDataFrame([(sum(counts), commit.inserted)], _INSERTED)
    return session.spark.createDataFrame([(sum(counts),)], _AFFECTED)


# ------------------------------------------------------------------------------------------------
# What `spark.sql` does after `install`: calls, and statements that Spark refuses for our tables.
#
# Everything else is None: the text goes to Spark as it is.


def run_sql(session: Session, text: str) -> DataFrame | None:
    """Carry a text out if it is for us, else None."""
    call = parse_call(text, session.args)
    if call is not None:
        return run_call(session.spark, call, session.open)
    created = parse_create(text)
    if created is not None:
        return run_create(session, created)
    done = run_change(session, text)
    return done if done is not None else session.read(text)
