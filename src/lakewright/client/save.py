"""`df.write.format("hudi")`: save modes and Hudi's options, as calls on a table."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import TYPE_CHECKING

from lakewright.client.write_client import WriteClient, parse_operation, spark_rows
from lakewright.errors import InvalidError, LakewrightError
from lakewright.model.file_group import PARTITION_METADATA
from lakewright.model.plans import Skip
from lakewright.model.table_config import TableConfig
from lakewright.storage.base import Storage
from lakewright.table.create import TableSpec, create_table, table_properties
from lakewright.table.locks.base import held
from lakewright.table.properties import BACKUP, PROPERTIES, table_exists
from lakewright.table.snapshot import load_snapshot
from lakewright.table.transaction import CommitValidator
from lakewright.write.options import (
    find_conflicts,
    spec_from_options,
    write_settings,
)
from lakewright.write.task import Operation
from lakewright.write.writer import Commit, RowSource, WriteRequest, check_operation

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_PARTITIONS_TO_DELETE = "hoodie.datasource.write.partitions.to.delete"
_META_FOLDER = ".hoodie"
_LOCKS = ".hoodie/.locks"


class SaveMode(Enum):
    """What becomes of a table that is there already."""

    APPEND = auto()
    OVERWRITE = auto()  # its rows are replaced, or all of it if the options describe another table
    REPLACE = auto()  # its rows are replaced
    IGNORE = auto()
    ERROR = auto()


_MODES = {
    "append": SaveMode.APPEND,
    "overwrite": SaveMode.OVERWRITE,
    "ignore": SaveMode.IGNORE,
    "error": SaveMode.ERROR,
    "errorifexists": SaveMode.ERROR,
    "default": SaveMode.ERROR,
}


def save(
    storage: Storage,
    frame: DataFrame,
    options: Mapping[str, str],
    mode: str = "error",
    partition_by: Sequence[str] = (),
) -> Commit | Skip:
    """Write a DataFrame as real Hudi's data source does it, creating the table if there is none."""
    told = {key: value for key, value in options.items() if key.lower() != "path"}
    writer = WriteClient.create(storage, told)
    return SaveOperation(writer, parse_mode(mode), tuple(partition_by)).write(spark_rows(frame))


def parse_mode(text: str | None) -> SaveMode:
    """The save mode of a name; none is the same as `error`, as on Spark."""
    mode = _MODES.get((text or "error").lower())
    if mode is None:
        raise InvalidError("no such save mode", mode=text, known=sorted(_MODES))
    return mode


