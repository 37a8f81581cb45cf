"""Work that a task hands on: rows put aside on storage, to be merged by a task of their own.

Rows are dealt out to tasks by their partitions, and by how many they are. Where few rows change
much data neither tells how long a task will take: the files that are to be read do. So such work
goes back to the driver, which deals it out anew, by size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

import numpy as np
import pyarrow as pa

from lakewright.core.merge import Flags, LogOutcome
from lakewright.errors import ConflictError, CorruptError, UnavailableError
from lakewright.storage.base import MissingFileError
from lakewright.table.markers import rows_folder
from lakewright.write.task import Outcome, Token, Work, WriteTask

# Below this, rows are as good a measure of the work as files are.
_FILES_OVER_ROWS = 8
_KEY, _DELETED, _BEATS, _ROW = "key", "deleted", "beats_any_base", "row"


def outweighs(file_bytes: int, rows: pa.Table) -> bool:
    """Whether the files that rows go to, and not the rows, make the work."""
    return file_bytes > _FILES_OVER_ROWS * int(rows.nbytes)


def to_the_end(
    first: Sequence[Outcome], run: Callable[[Sequence[Work]], Sequence[Outcome]]
) -> list[Outcome]:
    """What all tasks did: the first ones, and those that did what they handed on."""
    done, newest = list(first), first
    while not any(outcome.error for outcome in newest):
        works = [work for outcome in newest for work in outcome.works]
        if not works:
            break
        newest = run(works)
        done += newest
    return done


def forget(task: WriteTask, outcomes: Sequence[Outcome]) -> None:
    """Delete the rows that were put aside; what a dead process leaves is swept by cleans."""
    if any(outcome.works for outcome in outcomes):
        with suppress(UnavailableError):
            task.storage.unsynced().delete_folder(rows_folder(task.instant))


def put_aside(task: WriteTask, token: Token, number: int, rows: pa.Table) -> str:
    """Store rows until a task of their own takes them up; returns their path."""
    path = f"{rows_folder(task.instant)}/{token}-{number}.arrow"
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    with (
        task.storage.unsynced().open_output(path) as output,
        pa.ipc.new_stream(pa.PythonFile(output, mode="w"), rows.schema, options=options) as writer,
    ):
        writer.write_table(rows)
    return path


def take_up(task: WriteTask, path: str) -> pa.Table:
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


def changes_table(changes: LogOutcome) -> pa.Table:
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


def changes_from(table: pa.Table, schema: pa.Schema) -> LogOutcome:
    """The changes that a table was made of."""
    has_row = _flags(table, _ROW)
    ordering = [name for name in table.column_names if name.isdecimal()]
    return LogOutcome(
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
