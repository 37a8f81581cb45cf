"""Writing base files: parquet with the footers that index look-ups want, rolled by size."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Executor, Future, wait
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lakewright.errors import InvalidError
from lakewright.format.parquet_footer import footer_metadata
from lakewright.model.file_group import BaseFile
from lakewright.model.schema import COMMIT_SEQNO, FILE_NAME, META_COLUMNS, RECORD_KEY
from lakewright.storage.base import join_path
from lakewright.table.markers import MarkerKind
from lakewright.write.task import MarkedFile, WriteTask

_SAMPLE_ROWS = 10_000
_REPEATS_BELOW = 0.5
_LEVELS = {"zstd": 1, "gzip": 4}


@dataclass(frozen=True, slots=True)
class WrittenBaseFile:
    """A base file that is there."""

    file: BaseFile
    rows: int
    size: int


@dataclass
class BaseFileWriter:
    """One base file in the making: it appears, whole, when the writer is closed.

    Rows are gathered to row groups of the configured size. Leaving it open leaves nothing behind
    but its marker; `abandon` not even that. With a `pool`, a row group is encoded there while the
    next is made.
    """

    task: WriteTask
    partition: str
    file: BaseFile
    kind: MarkerKind
    pool: Executor | None = None
    rows: int = 0
    _stack: ExitStack = field(default_factory=ExitStack)
    _writer: pq.ParquetWriter | None = None
    _sink: pa.PythonFile | None = None
    _waiting: list[pa.Table] = field(default_factory=list)
    _waiting_bytes: int = 0
    _keys: list[pa.Array] = field(default_factory=list)
    _encoding: Future[None] | None = None
    _publication: MarkedFile = field(init=False)

    def __post_init__(self) -> None:
        path = join_path(self.partition, self.file.name)
        self._publication = MarkedFile(self.task, path, self.kind)

    def write(self, table: pa.Table) -> None:
        """Add rows, in the writer's schema; their file name is set here."""
        if not len(table):
            return
        self._waiting.append(table)
        self._waiting_bytes += table.nbytes
        self.rows += len(table)
        if self._waiting_bytes >= self._group_bytes:
            self._flush()

    @property
    def size(self) -> int:
        """Bytes written so far, as far as they are known: gathered rows are not among them."""
        self._wait()
        return 0 if self._sink is None else int(self._sink.tell())

    @property
    def waiting_bytes(self) -> int:
        """Memory held for rows that are not written yet."""
        return self._waiting_bytes

    def flush(self) -> None:
        """Write what was gathered as a row group of its own."""
        if self._waiting:
            self._flush()

    def close(self) -> WrittenBaseFile:
        """End the file and make it appear."""
        if self._waiting or self._writer is None:
            self._flush()
        assert self._writer is not None
        keys = pa.chunked_array(self._keys, pa.string()).combine_chunks()
        footer = footer_metadata(keys, self.task.settings.bloom)
        self._wait()
        self._writer.add_key_value_metadata(footer)
        self._writer.close()
        size = self.size
        self._publication.before_publish()
        self._stack.close()
        self._publication.delete_if_not_pending()
        return WrittenBaseFile(self.file, self.rows, size)

    def abort(self, error: BaseException) -> None:
        """Let nothing appear."""
        if self._encoding is not None:
            wait([self._encoding])
        self._stack.__exit__(type(error), error, error.__traceback__)
        self._publication.abort()

    @property
    def _group_bytes(self) -> int:
        return min(self.task.settings.row_group_size, self.task.settings.max_file_size)

    def _flush(self) -> None:
        none = self.task.stored_schema.empty_table()
        table = pa.concat_tables(self._waiting) if self._waiting else none
        self._waiting, self._waiting_bytes = [], 0
        table = _with_file_name(table, self.file.name)
        if self._writer is None:
            self._open(table)
        assert self._writer is not None
        self._keys += table.column(RECORD_KEY).chunks
        self._wait()
        if self.pool is None:
            self._encode(table)
        else:
            self._encoding = self.pool.submit(self._encode, table)

    def _encode(self, table: pa.Table) -> None:
        assert self._writer is not None
        try:
            self._writer.write_table(table, row_group_size=max(1, len(table)))
        except (pa.ArrowException, ValueError) as error:
            raise InvalidError(
                "rows do not fit the table's schema", partition=self.partition, reason=str(error)
            ) from error

    def _wait(self) -> None:
        """Let the row group that is being encoded be done."""
        encoding, self._encoding = self._encoding, None
        if encoding is not None:
            encoding.result()

    def _open(self, first: pa.Table) -> None:
        self._publication.create_marker()
        path = self._publication.path
        output = self._stack.enter_context(self.task.storage.unsynced().open_output(path))
        self._sink = pa.PythonFile(output, mode="w")
        settings = self.task.settings
        codec = settings.compression
        self._writer = pq.ParquetWriter(
            self._sink,
            first.schema,
            compression="none" if codec == "uncompressed" else codec,
            compression_level=_LEVELS.get(codec),
            use_dictionary=_repeating(first),
            data_page_size=settings.page_size,
            store_schema=False,
            write_page_checksum=True,
        )


class AbortableWriter(Protocol):
    """Something that writes files, which may come to nothing."""

    def abort(self, error: BaseException) -> None:
        """Let nothing appear of what is in the making."""
        ...


Writing = TypeVar("Writing", bound=AbortableWriter)


@contextmanager
def abort_on_failure(writer: Writing) -> Iterator[Writing]:
    """A writer whose files in the making do not appear if the block fails, or dies."""
    try:
        yield writer
    except BaseException as error:
        writer.abort(error)
        raise


def _with_file_name(table: pa.Table, name: str) -> pa.Table:
    """The rows with the name of their file; one value, held once."""
    index = table.schema.get_field_index(FILE_NAME)
    zeros = pa.array(np.zeros(len(table), np.int32))
    column = pa.DictionaryArray.from_arrays(zeros, pa.array([name], pa.string()))
    return table.set_column(index, pa.field(FILE_NAME, column.type), column)


def _repeating(table: pa.Table) -> list[str]:
    """The columns worth a dictionary: trying it on the others costs a third of the time."""
    sample = table.slice(0, _SAMPLE_ROWS)
    repeating = [name for name in META_COLUMNS if name not in (RECORD_KEY, COMMIT_SEQNO)]
    for column in table.schema:
        if column.name in META_COLUMNS or pa.types.is_nested(column.type):
            continue
        distinct = pc.count_distinct(sample.column(column.name)).as_py()
        if distinct <= max(1, len(sample) * _REPEATS_BELOW):
            repeating.append(column.name)
    return repeating
