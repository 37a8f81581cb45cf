"""Writes base files: parquet files with key range and bloom filter in the footer."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Executor, Future, wait
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from inspect import signature
from typing import Any, Protocol, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lakewright.errors import InvalidError, UnsupportedError
from lakewright.format.parquet_footer import FooterBuilder
from lakewright.model.file_group import BaseFile
from lakewright.model.schema import COMMIT_SEQNO, FILE_NAME, META_COLUMNS, RECORD_KEY
from lakewright.storage.base import join_path
from lakewright.table.markers import MarkerKind
from lakewright.utils.arrow_rows import split_by_size
from lakewright.write.task import MarkedFile, WriteTask
from lakewright.write.write_config import PARQUET_KEY_FILTER

_SAMPLE_ROWS = 10_000
_MAX_DISTINCT_RATIO = 0.5
# Of parquet's own filter, which query engines look into.
_FALSE_POSITIVES = 0.01
_COMPRESSION_LEVELS = {"zstd": 1, "gzip": 4}


@dataclass(frozen=True, slots=True)
class WrittenBaseFile:
    """A base file that was written."""

    file: BaseFile
    rows: int
    size: int


@dataclass
class BaseFileWriter:
    """Writes one base file, which becomes visible as a whole when the writer is closed.

    Rows are buffered up to the configured size of a row group. A writer that is neither closed nor
    aborted leaves only its marker behind; `abort` deletes that too. With a `pool`, one row group is
    encoded there while the caller prepares the next.
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
    _buffered: list[pa.Table] = field(default_factory=list)
    _buffered_bytes: int = 0
    _footer: FooterBuilder = field(init=False)
    _encoding: Future[None] | None = None
    _marked_file: MarkedFile = field(init=False)

    def __post_init__(self) -> None:
        path = join_path(self.partition, self.file.name)
        self._marked_file = MarkedFile(self.task, path, self.kind)
        # Hudi writes a filter of all keys with any index. Only a BLOOM index looks into it.
        wants_bloom = self.task.uses_blooms or self.task.settings.bloom_enabled
        self._footer = FooterBuilder(self.task.settings.bloom if wants_bloom else None)

    def write(self, table: pa.Table) -> None:
        """Add rows in the writer's schema; the writer sets their file name."""
        for rows in split_by_size(table, self._group_bytes):
            self._buffered.append(rows)
            self._buffered_bytes += rows.nbytes
            self.rows += len(rows)
            if self._buffered_bytes >= self._group_bytes:
                self._flush()

    @property
    def size(self) -> int:
        """Bytes written so far, without the buffered rows."""
        self._wait_for_encoding()
        return 0 if self._sink is None else int(self._sink.tell())

    @property
    def waiting_bytes(self) -> int:
        """Memory used by rows that are not written yet."""
        return self._buffered_bytes

    def flush(self) -> None:
        """Write the buffered rows as a row group."""
        if self._buffered:
            self._flush()

    def close(self) -> WrittenBaseFile:
        """Finish the file and publish it."""
        if self._buffered or self._writer is None:
            self._flush()
        assert self._writer is not None
        footer = self._footer.metadata()
        self._wait_for_encoding()
        self._writer.add_key_value_metadata(footer)
        self._writer.close()
        size = self.size
        self._marked_file.before_publish()
        self._stack.close()
        self._marked_file.delete_if_not_pending()
        return WrittenBaseFile(self.file, self.rows, size)

    def abort(self, error: BaseException) -> None:
        """Discard the file."""
        if self._encoding is not None:
            wait([self._encoding])
        self._stack.__exit__(type(error), error, error.__traceback__)
        self._marked_file.abort()

    @property
    def _group_bytes(self) -> int:
        return min(self.task.settings.row_group_size, self.task.settings.max_file_size)

    def _flush(self) -> None:
        empty = self.task.stored_schema.empty_table()
        table = pa.concat_tables(self._buffered) if self._buffered else empty
        self._buffered, self._buffered_bytes = [], 0
        table = _with_file_name(table, self.file.name)
        if self._writer is None:
            self._open(table)
        assert self._writer is not None
        self._footer.add(table.column(RECORD_KEY))
        self._wait_for_encoding()
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

    def _wait_for_encoding(self) -> None:
        """Wait until the row group that is being encoded is finished."""
        encoding, self._encoding = self._encoding, None
        if encoding is not None:
            encoding.result()

    def _open(self, first: pa.Table) -> None:
        self._marked_file.create_marker()
        path = self._marked_file.path
        output = self._stack.enter_context(self.task.storage.unsynced().open_output(path))
        self._sink = pa.PythonFile(output, mode="w")
        settings = self.task.settings
        codec = settings.compression
        self._writer = pq.ParquetWriter(
            self._sink,
            first.schema,
            compression="none" if codec == "uncompressed" else codec,
            compression_level=_COMPRESSION_LEVELS.get(codec),
            use_dictionary=_dictionary_columns(first),
            data_page_size=settings.page_size,
            store_schema=False,
            write_page_checksum=True,
            write_page_index=True,
            **self._key_filter(first),
        )

    def _key_filter(self, rows: pa.Table) -> dict[str, Any]:
        """Return the option for a bloom filter of parquet's own, if it is wanted."""
        if not self.task.settings.parquet_key_filter:
            return {}
        if "bloom_filter_options" not in signature(pq.write_table).parameters:
            raise UnsupportedError(
                "this version of pyarrow writes no bloom filters: install a newer one, or write "
                "without this option",
                option=PARQUET_KEY_FILTER,
                version=pa.__version__,
            )
        size = {"ndv": max(1, len(rows)), "fpp": _FALSE_POSITIVES}
        return {"bloom_filter_options": {RECORD_KEY: size}}


class AbortableWriter(Protocol):
    """A writer whose unfinished files can be discarded."""

    def abort(self, error: BaseException) -> None:
        """Discard the files that are not finished."""
        ...


Writing = TypeVar("Writing", bound=AbortableWriter)


@contextmanager
def abort_on_failure(writer: Writing) -> Iterator[Writing]:
    """Abort a writer if the block fails or is interrupted."""
    try:
        yield writer
    except BaseException as error:
        writer.abort(error)
        raise


def _with_file_name(table: pa.Table, name: str) -> pa.Table:
    """Return the rows with their file name set: a dictionary column with one value."""
    index = table.schema.get_field_index(FILE_NAME)
    zeros = pa.array(np.zeros(len(table), np.int32))
    column = pa.DictionaryArray.from_arrays(zeros, pa.array([name], pa.string()))
    return table.set_column(index, pa.field(FILE_NAME, column.type), column)


def _dictionary_columns(table: pa.Table) -> list[str]:
    """Return the columns that are written with a dictionary: those with repeating values.

    Trying a dictionary on the other columns takes a third of the time of a write.
    """
    sample = table.slice(0, _SAMPLE_ROWS)
    names = [name for name in META_COLUMNS if name not in (RECORD_KEY, COMMIT_SEQNO)]
    for column in table.schema:
        if column.name in META_COLUMNS or pa.types.is_nested(column.type):
            continue
        distinct = pc.count_distinct(sample.column(column.name)).as_py()
        if distinct <= max(1, len(sample) * _MAX_DISTINCT_RATIO):
            names.append(column.name)
    return names
