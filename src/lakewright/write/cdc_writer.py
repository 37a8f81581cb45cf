"""Writes CDC log files: what a write did to the rows of a file group, for CDC queries."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from lakewright.errors import UnsupportedError
from lakewright.format.data_block import format_avro_block
from lakewright.format.log_block import BlockKind
from lakewright.model.file_group import FileSlice, LogFile
from lakewright.model.schema import META_COLUMNS, RECORD_KEY
from lakewright.model.table_config import CHANGE_DATA, CdcLoggingMode
from lakewright.storage.base import join_path
from lakewright.utils.arrow_rows import split_by_size
from lakewright.write.log_file_writer import EncodedBlock, into_files, max_block_bytes
from lakewright.write.task import WriteTask, create_file

_NULLABLE_STRING = ["null", "string"]
_OP, _KEY, _TIME, _BEFORE, _AFTER = "op", "record_key", "ts_ms", "before", "after"


def cdc_schema(schema: str, logging: CdcLoggingMode) -> str:
    """Return the Avro schema of the CDC log files of a table with this schema."""
    if logging is CdcLoggingMode.KEYS:
        fields = [{"name": name, "type": ["string", "null"]} for name in (_OP, _KEY)]
        return _json({"type": "record", "name": "Record", "fields": fields})
    tree = json.loads(schema)
    data_fields = [field for field in tree["fields"] if field["name"] not in META_COLUMNS]
    image = {**tree, "fields": data_fields}
    namespace = tree.get("namespace")
    fields = [_field(_OP, _NULLABLE_STRING)]
    if logging is CdcLoggingMode.BEFORE:
        fields += [_field(_KEY, _NULLABLE_STRING), _field(_BEFORE, ["null", image])]
    else:
        name = f"{namespace}.{tree['name']}" if namespace else tree["name"]
        after = _field(_AFTER, ["null", name])
        fields += [_field(_TIME, _NULLABLE_STRING), _field(_BEFORE, ["null", image]), after]
    namespace_entry = {"namespace": namespace} if namespace else {}
    return _json({"type": "record", "name": "CDC", **namespace_entry, "doc": "", "fields": fields})


def _field(name: str, kind: list[Any]) -> dict[str, Any]:
    return {"name": name, "type": kind, "doc": "", "default": None}


def _json(tree: dict[str, Any]) -> str:
    return json.dumps(tree, separators=(",", ":"), ensure_ascii=False)


def require_base(partition: str, file_id: str, item: FileSlice | None) -> None:
    """Raise if a file group has no base file: CDC readers could not find the previous rows."""
    if item is None or item.base is None:
        raise UnsupportedError(
            "the table logs changes, and this file group has no base file to compare with: "
            "compact the table first",
            partition=partition,
            file_id=file_id,
            **{CHANGE_DATA: "true"},
        )


@dataclass
class CdcLogWriter:
    """Collects the row changes that a write makes to one file group.

    They are kept in memory as encoded blocks, ready to be written.
    """

    task: WriteTask
    logging: CdcLoggingMode
    _buffered: list[pa.Table] = field(default_factory=list)
    _buffered_bytes: int = 0
    _blocks: list[EncodedBlock] = field(default_factory=list)

    @classmethod
    def for_task(cls, task: WriteTask) -> CdcLogWriter | None:
        """Return an empty writer, or None if the table does not log changes."""
        return None if task.logging is None else cls(task, task.logging)

    def add(self, before: pa.Table | None, after: pa.Table | None) -> None:
        """Add inserted, updated or deleted rows."""
        rows = after if after is not None else before
        if rows is None or not len(rows):
            return
        op = "i" if before is None else "d" if after is None else "u"
        columns = {_OP: pa.repeat(pa.scalar(op), len(rows))}
        if self.logging is CdcLoggingMode.BOTH:
            columns[_TIME] = pa.repeat(pa.scalar(self.task.instant), len(rows))
        else:
            columns[_KEY] = rows.column(RECORD_KEY)
        if self.logging is not CdcLoggingMode.KEYS:
            columns[_BEFORE] = self._row_images(before, len(rows))
        if self.logging is CdcLoggingMode.BOTH:
            columns[_AFTER] = self._row_images(after, len(rows))
        changes = pa.table(columns)
        self._buffered.append(changes)
        self._buffered_bytes += changes.nbytes
        if self._buffered_bytes >= self.task.settings.log_block_max_size:
            self._flush()

    def write(self, partition: str, file_id: str, token: str) -> Mapping[str, int]:
        """Write all changes; return the size of each file by its path.

        A file is written even if nothing changed: Hudi readers take a base file without a CDC file
        for one that contains only inserted rows.
        """
        if self._buffered or not self._blocks:
            self._flush()
        written: dict[str, int] = {}
        for blocks in into_files(self._blocks, self.task.settings.log_max_size):
            file = LogFile(file_id, self.task.instant, len(written) + 1, token, cdc=True)
            path = join_path(partition, file.name)
            data = b"".join(block.data for block in blocks)
            create_file(self.task, path, data)
            written[path] = len(data)
        return written

    def _row_images(self, rows: pa.Table | None, length: int) -> pa.ChunkedArray:
        """Return each row without its meta columns, as a struct."""
        schema = self.task.data_schema
        struct_type = pa.struct(list(schema))
        if rows is None:
            return pa.chunked_array([pa.nulls(length, struct_type)])
        chunks = [
            pa.StructArray.from_arrays(batch.columns, fields=list(schema))
            for batch in rows.select(schema.names).to_batches()
        ]
        return pa.chunked_array(chunks, struct_type)

    def _flush(self) -> None:
        schema = cdc_schema(self.task.schema, self.logging)
        self._blocks += self._encode(schema)
        self._buffered, self._buffered_bytes = [], 0

    def _encode(self, schema: str) -> Iterator[EncodedBlock]:
        instant = self.task.instant
        if not self._buffered:
            empty = pa.table({name: [] for name in _field_names(schema)})
            yield EncodedBlock(format_avro_block(empty, instant, schema, kind=BlockKind.CDC))
            return
        rows = pa.concat_tables(self._buffered)
        for piece in split_by_size(rows, max_block_bytes(self.task)):
            yield EncodedBlock(format_avro_block(piece, instant, schema, kind=BlockKind.CDC))


def _field_names(schema: str) -> list[str]:
    return [field["name"] for field in json.loads(schema)["fields"]]
