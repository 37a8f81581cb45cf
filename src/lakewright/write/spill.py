"""Rows of a worker that do not stay in memory, and work that a task defers.

`SpillBuffer` collects the rows of one partition, on local disk if they are many.

A task defers work whose rows are few but whose files are large. Rows are distributed to tasks by
partition and by their number. Where few rows change much data, neither predicts how long a task
takes: the size of the files to read does. So the task spills such rows to the table's storage, and
the driver distributes the deferred work to new tasks by size.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import IO

import numpy as np
import pyarrow as pa

from lakewright.errors import ConflictError, CorruptError, UnavailableError
from lakewright.model.merge import Flags, MergedLogRecords
from lakewright.storage.base import MissingFileError
from lakewright.table.markers import spill_folder
from lakewright.write.task import DeferredWork, WriteStatus, WriteTask, WriteToken

# A worker shares its machine with others, and merging needs the same memory again.
_MAX_BYTES = 256 << 20


def split_by_size(rows: pa.Table, max_bytes: int) -> Iterator[pa.Table]:
    """Split rows into pieces of about `max_bytes`, at least one row each."""
    step = max(1, int(len(rows) * max_bytes / max(rows.nbytes, 1)))
    for start in range(0, len(rows), step):
        yield rows.slice(start, step)


@dataclass
class SpillBuffer:
    """Collects tables; above a limit it writes them to a memory-mapped file.

    `nbytes` counts what it has got.
    """

    max_bytes: int = _MAX_BYTES
    nbytes: int = 0
    _buffered: list[pa.Table] = field(default_factory=list)
    _bytes: int = 0
    _file: IO[bytes] | None = None
    _writer: pa.RecordBatchStreamWriter | None = None

    def add(self, rows: pa.Table) -> None:
        """Add rows of the same schema as all previous ones."""
        self._buffered.append(rows)
        self._bytes += rows.nbytes
        self.nbytes += rows.nbytes
        if self._bytes >= self.max_bytes:
            self._spill()

    def table(self) -> pa.Table:
        """Return all rows; call it once, after the last `add`."""
        if self._file is None:
            return pa.concat_tables(self._buffered)
        self._spill()
        assert self._writer is not None
        self._writer.close()
        self._file.flush()
        with pa.memory_map(self._file.name) as mapped:
            return pa.ipc.open_stream(mapped).read_all()

    def close(self) -> None:
        """Delete the file; tables that were returned stay readable while they are referenced."""
        if self._file is not None:
            self._file.close()

    def _spill(self) -> None:
        if not self._buffered:
            return
        rows = pa.concat_tables(self._buffered).unify_dictionaries()
        self._buffered, self._bytes = [], 0
        if self._file is None:
            self._file = tempfile.NamedTemporaryFile(prefix="lakewright-", suffix=".arrow")  # noqa: SIM115
            self._writer = pa.ipc.new_stream(self._file, rows.schema)
        assert self._writer is not None
        self._writer.write_table(rows)


# Deferred work.


# Below this ratio of file bytes to row bytes, the rows measure the work as well as the files do.
_FILE_BOUND_RATIO = 8
_KEY, _DELETED, _BEATS_ANY_BASE, _HAS_ROW = "key", "deleted", "beats_any_base", "row"


def is_file_bound(file_bytes: int, rows: pa.Table) -> bool:
    """Whether the files to read, not the rows, determine the work."""
    return file_bytes > _FILE_BOUND_RATIO * int(rows.nbytes)


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
    """Delete spilled rows and claims; those of a crashed process are deleted by cleans."""
    if any(status.deferred or status.has_spilled for status in outcomes):
        with suppress(UnavailableError):
            task.storage.unsynced().delete_folder(spill_folder(task.instant))


def spill_rows(task: WriteTask, token: WriteToken, number: int, rows: pa.Table) -> str:
    """Write rows to storage for a deferred task; return their path."""
    path = f"{spill_folder(task.instant)}/{token}-{number}.arrow"
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    with (
        task.storage.unsynced().open_output(path) as output,
        pa.ipc.new_stream(pa.PythonFile(output, mode="w"), rows.schema, options=options) as writer,
    ):
        writer.write_table(rows)
    return path


def load_spilled_rows(task: WriteTask, path: str) -> pa.Table:
    """Read spilled rows."""
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
            return pa.ipc.open_stream(source).read_all()
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
    index = pa.array(changes.row, mask=changes.row < 0)
    row_columns = {
        f"={name}": changes.rows.column(name).take(index) for name in changes.rows.schema.names
    }
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
    return table.column(name).combine_chunks()


def _flags(table: pa.Table, name: str) -> Flags:
    return np.asarray(_array(table, name).to_numpy(zero_copy_only=False), dtype=bool)
