"""Queries on a session, with DataFrames in the places of tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

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
    """A session with its own `sql`, and what a statement was given besides its text.

    `args` are the values of parameter markers, `told` what stands for names in braces.
    """

    spark: SparkSession
    original: Callable[..., DataFrame]
    open: Callable[..., Table]
    args: Any = None
    told: Mapping[str, Any] = field(default_factory=dict)

    def table(self, address: Address) -> Table:
        """The table at an address."""
        return self.open(address.path, options=address.options)

    def query(self, *parts: str | DataFrame) -> DataFrame:
        """The result of a query whose text has DataFrames in some places.

        Spark's own way to name DataFrames in a text serves: it works on Spark Connect, too, where
        a query is looked at again when its rows are asked for.
        """
        pieces: list[str | DataFrame] = []
        for part in parts:
            pieces += self._pieces(part) if isinstance(part, str) else [part]
        return self._asked(pieces)

    def read(self, text: str) -> DataFrame | None:
        """The result of a query that reads a table of ours in a way that Spark does not know.

        None if it does not.
        """
        pieces = self._pieces(text)
        return self._asked(pieces) if len(pieces) > 1 else None

    def _asked(self, pieces: Sequence[str | DataFrame]) -> DataFrame:
        frames: dict[str, Any] = {}
        text = ""
        for piece in pieces:
            if isinstance(piece, str):
                text += piece if self.told else piece.replace("{", "{{").replace("}", "}}")
            else:
                name = f"_lakewright_{len(frames)}"
                frames[name] = piece
                text += f"{{{name}}}"
        if not frames and not self.told:
            text = "".join(str(piece) for piece in pieces)
        return self.original(text, self.args, **{**self.told, **frames})

    def _pieces(self, text: str) -> list[str | DataFrame]:
        """A text with the tables in it that we read."""
        pieces: list[str | DataFrame] = []
        at = 0
        for reading in table_references(text):
            frame = self._frame(reading)
            if frame is None:
                continue
            name = "" if reading.aliased else f" AS {quoted(_short(reading))}"
            pieces += [text[at : reading.start], frame, name]
            at = reading.end
        return [*pieces, text[at:]]

    def _frame(self, reading: TableReference) -> DataFrame | None:
        if reading.changes is not None:
            return self._changes(reading.name[0] if reading.name else "", reading.changes)
        address = address_of(self.spark, reading.name)
        if address is None:
            return None
        if reading.as_of == "":
            raise UnsupportedError(
                "the point in time must be a text or a number, such as '2026-01-31 12:00:00'",
                table=".".join(reading.name),
            )
        return self.table(address).read(as_of=reading.as_of)

    def _changes(self, name: str, arguments: tuple[str, ...]) -> DataFrame:
        if not 2 <= len(arguments) <= 3:
            raise InvalidError(
                "hudi_table_changes('table', 'latest_state' or 'cdc', 'begin' [, 'end']) expected",
                given=len(arguments) + 1,
            )
        kind, begin, *end = arguments
        by_path = "/" in name
        address = Address(name) if by_path else address_of(self.spark, name.split("."))
        if address is None:
            raise InvalidError("this is no table of the hudi format", table=name)
        until = end[0] if end else None
        changes = self.table(address).changes(since=begin, until=until, format=kind.lower())
        return changes.dataframe


def _short(reading: TableReference) -> str:
    """By which name the rest of a query can speak of a table."""
    if reading.changes is not None:
        return "hudi_table_changes"
    return "hudi_table" if named_path(reading.name) is not None else reading.name[-1]


# ------------------------------------------------------------------------------------------------
# The table that a statement changes, as it was seen when its rows were computed.


RETRIES = "hoodie.write.num.retries.on.conflict.failures"
INSERT_OPERATION = "hoodie.spark.sql.insert.into.operation"
# Settings of a session for its queries, not for what it writes.
_NOT_FOR_WRITES = ("hoodie.datasource.read.", "hoodie.datasource.query.", "hoodie.spark.sql.")
# How often a statement looks again because somebody was quicker: nothing is lost but a look.
_LOOKS = 10


class ChangedError(ConflictError):
    """The table was written to since its rows were read for a statement."""


@dataclass(frozen=True)
class TargetTable:
    """The table of a statement at one look, and by which name the statement speaks of it."""

    session: Session
    table: Table
    snapshot: Snapshot
    alias: str

    @cached_property
    def rows(self) -> DataFrame:
        """All its rows."""
        plan = plan_snapshot(self.snapshot, as_of=None, columns=None)
        return scan(self.session.spark, self.table.storage, plan)

    @property
    def config(self) -> TableConfig:
        """The table's properties."""
        return self.snapshot.config

    @cached_property
    def columns(self) -> list[T.StructField]:
        """Its columns, without Hudi's own."""
        hidden = {*META_COLUMNS, OPERATION}
        return [field for field in self.rows.schema.fields if field.name not in hidden]

    @cached_property
    def fixed(self) -> tuple[str, ...]:
        """The columns that tell which row is which: an update leaves them as they are."""
        config = self.config
        names = (*config.record_key_fields, *config.partition_fields)
        return tuple(dict.fromkeys(name.split(".")[0] for name in names))

    @cached_property
    def is_ansi(self) -> bool:
        """Whether casts of the session fail where a value does not fit."""
        return str(self.session.spark.conf.get("spark.sql.ansi.enabled", "true")) == "true"

    @cached_property
    def options(self) -> dict[str, str]:
        """The options for writes that the session was given by SET."""
        known: Mapping[str, str] = self.session.spark.conf.getAll
        plain = {key.removeprefix("spark."): value for key, value in known.items()}
        return {
            key: value
            for key, value in plain.items()
            if key.startswith("hoodie.")
            and not key.startswith(_NOT_FOR_WRITES)
            and key != WRITE_OPERATION
        }

    def require_keys(self) -> None:
        """InvalidError if single rows of the table cannot be told from others."""
        if not self.config.record_key_fields:
            raise InvalidError(
                "rows of a table without key fields can be inserted, not updated or deleted",
                table=self.config.name,
            )

    def cast(self, frame: DataFrame, source: Mapping[str, str]) -> DataFrame:
        """All columns of the table, of columns of a frame that were computed for them."""
        given = {field.name: field.dataType for field in frame.schema.fields}
        return frame.selectExpr(
            *(
                f"{self.stored(quoted(source[c.name]), given[source[c.name]], c)} "
                f"AS {quoted(c.name)}"
                if c.name in source
                else f"CAST(NULL AS {type_sql(c.dataType)}) AS {quoted(c.name)}"
                for c in self.columns
            )
        )

    def stored(self, text: str, given: T.DataType, column: T.StructField) -> str:
        """An expression as it is stored in a column."""
        return stored(text, given, column, ansi=self.is_ansi)

    def column(self, parts: tuple[str, ...]) -> T.StructField:
        """The column that an assignment names."""
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
        more: Mapping[str, str] | None = None,
        *,
        marked: bool = False,
    ) -> Commit:
        """Write rows that were computed from this look; ChangedError if it is out of date."""
        options = {**self.options, **(more or {}), RETRIES: "0"}
        writer = WriteClient.create(self.table.storage, options, spark=self.session.spark)
        request = WriteRequest(operation, validator=_UnchangedSince(self.snapshot), marked=marked)
        return writer.run(request, spark_rows(frame))

    def delete_partitions(self, patterns: tuple[str, ...], exact: bool) -> Commit | Skip:
        """Take partitions out of the table; `exact` ones are paths, whatever is in them."""
        writer = WriteClient.create(self.table.storage, self.options, spark=self.session.spark)
        request = WriteRequest(Operation.DELETE_PARTITION, patterns=patterns, exact=exact)
        return writer.run_deletion(request)


