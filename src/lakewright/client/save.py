"""`df.write.format("hudi")`: save modes and Hudi's write options."""

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
from lakewright.model.table_config import META_FOLDER, TableConfig
from lakewright.storage.base import Storage
from lakewright.table.commit_request import CommitValidator
from lakewright.table.create import TableSpec, create_table, table_properties
from lakewright.table.locks.base import acquired
from lakewright.table.properties import BACKUP, PROPERTIES, table_exists
from lakewright.table.snapshot import data_folders, load_snapshot
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
_LOCKS = f"{META_FOLDER}/.locks"


class SaveMode(Enum):
    """What a save does if the table exists."""

    APPEND = auto()
    OVERWRITE = auto()  # replace its rows, or the table if the options describe another table
    REPLACE = auto()  # replace its rows
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
    """Write a DataFrame as Hudi's data source does, and create the table if it does not exist."""
    write_options = {key: value for key, value in options.items() if key.lower() != "path"}
    writer = WriteClient.create(storage, write_options)
    return SaveOperation(writer, parse_mode(mode), tuple(partition_by)).write(spark_rows(frame))


def parse_mode(text: str | None) -> SaveMode:
    """Return the save mode of a name; no name means `error`, as in Spark."""
    mode = _MODES.get((text or "error").lower())
    if mode is None:
        raise InvalidError("no such save mode", mode=text, known=sorted(_MODES))
    return mode


@dataclass(frozen=True)
class SaveOperation:
    """A write that creates its table if it does not exist.

    `extra` is recorded in the commit; `validator` may reject the write, as in `WriteRequest`.
    """

    writer: WriteClient
    mode: SaveMode
    partition_by: tuple[str, ...] = ()
    extra: Mapping[str, str] = field(default_factory=dict)
    validator: CommitValidator | None = None

    def write(self, rows: RowSource) -> Commit | Skip:
        """Write rows; if the write fails, a table that was created for it is removed again."""
        operation = parse_operation(self.writer.options)
        if not self._exists():
            self._create(operation, rows)
            with self._undo_create_on_failure():
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
        """Replace the rows of the table, or the whole table if the options describe another one."""
        if operation is Operation.DELETE:
            raise InvalidError(
                "rows to delete cannot replace a table's rows: choose the mode append",
                path=self._storage.root,
            )
        if self.mode is SaveMode.OVERWRITE and not operation.replaces and self._is_another_table():
            spec = self._checked_spec(operation, rows)
            if self._recreate(spec):
                with self._undo_create_on_failure():
                    return self._run(operation, rows)
        if operation.replaces and self.mode is SaveMode.OVERWRITE:
            return self._run(operation, rows)
        # An upsert must leave one row of each key.
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
            raw_patterns = self.writer.options.get(_PARTITIONS_TO_DELETE, "").split(",")
            patterns = tuple(pattern.strip() for pattern in raw_patterns if pattern.strip())
            return self.writer.run_deletion(replace(request, patterns=patterns))
        if not rows.schema.names:
            return self.writer.store_settings(self.partition_by)
        return self.writer.run(request, rows)

    def _is_another_table(self) -> bool:
        config = load_snapshot(self._storage).config
        return bool(find_conflicts(config, self.writer.options, partition_by=self.partition_by))

    def _checked_spec(self, operation: Operation, rows: RowSource) -> TableSpec:
        """Return the spec of the table to create, after all checks that need no rows."""
        options = self.writer.options
        spec = spec_from_options(options, partition_by=self.partition_by)
        config = TableConfig.from_properties(table_properties(spec))
        settings = write_settings(config, options)
        # With the schema of the rows, this checks that all columns the table needs exist.
        table_properties(replace(spec, schema=rows.schema, event_time=settings.event_time))
        manager = self.writer.writer()
        manager.new_lock()
        check_operation(config, manager, operation, settings)
        return spec

    def _create(self, operation: Operation, rows: RowSource) -> None:
        if operation in (Operation.DELETE, Operation.DELETE_PARTITION):
            raise InvalidError(
                "there is no table to delete from: check the path", path=self._storage.root
            )
        create_table(self._storage, self.writer.clock, self._checked_spec(operation, rows))

    def _recreate(self, spec: TableSpec) -> bool:
        """Replace another table by an empty one; False if a concurrent process has just done so."""
        lock = self.writer.writer().new_lock()
        with acquired(lock):
            if not self._is_another_table():
                return False
            lock.verify()
            _remove(self._storage)
            lock.verify()
            create_table(self._storage, self.writer.clock, spec)
        return True

    @contextmanager
    def _undo_create_on_failure(self) -> Iterator[None]:
        """Remove a table that was created for a write if the write fails."""
        succeeded = False
        try:
            yield
            succeeded = True
        finally:
            if not succeeded:
                self._undo_create()

    def _undo_create(self) -> None:
        lock = self.writer.writer().new_lock()
        try:
            with acquired(lock):
                # Another process may have started to write to the table.
                if not load_snapshot(self._storage).timeline.instants:
                    lock.verify()
                    _remove_empty(self._storage)
        except LakewrightError as error:
            warnings.warn(
                f"a table without rows was left behind: {error}", RuntimeWarning, stacklevel=5
            )


def _remove(storage: Storage) -> None:
    """Delete a table under its lock; the properties last, so that a crashed delete can be repeated.

    Data files are deleted before the timeline: without a timeline they would become part of the
    next table at this location.
    """
    for folder in data_folders(storage):
        storage.delete_folder(folder)
    storage.delete_many(file.path for file in storage.list_files(""))
    _remove_metadata(storage)
    for path in (BACKUP, PROPERTIES):
        storage.delete(path)


def _remove_empty(storage: Storage) -> None:
    """Delete a table without commits; other files at its location do not belong to it."""
    storage.delete(PROPERTIES)
    metadata_files = [
        file.path for file in storage.list_tree("") if file.name.startswith(PARTITION_METADATA)
    ]
    storage.delete_many(metadata_files)
    _remove_metadata(storage)


def _remove_metadata(storage: Storage) -> None:
    """Delete the metadata folders of a table, except for the lock, which is held."""
    for folder in storage.list_folders(META_FOLDER):
        if folder != _LOCKS:
            storage.delete_folder(folder)
