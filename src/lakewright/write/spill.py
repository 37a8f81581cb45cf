"""Rows of a worker that do not stay in memory, and work that a task defers.

`SpillBuffer` collects the rows of one partition, on local disk if they are many.

A task defers work whose rows are few but whose files are large. Rows are distributed to tasks by
partition and by their number. Where few rows change much data, neither predicts how long a task
takes: the size of the files to read does. So the task spills such rows to the table's storage, and
the driver distributes the deferred work to new tasks by size.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from typing import IO

import numpy as np
import pyarrow as pa

from lakewright.errors import ConflictError, CorruptError, UnavailableError
from lakewright.model.merge import Flags, MergedLogRecords
from lakewright.storage.base import MissingFileError
from lakewright.table.markers import spill_folder
from lakewright.utils.arrow_rows import as_array, take_rows
from lakewright.write.task import DeferredWork, WriteStatus, WriteTask, WriteToken

# A worker shares its machine with others, and merging needs the same memory again.
MAX_BUFFERED_BYTES = 256 << 20
# A piece of a spilled file that is in memory while it is read.
_BATCH_ROWS = 16 * 1024


class SpillFile:
    """A local file of rows, compressed. It has no name: a killed process leaves no file."""

    def __init__(self, folder: str | None) -> None:
        self._folder = folder
        self._writer: pa.RecordBatchStreamWriter | None = None
        try:
            self._file: IO[bytes] = tempfile.TemporaryFile(prefix="lakewright-", dir=folder)  # noqa: SIM115
        except OSError as error:
            raise self._no_room(error) from error

    def write(self, tables: Sequence[pa.Table]) -> None:
        """Add rows of the same schema as all previous ones."""
        rows = pa.concat_tables(tables).unify_dictionaries()
        try:
            if self._writer is None:
                sink = pa.PythonFile(self._file, mode="w")
                options = pa.ipc.IpcWriteOptions(compression="lz4")
                self._writer = pa.ipc.new_stream(sink, rows.schema, options=options)
            self._writer.write_table(rows, _BATCH_ROWS)
        except OSError as error:
            raise self._no_room(error) from error

    def tables(self) -> Iterator[pa.Table]:
        """Return all rows, in pieces; call it once, after the last `write`."""
        assert self._writer is not None
        try:
            self._writer.close()
            self._file.flush()
        except OSError as error:
            raise self._no_room(error) from error
        self._file.seek(0)
        for batch in pa.ipc.open_stream(pa.PythonFile(self._file, mode="r")):
            yield pa.Table.from_batches([batch])

    def close(self) -> None:
        """Delete the file."""
        self._file.close()

    def _no_room(self, error: OSError) -> UnavailableError:
        return UnavailableError(
            "the rows of a task cannot be stored in a local file: make room, or name another "
            "folder by Spark's option spark.local.dir",
            folder=self._folder or tempfile.gettempdir(),
            cause=str(error),
        )


@dataclass
class SpillBuffer:
    """Collects tables; above a limit it writes them to a file in a local folder."""

    max_bytes: int = MAX_BUFFERED_BYTES
    folder: str | None = None
    _buffered: list[pa.Table] = field(default_factory=list)
    _bytes: int = 0
    _file: SpillFile | None = None

    def add(self, rows: pa.Table) -> None:
        """Add rows of the same schema as all previous ones."""
        self._buffered.append(rows)
        self._bytes += rows.nbytes
        if self._bytes >= self.max_bytes:
            if self._file is None:
                self._file = SpillFile(self.folder)
            self._file.write(self._buffered)
            self._buffered, self._bytes = [], 0

    def table(self) -> pa.Table:
        """Return all rows in memory; call it once, after the last `add`."""
        stored = [] if self._file is None else self._file.tables()
        return pa.concat_tables([*stored, *self._buffered])

    def close(self) -> None:
        """Delete the file, and free the memory of the rows."""
        self._buffered = []
        if self._file is not None:
            self._file.close()


# Deferred work.


# Below this ratio of file bytes to row bytes, the rows measure the work as well as the files do.
_FILE_BOUND_RATIO = 8
_KEY, _DELETED, _BEATS_ANY_BASE, _HAS_ROW = "key", "deleted", "beats_any_base", "row"


def is_file_bound(file_bytes: int, row_bytes: int) -> bool:
    """Whether the files to read, not the rows, determine the work."""
    return file_bytes > _FILE_BOUND_RATIO * row_bytes


def run_until_done(
    first: Sequence[WriteStatus], run: Callable[[Sequence[DeferredWork]], Sequence[WriteStatus]]
) -> list[WriteStatus]:
    """Run deferred work until no task defers any; return the statuses of all tasks."""
    statuses, round_statuses = list(first), first
    while not any(status.error for status in round_statuses):
        works = [work for status in round_statuses for work in status.deferred]
        if not works:
            break
        round_statuses = run(works)
        statuses += round_statuses
    return statuses


def delete_spill(task: WriteTask, outcomes: Sequence[WriteStatus]) -> None:
    """Delete the spilled rows; those of a crashed process are deleted by cleans."""
    if any(status.deferred or status.has_spilled for status in outcomes):
        with suppress(UnavailableError):
            task.storage.unsynced().delete_folder(spill_folder(task.instant))


def spill_rows(task: WriteTask, token: WriteToken, number: int, tables: Iterable[pa.Table]) -> str:
    """Write rows to storage for a deferred task; return their path."""
    path = f"{spill_folder(task.instant)}/{token}-{number}.arrow"
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    remaining = iter(tables)
    first = next(remaining)
    with (
        task.storage.unsynced().open_output(path) as output,
        pa.ipc.new_stream(pa.PythonFile(output, mode="w"), first.schema, options=options) as writer,
    ):
        for table in chain([first], remaining):
            writer.write_table(table, _BATCH_ROWS)
    return path


def load_spilled_rows(task: WriteTask, path: str) -> Iterator[pa.Table]:
    """Read spilled rows, in pieces."""
    try:
        source = task.storage.open_input(path)
    except MissingFileError as error:
        # A rollback deletes the markers of a write, and its spilled rows with them.
        raise ConflictError(
            "spilled rows are missing: this write was rolled back by another writer",
            instant=task.instant,
            file=path,
        ) from error
    with source:
        try:
            stream = pa.ipc.open_stream(source)
            # A stream without rows still has columns.
            yield stream.schema.empty_table()
            for batch in stream:
                yield pa.Table.from_batches([batch])
        except (pa.ArrowException, OSError) as error:
            raise CorruptError(
                "spilled rows cannot be read", file=path, cause=str(error)
            ) from error


def encode_changes(changes: MergedLogRecords) -> pa.Table:
    """Return merged changes as one table with a row for each key."""
    flags = {
        _KEY: changes.keys,
        _DELETED: pa.array(changes.deleted),
        _BEATS_ANY_BASE: pa.array(changes.beats_any_base),
        _HAS_ROW: pa.array(changes.row >= 0),
        **{f"{number}": values for number, values in enumerate(changes.ordering)},
    }
    rows = take_rows(changes.rows, changes.row)
    row_columns = {f"={name}": rows.column(name) for name in rows.schema.names}
    return pa.table({**flags, **row_columns})


def decode_changes(table: pa.Table, schema: pa.Schema) -> MergedLogRecords:
    """Return the changes that `encode_changes` made a table of."""
    has_row = _flags(table, _HAS_ROW)
    ordering = [name for name in table.column_names if name.isdecimal()]
    return MergedLogRecords(
        keys=_array(table, _KEY),
        rows=pa.table([table.column(f"={name}") for name in schema.names], schema=schema),
        row=np.where(has_row, np.arange(len(table)), -1),
        deleted=_flags(table, _DELETED),
        beats_any_base=_flags(table, _BEATS_ANY_BASE),
        ordering=tuple(_array(table, name) for name in ordering),
    )


def _array(table: pa.Table, name: str) -> pa.Array:
    return as_array(table.column(name))


def _flags(table: pa.Table, name: str) -> Flags:
    return np.asarray(_array(table, name).to_numpy(zero_copy_only=False), dtype=bool)
