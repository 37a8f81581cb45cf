"""Rows in a worker: those of one partition gathered, on disk if they are many; and cut up."""

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

# A worker shares its machine with others, and merging needs as much again.
_MOST_BYTES = 256 << 20


def pieces(rows: pa.Table, most_bytes: int) -> Iterator[pa.Table]:
    """Rows in pieces of about so many bytes, at least one row each."""
    step = max(1, int(len(rows) * most_bytes / max(rows.nbytes, 1)))
    for start in range(0, len(rows), step):
        yield rows.slice(start, step)


@dataclass
class SpillBuffer:
    """Tables put together; beyond a limit they lie in a file that is mapped into memory."""

    most_bytes: int = _MOST_BYTES
    _waiting: list[pa.Table] = field(default_factory=list)
    _bytes: int = 0
    _file: IO[bytes] | None = None
    _writer: pa.RecordBatchStreamWriter | None = None

    def add(self, rows: pa.Table) -> None:
        """Add rows of the same schema as all before."""
        self._waiting.append(rows)
        self._bytes += rows.nbytes
        if self._bytes >= self.most_bytes:
            self._spill()

    def table(self) -> pa.Table:
        """All rows; to be called once, when there will be no more."""
        if self._file is None:
            return pa.concat_tables(self._waiting)
        self._spill()
        assert self._writer is not None
        self._writer.close()
        self._file.flush()
        with pa.memory_map(self._file.name) as mapped:
            return pa.ipc.open_stream(mapped).read_all()

    def close(self) -> None:
        """Give the disk back; rows that were given out stay readable while they are held."""
        if self._file is not None:
            self._file.close()

    def _spill(self) -> None:
        if not self._waiting:
            return
        rows = pa.concat_tables(self._waiting).unify_dictionaries()
        self._waiting, self._bytes = [], 0
        if self._file is None:
            self._file = tempfile.NamedTemporaryFile(prefix="lakewright-", suffix=".arrow")  # noqa: SIM115
            self._writer = pa.ipc.new_stream(self._file, rows.schema)
        assert self._writer is not None
        self._writer.write_table(rows)


# ------------------------------------------------------------------------------------------------
# Work that a task hands on: rows put aside on storage, to be merged by a task of their own.
#
# Rows are dealt out to tasks by their partitions, and by how many they are. Where few rows change
# much data neither tells how long a task will take: the files that are to be read do. So such work
# goes back to the driver, which deals it out anew, by size.


# Below this, rows are as good a measure of the work as files are.
_FILES_OVER_ROWS = 8
_KEY, _DELETED, _BEATS, _ROW = "key", "deleted", "beats_any_base", "row"


def is_file_bound(file_bytes: int, rows: pa.Table) -> bool:
    """Whether the files that rows go to, and not the rows, make the work."""
    return file_bytes > _FILES_OVER_ROWS * int(rows.nbytes)


def run_until_done(
    first: Sequence[WriteStatus], run: Callable[[Sequence[DeferredWork]], Sequence[WriteStatus]]
) -> list[WriteStatus]:
    """What all tasks did: the first ones, and those that did what they handed on."""
    done, newest = list(first), first
    while not any(outcome.error for outcome in newest):
        works = [work for outcome in newest for work in outcome.deferred]
        if not works:
            break
        newest = run(works)
        done += newest
    return done


def delete_spill(task: WriteTask, outcomes: Sequence[WriteStatus]) -> None:
    """Delete the rows that were put aside; what a dead process leaves is swept by cleans."""
    if any(outcome.deferred for outcome in outcomes):
        with suppress(UnavailableError):
            task.storage.unsynced().delete_folder(spill_folder(task.instant))


def spill_rows(task: WriteTask, token: WriteToken, number: int, rows: pa.Table) -> str:
    """Store rows until a task of their own takes them up; returns their path."""
    path = f"{spill_folder(task.instant)}/{token}-{number}.arrow"
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    with (
        task.storage.unsynced().open_output(path) as output,
        pa.ipc.new_stream(pa.PythonFile(output, mode="w"), rows.schema, options=options) as writer,
    ):
        writer.write_table(rows)
    return path


def load_spilled_rows(task: WriteTask, path: str) -> pa.Table:
    """The rows that were put aside."""
    try:
        source = task.storage.open_input(path)
    except MissingFileError as error:
        # Who rolls a write back deletes its markers, and these rows with them.
        raise ConflictError(
            "rows that were put aside are gone: this write was rolled back by another writer",
            instant=task.instant,
            file=path,
        ) from error
    with source:
        try:
            return pa.ipc.open_stream(source).read_all()
        except (pa.ArrowException, OSError) as error:
            raise CorruptError(
                "rows that were put aside cannot be read", file=path, cause=str(error)
            ) from error


def encode_changes(changes: MergedLogRecords) -> pa.Table:
    """Merged changes as one table: a row for each key."""
    facts = {
        _KEY: changes.keys,
        _DELETED: pa.array(changes.deleted),
        _BEATS: pa.array(changes.beats_any_base),
        _ROW: pa.array(changes.row >= 0),
        **{f"{number}": column for number, column in enumerate(changes.ordering)},
    }
    index = pa.array(changes.row, mask=changes.row < 0)
    columns = {
        f"={name}": changes.rows.column(name).take(index) for name in changes.rows.schema.names
    }
    return pa.table({**facts, **columns})


def decode_changes(table: pa.Table, schema: pa.Schema) -> MergedLogRecords:
    """The changes that a table was made of."""
    has_row = _flags(table, _ROW)
    ordering = [name for name in table.column_names if name.isdecimal()]
    return MergedLogRecords(
        keys=_array(table, _KEY),
        rows=pa.table([table.column(f"={name}") for name in schema.names], schema=schema),
        row=np.where(has_row, np.arange(len(table)), -1),
        deleted=_flags(table, _DELETED),
        beats_any_base=_flags(table, _BEATS),
        ordering=tuple(_array(table, name) for name in ordering),
    )


def _array(table: pa.Table, name: str) -> pa.Array:
    return table.column(name).combine_chunks()


def _flags(table: pa.Table, name: str) -> Flags:
    return np.asarray(_array(table, name).to_numpy(zero_copy_only=False), dtype=bool)
