"""Writes log files: the changes that one write makes to one file group."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import pyarrow as pa

from lakewright.format.data_block import format_avro_block, format_parquet_block
from lakewright.format.delete_block import DeleteRecords, format_delete_block
from lakewright.model.file_group import LogFile
from lakewright.model.schema import FILE_NAME, META_COLUMNS
from lakewright.storage.base import join_path
from lakewright.utils.arrow_rows import MAX_CHUNK_BYTES, split_by_size
from lakewright.write.task import WriteTask, create_file


@dataclass(frozen=True, slots=True)
class WrittenLogFile:
    """A log file that was written."""

    file: LogFile
    size: int
    deletes: int
    written: pa.Table | None

    @property
    def rows(self) -> int:
        """Number of rows in the file."""
        return 0 if self.written is None else len(self.written)


@dataclass(frozen=True, slots=True)
class EncodedBlock:
    """A log block, with the rows and the number of deletes it contains."""

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
    """Write rows and deletes as log files of a file group; start a new file where one is full.

    The blocks replace all blocks of the instants in `compacted`.
    """
    schema_json = log_schema(task)
    encoded = chain(
        _data_blocks(task, file_id, rows, schema_json, compacted),
        _delete_blocks(task, deletes, schema_json, compacted),
    )
    written: list[WrittenLogFile] = []
    for blocks in into_files(encoded, task.settings.log_max_size):
        file = LogFile(file_id, task.instant, len(written) + 1, token)
        data = b"".join(block.data for block in blocks)
        path = join_path(partition, file.name)
        create_file(task, path, data)
        parts = [block.rows for block in blocks if block.rows is not None]
        file_rows = pa.concat_tables(parts) if parts else None
        deleted = sum(block.deletes for block in blocks)
        written.append(WrittenLogFile(file, len(data), deleted, file_rows))
    return written


def log_schema(task: WriteTask) -> str:
    """Return the Avro schema of log blocks: the table's schema with the meta columns."""
    return log_schema_of(task.schema)


def log_schema_of(schema: str) -> str:
    """Return a table's Avro schema with the meta columns."""
    tree = json.loads(schema)
    data_fields = [field for field in tree["fields"] if field["name"] not in META_COLUMNS]
    meta_fields = [
        {"name": name, "type": ["null", "string"], "doc": "", "default": None}
        for name in META_COLUMNS
    ]
    return json.dumps({**tree, "fields": [*meta_fields, *data_fields]}, separators=(",", ":"))


def max_block_bytes(task: WriteTask) -> int:
    """Return the size of the rows of a block; encoded, they must fit into one Arrow array."""
    return min(task.settings.log_block_max_size, MAX_CHUNK_BYTES // 2)


def _data_blocks(
    task: WriteTask, file_id: str, rows: pa.Table, schema_json: str, compacted: Sequence[str]
) -> Iterator[EncodedBlock]:
    formatter = (
        format_avro_block if task.settings.log_block_format == "avro" else format_parquet_block
    )
    for piece in split_by_size(rows, max_block_bytes(task)):
        block_rows = _with_file_id(piece, file_id)
        data = formatter(block_rows, task.instant, schema_json, compacted_instants=compacted)
        yield EncodedBlock(data, block_rows)


def _delete_blocks(
    task: WriteTask, deletes: DeleteRecords | None, schema_json: str, compacted: Sequence[str]
) -> Iterator[EncodedBlock]:
    for records in deletes.by_kind() if deletes is not None and len(deletes) else []:
        for part in records.split_by_size(max_block_bytes(task)):
            data = format_delete_block(
                part, task.instant, schema_json, compacted_instants=compacted
            )
            yield EncodedBlock(data, deletes=len(part))


def _with_file_id(rows: pa.Table, file_id: str) -> pa.Table:
    index = rows.schema.get_field_index(FILE_NAME)
    return rows.set_column(
        index, rows.schema.field(index), pa.repeat(pa.scalar(file_id), len(rows))
    )


def into_files(blocks: Iterable[EncodedBlock], max_bytes: int) -> Iterator[list[EncodedBlock]]:
    """Group blocks into files; a file is full once it has reached `max_bytes`."""
    file_blocks: list[EncodedBlock] = []
    for block in blocks:
        file_blocks.append(block)
        if sum(len(item.data) for item in file_blocks) >= max_bytes:
            yield file_blocks
            file_blocks = []
    if file_blocks:
        yield file_blocks
