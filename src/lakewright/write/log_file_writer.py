"""Writing log files: the changes of one file group by one write."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from lakewright.format.data_block import format_avro_block, format_parquet_block
from lakewright.format.delete_block import DeleteRecords, format_delete_block
from lakewright.model.file_group import LogFile
from lakewright.model.schema import FILE_NAME, META_COLUMNS
from lakewright.storage.base import join_path
from lakewright.write.spill import pieces
from lakewright.write.task import WriteTask, create_file


@dataclass(frozen=True, slots=True)
class WrittenLogFile:
    """A log file that is there."""

    file: LogFile
    size: int
    deletes: int
    written: pa.Table | None

    @property
    def rows(self) -> int:
        """How many rows it holds."""
        return 0 if self.written is None else len(self.written)


@dataclass(frozen=True, slots=True)
class EncodedBlock:
    """A block of a log file, and what it holds."""

    data: bytes
    rows: pa.Table | None = None
    deletes: int = 0


def write_logs(
    task: WriteTask,
    partition: str,
    file_id: str,
    token: str,
    rows: pa.Table,
    deletes: DeleteRecords | None,
    *,
    compacted: Sequence[str] = (),
) -> list[WrittenLogFile]:
    """Append rows and deletes to a file group; a new file begins where one is full.

    The blocks stand for all blocks of the instants `compacted`.
    """
    schema_json = log_schema(task)
    named = _with_file_id(rows, file_id)
    pending = [
        *(
            EncodedBlock(_data_block(task, piece, schema_json, compacted), piece)
            for piece in pieces(named, task.settings.log_block_max_size)
        ),
        *_delete_blocks(task, deletes, schema_json, compacted),
    ]
    written: list[WrittenLogFile] = []
    for blocks in into_files(pending, task.settings.log_max_size):
        file = LogFile(file_id, task.instant, len(written) + 1, token)
        data = b"".join(block.data for block in blocks)
        path = join_path(partition, file.name)
        create_file(task, path, data)
        parts = [block.rows for block in blocks if block.rows is not None]
        rows_in = pa.concat_tables(parts) if parts else None
        gone = sum(block.deletes for block in blocks)
        written.append(WrittenLogFile(file, len(data), gone, rows_in))
    return written


def log_schema(task: WriteTask) -> str:
    """The schema of log blocks: the table's with its meta columns."""
    return log_schema_of(task.schema)


def log_schema_of(schema: str) -> str:
    """A table's schema with its meta columns."""
    tree = json.loads(schema)
    own = [each for each in tree["fields"] if each["name"] not in META_COLUMNS]
    meta = [
        {"name": name, "type": ["null", "string"], "doc": "", "default": None}
        for name in META_COLUMNS
    ]
    return json.dumps({**tree, "fields": [*meta, *own]}, separators=(",", ":"))


def _data_block(
    task: WriteTask, rows: pa.Table, schema_json: str, compacted: Sequence[str]
) -> bytes:
    block = format_avro_block if task.settings.log_block_format == "avro" else format_parquet_block
    return block(rows, task.instant, schema_json, compacted_instants=compacted)


def _delete_blocks(
    task: WriteTask, deletes: DeleteRecords | None, schema_json: str, compacted: Sequence[str]
) -> Iterator[EncodedBlock]:
    for part in deletes.by_kind() if deletes is not None and len(deletes) else []:
        data = format_delete_block(part, task.instant, schema_json, compacted_instants=compacted)
        yield EncodedBlock(data, deletes=len(part))


def _with_file_id(rows: pa.Table, file_id: str) -> pa.Table:
    index = rows.schema.get_field_index(FILE_NAME)
    return rows.set_column(
        index, rows.schema.field(index), pa.repeat(pa.scalar(file_id), len(rows))
    )


def into_files(blocks: Iterable[EncodedBlock], most_bytes: int) -> Iterator[list[EncodedBlock]]:
    """Blocks put together to files; a file is full once it has reached its size."""
    waiting: list[EncodedBlock] = []
    for block in blocks:
        waiting.append(block)
        if sum(len(each.data) for each in waiting) >= most_bytes:
            yield waiting
            waiting = []
    if waiting:
        yield waiting