@dataclass(frozen=True)
class SaveOperation:
    """A write that makes its table if need be.

    `extra` is recorded in the commit; `validator` may refuse the write, as in `WriteRequest`.
    """

    writer: WriteClient
    mode: SaveMode
    partition_by: tuple[str, ...] = ()
    extra: Mapping[str, str] = field(default_factory=dict)
    validator: CommitValidator | None = None

    def write(self, rows: RowSource) -> Commit | Skip:
        """Write rows; if that fails there is a table afterwards only if there was one before."""
        operation = parse_operation(self.writer.options)
        if not self._exists():
            self._create(operation, rows)
            with self._undone_on_failure():
                return self._run(operation, rows)
        if self.mode is SaveMode.ERROR:
            raise InvalidError(
                "there is a table already: choose the mode append, overwrite or ignore",
                path=self._storage.root,
            )
        if self.mode is SaveMode.IGNORE:
            return Skip("there is a table already")
        if self.mode is SaveMode.APPEND or operation is Operation.DELETE_PARTITION:
            return self._run(operation, rows)
        return self._replace(operation, rows)

    @property
    def _storage(self) -> Storage:
        return self.writer.storage

    def _exists(self) -> bool:
        return table_exists(self._storage)

    def _replace(self, operation: Operation, rows: RowSource) -> Commit | Skip:
        """Put rows in the place of those that are there, or another table in the table's place."""
        if operation is Operation.DELETE:
            raise InvalidError(
                "rows to delete cannot replace a table's rows: choose the mode append",
                path=self._storage.root,
            )
        if self.mode is SaveMode.OVERWRITE and not operation.replaces and self._is_another_table():
            spec = self._checked_spec(operation, rows)
            if self._make_anew(spec):
                with self._undone_on_failure():
                    return self._run(operation, rows)
        if operation.replaces and self.mode is SaveMode.OVERWRITE:
            return self._run(operation, rows)
        # Of an upsert people expect that it leaves one row of each key.
        combine = operation is Operation.UPSERT
        return self._run(Operation.INSERT_OVERWRITE_TABLE, rows, combine=combine)

    def _run(
        self, operation: Operation, rows: RowSource, *, combine: bool = False
    ) -> Commit | Skip:
        request = WriteRequest(
            operation,
            extra=self.extra,
            combine=combine,
            partition_by=self.partition_by,
            validator=self.validator,
        )
        if operation is Operation.DELETE_PARTITION:
            named = self.writer.options.get(_PARTITIONS_TO_DELETE, "").split(",")
            patterns = tuple(part.strip() for part in named if part.strip())
            return self.writer.run_deletion(replace(request, patterns=patterns))
        if not rows.schema.names:
            return self.writer.store_settings(self.partition_by)
        return self.writer.run(request, rows)

    def _is_another_table(self) -> bool:
        config = load_snapshot(self._storage).config
        return bool(find_conflicts(config, self.writer.options, partition_by=self.partition_by))

    def _checked_spec(self, operation: Operation, rows: RowSource) -> TableSpec:
        """The table to make, after everything was checked that can be without reading rows."""
        options = self.writer.options
        spec = spec_from_options(options, partition_by=self.partition_by)
        config = TableConfig.from_properties(table_properties(spec))
        settings = write_settings(config, options)
        # With the rows' schema all columns that the table counts on are looked for.
        table_properties(replace(spec, schema=rows.schema, event_time=settings.event_time))
        writer = self.writer.writer()
        writer.new_lock()
        check_operation(config, writer, operation, settings)
        return spec

    def _create(self, operation: Operation, rows: RowSource) -> None:
        if operation in (Operation.DELETE, Operation.DELETE_PARTITION):
            raise InvalidError(
                "there is no table to delete from: check the path", path=self._storage.root
            )
        create_table(self._storage, self.writer.clock, self._checked_spec(operation, rows))

    def _make_anew(self, spec: TableSpec) -> bool:
        """Put an empty table in the place of another; not if somebody else has just done so."""
        lock = self.writer.writer().new_lock()
        with held(lock):
            if not self._is_another_table():
                return False
            lock.verify()
            _remove(self._storage)
            lock.verify()
            create_table(self._storage, self.writer.clock, spec)
        return True

    @contextmanager
    def _undone_on_failure(self) -> Iterator[None]:
        """Take back a table that was made for a write which then fails."""
        done = False
        try:
            yield
            done = True
        finally:
            if not done:
                self._undo_create()

    def _undo_create(self) -> None:
        lock = self.writer.writer().new_lock()
        try:
            with held(lock):
                # Somebody else may have found it and begun to write.
                if not load_snapshot(self._storage).timeline.instants:
                    lock.verify()
                    _remove_empty(self._storage)
        except LakewrightError as error:
            warnings.warn(
                f"a table without rows was left behind: {error}", RuntimeWarning, stacklevel=5
            )


def _remove(storage: Storage) -> None:
    """Remove a table under its lock: its properties last, so that who dies can do it again.

    Data goes before the timeline, since files without timeline would belong to the next table.
    """
    for folder in storage.list_folders(""):
        if folder != _META_FOLDER:
            storage.delete_folder(folder)
    storage.delete_many(file.path for file in storage.list_files(""))
    _remove_metadata(storage)
    for path in (BACKUP, PROPERTIES):
        storage.delete(path)


def _remove_empty(storage: Storage) -> None:
    """Remove a table that nothing was written to: other files in its place are not its own."""
    storage.delete(PROPERTIES)
    files = [
        file.path for file in storage.list_tree("") if file.name.startswith(PARTITION_METADATA)
    ]
    storage.delete_many(files)
    _remove_metadata(storage)


def _remove_metadata(storage: Storage) -> None:
    """Remove everything that belongs to a table's timeline, but not the lock that is held."""
    for folder in storage.list_folders(_META_FOLDER):
        if folder != _LOCKS:
            storage.delete_folder(folder)
