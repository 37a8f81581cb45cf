"""The Spark session of a statement, and the table that the statement changes.

`Session` runs queries whose texts refer to Hudi tables in ways that Spark cannot resolve: it puts
DataFrames in their place. `TargetTable` is a snapshot of the table that a statement changes; it
computes the rows to write from that snapshot, and `retry_on_change` repeats a statement if
another writer has committed in between.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from pyspark.sql import types as T

from lakewright.client.write_client import OPERATION as WRITE_OPERATION
from lakewright.client.write_client import WriteClient, spark_rows
from lakewright.errors import ConflictError, InvalidError, UnsupportedError
from lakewright.model.plans import Skip
from lakewright.model.schema import META_COLUMNS, OPERATION
from lakewright.model.table_config import TableConfig
from lakewright.scan.planner import plan_snapshot
from lakewright.spark.reader import scan
from lakewright.sql.parser import TableReference, table_references
from lakewright.sql.store_assignment import column_named, quoted, stored, type_sql
from lakewright.sql.table_names import Address, address_of, named_path
from lakewright.table.snapshot import Snapshot
from lakewright.write.task import Operation
from lakewright.write.writer import Commit, WriteRequest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from lakewright.api.table import Table


@dataclass(frozen=True)
class Session:
    """A Spark session, and the arguments that a statement was called with besides its text.

    `original` is Spark's own `sql`, `open` opens a table by path. `args` are the values of
    parameter markers, `kwargs` the keyword arguments for names in braces.
    """

    spark: SparkSession
    original: Callable[..., DataFrame]
    open: Callable[..., Table]
    args: Any = None
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    def table(self, address: Address) -> Table:
        """Open the table at an address."""
        return self.open(address.path, options=address.options)

    def query(self, *parts: str | DataFrame) -> DataFrame:
        """Return the result of a query that consists of texts and DataFrames.

        It passes the DataFrames as keyword arguments of `spark.sql` instead of as temporary views:
        Spark Connect resolves a query again when its rows are collected.
        """
        pieces: list[str | DataFrame] = []
        for part in parts:
            pieces += self._resolve(part) if isinstance(part, str) else [part]
        return self._run(pieces)

    def read(self, text: str) -> DataFrame | None:
        """Return the result of a query with Hudi tables that Spark cannot resolve, else None."""
        pieces = self._resolve(text)
        return self._run(pieces) if len(pieces) > 1 else None

    def _run(self, pieces: Sequence[str | DataFrame]) -> DataFrame:
        frames: dict[str, Any] = {}
        text = ""
        for piece in pieces:
            if isinstance(piece, str):
                text += piece if self.kwargs else piece.replace("{", "{{").replace("}", "}}")
            else:
                name = f"_lakewright_{len(frames)}"
                frames[name] = piece
                text += f"{{{name}}}"
        if not frames and not self.kwargs:
            text = "".join(str(piece) for piece in pieces)
        return self.original(text, self.args, **{**self.kwargs, **frames})

    def _resolve(self, text: str) -> list[str | DataFrame]:
        """Split a text at the table references that Spark cannot resolve, with their rows."""
        pieces: list[str | DataFrame] = []
        copied_until = 0
        for reference in table_references(text):
            frame = self._frame(reference)
            if frame is None:
                continue
            alias = "" if reference.aliased else f" AS {quoted(_implicit_alias(reference))}"
            pieces += [text[copied_until : reference.start], frame, alias]
            copied_until = reference.end
        return [*pieces, text[copied_until:]]

    def _frame(self, reference: TableReference) -> DataFrame | None:
        if reference.changes is not None:
            return self._changes(reference.name[0] if reference.name else "", reference.changes)
        address = address_of(self.spark, reference.name)
        if address is None:
            return None
        if reference.as_of == "":
            raise UnsupportedError(
                "the point in time must be a text or a number, such as '2026-01-31 12:00:00'",
                table=".".join(reference.name),
            )
        return self.table(address).read(as_of=reference.as_of)

    def _changes(self, name: str, arguments: tuple[str, ...]) -> DataFrame:
        if not 2 <= len(arguments) <= 3:
            raise InvalidError(
                "hudi_table_changes('table', 'latest_state' or 'cdc', 'begin' [, 'end']) expected",
                given=len(arguments) + 1,
            )
        change_format, begin, *end = arguments
        by_path = "/" in name
        address = Address(name) if by_path else address_of(self.spark, name.split("."))
        if address is None:
            raise InvalidError("this is no table of the hudi format", table=name)
        until = end[0] if end else None
        changes = self.table(address).changes(
            since=begin, until=until, format=change_format.lower()
        )
        return changes.dataframe


def _implicit_alias(reference: TableReference) -> str:
    """Return the name by which the rest of the query refers to a table without an alias."""
    if reference.changes is not None:
        return "hudi_table_changes"
    return "hudi_table" if named_path(reference.name) is not None else reference.name[-1]


# The table that a statement changes.

Result = TypeVar("Result")
RETRIES = "hoodie.write.num.retries.on.conflict.failures"
INSERT_OPERATION = "hoodie.spark.sql.insert.into.operation"
# Session settings for queries, which are not write options.
_READ_PREFIXES = ("hoodie.datasource.read.", "hoodie.datasource.query.", "hoodie.spark.sql.")
# How often a statement starts on a new snapshot because another writer committed before it began.
# Such an attempt has written nothing yet, so that this does not count as a retry of the session.
_MAX_SNAPSHOTS = 10


class ChangedError(ConflictError):
    """Another writer has committed to the table since a statement loaded its snapshot."""


@dataclass(frozen=True)
class TargetTable:
    """A snapshot of the table that a statement changes, and its alias in the statement."""

    session: Session
    table: Table
    snapshot: Snapshot
    alias: str

    @cached_property
    def rows(self) -> DataFrame:
        """All rows of the snapshot."""
        plan = plan_snapshot(self.snapshot, as_of=None, columns=None)
        return scan(self.session.spark, self.table.storage, plan)

    @property
    def config(self) -> TableConfig:
        """The table's properties."""
        return self.snapshot.config

    @cached_property
    def columns(self) -> list[T.StructField]:
        """The columns of the table, without Hudi's meta columns."""
        hidden = {*META_COLUMNS, OPERATION}
        return [field for field in self.rows.schema.fields if field.name not in hidden]

    @cached_property
    def fixed(self) -> tuple[str, ...]:
        """The columns of the record key and the partition path, which an update cannot change."""
        config = self.config
        names = (*config.record_key_fields, *config.partition_fields)
        return tuple(dict.fromkeys(name.split(".")[0] for name in names))

    @cached_property
    def is_ansi(self) -> bool:
        """Whether casts in the session fail on overflow."""
        return str(self.session.spark.conf.get("spark.sql.ansi.enabled", "true")) == "true"

    @cached_property
    def options(self) -> dict[str, str]:
        """The write options among the settings of the session."""
        settings: Mapping[str, str] = self.session.spark.conf.getAll
        plain = {key.removeprefix("spark."): value for key, value in settings.items()}
        return {
            key: value
            for key, value in plain.items()
            if key.startswith("hoodie.")
            and not key.startswith(_READ_PREFIXES)
            and key != WRITE_OPERATION
        }

    def require_keys(self) -> None:
        """Raise InvalidError if the table has no record key, which identifies single rows."""
        if not self.config.record_key_fields:
            raise InvalidError(
                "rows of a table without key fields can be inserted, not updated or deleted",
                table=self.config.name,
            )

    def cast(self, frame: DataFrame, source: Mapping[str, str]) -> DataFrame:
        """Select and cast the columns of the table from the columns of a frame.

        `source` maps columns of the table to columns of the frame; the others are null.
        """
        types = {field.name: field.dataType for field in frame.schema.fields}
        return frame.selectExpr(
            *(
                f"{self.stored(quoted(source[c.name]), types[source[c.name]], c)} "
                f"AS {quoted(c.name)}"
                if c.name in source
                else f"CAST(NULL AS {type_sql(c.dataType)}) AS {quoted(c.name)}"
                for c in self.columns
            )
        )

    def stored(self, text: str, source_type: T.DataType, column: T.StructField) -> str:
        """Return an expression cast to the type of a column."""
        return stored(text, source_type, column, ansi=self.is_ansi)

    def column(self, parts: tuple[str, ...]) -> T.StructField:
        """Return the column that the left side of an assignment names."""
        if len(parts) > 1 and parts[-2].lower() == self.alias.lower():
            parts = parts[-1:]
        column = column_named(self.columns, parts[0])
        if len(parts) > 1:
            raise InvalidError(
                "a field in a column cannot be assigned alone: assign the column",
                column=column.name,
                field=".".join(parts[1:]),
            )
        return column

    def write(
        self,
        operation: Operation,
        frame: DataFrame,
        extra_options: Mapping[str, str] | None = None,
        *,
        marked: bool = False,
        partitions: frozenset[str] | None = None,
    ) -> Commit:
        """Write rows computed from this snapshot; ChangedError if it is no longer the latest.

        `marked` rows have a column that says which of them to delete. `partitions` are those of the
        rows, if the statement names them.
        """
        options = {**self.options, **(extra_options or {}), RETRIES: "0"}
        writer = WriteClient.create(self.table.storage, options, spark=self.session.spark)
        request = WriteRequest(
            operation,
            validator=_UnchangedSince(self.snapshot),
            marked=marked,
            partitions=partitions,
        )
        return writer.run(request, spark_rows(frame))

    def delete_partitions(self, patterns: tuple[str, ...], exact: bool) -> Commit | Skip:
        """Delete the partitions that match patterns, or with `exact` those with these paths."""
        writer = WriteClient.create(self.table.storage, self.options, spark=self.session.spark)
        request = WriteRequest(Operation.DELETE_PARTITION, patterns=patterns, exact=exact)
        return writer.run_deletion(request)