@dataclass
class _UnchangedSince:
    """Refuses to begin a write on another snapshot than its rows were computed from.

    The conflict check of the commit finds what completes after the write has begun.
    """

    snapshot: Snapshot
    _has_begun: bool = False

    def validate(self, current: Snapshot) -> None:
        """Raise ChangedError if a write has completed since the snapshot."""
        before, now = self.snapshot.timeline, current.timeline
        if not self._has_begun and now.completed_writes != before.completed_writes:
            raise ChangedError("the table was written to meanwhile: run the statement again")
        self._has_begun = True


def retry_on_change(
    session: Session, look: Callable[[], TargetTable], do: Callable[[TargetTable], Commit]
) -> Commit:
    """Do something with the table as it is; again if somebody else was quicker.

    Who loses to another writer later is done again as often as the session's options allow.
    """
    retries = int(session_setting(session, RETRIES) or 0)
    looks = _LOOKS
    while True:
        try:
            return do(look())
        except ChangedError:
            looks -= 1
            if not looks:
                raise
        except ConflictError:
            retries -= 1
            if retries < 0:
                raise


def session_setting(session: Session, key: str) -> str:
    """A setting of the session; it may have the prefix of Spark's own."""
    conf = session.spark.conf
    return str(conf.get(key, "") or conf.get(f"spark.{key}", "") or "")