@dataclass
class _UnchangedSince:
    """Validator that lets a write begin only on the snapshot that its rows were computed from.

    It checks once, at the beginning: the conflict check of the commit detects writes that complete
    after that.
    """

    snapshot: Snapshot
    _has_started: bool = False

    def validate(self, current: Snapshot) -> None:
        """Raise ChangedError if a write has completed since the snapshot."""
        base_timeline, timeline = self.snapshot.timeline, current.timeline
        if not self._has_started and timeline.completed_writes != base_timeline.completed_writes:
            raise ChangedError("another writer changed the table: run the statement again")
        self._has_started = True


def retry_on_change(
    session: Session, load_target: Callable[[], TargetTable], run: Callable[[TargetTable], Result]
) -> Result:
    """Run a statement on the latest snapshot, and again if another writer has committed first.

    A conflict that is detected after the write has begun is retried as often as the session's
    options say.
    """
    retries = int(session_setting(session, RETRIES) or 0)
    remaining_snapshots = _MAX_SNAPSHOTS
    while True:
        try:
            return run(load_target())
        except ChangedError:
            remaining_snapshots -= 1
            if not remaining_snapshots:
                raise
        except ConflictError as error:
            retries -= 1
            if retries < 0 or error.committed is not None:
                raise


def session_setting(session: Session, key: str) -> str:
    """Return a setting of the session, with or without the prefix `spark.`."""
    conf = session.spark.conf
    return str(conf.get(key, "") or conf.get(f"spark.{key}", "") or "")
