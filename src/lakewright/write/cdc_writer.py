"""Writing change files: what a write did to the rows of a base file, for readers of changes."""

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
from lakewright.write.log_file_writer import EncodedBlock, into_files
from lakewright.write.spill import pieces
from lakewright.write.task import WriteTask, create_file

_TEXT = ["null", "string"]
_OP, _KEY, _TIME, _BEFORE, _AFTER = "op", "record_key", "ts_ms", "before", "after"


def cdc_schema(schema: str, logging: CdcLoggingMode) -> str:
    """The schema of change files of a table with this schema."""
    if logging is CdcLoggingMode.KEYS:
        fields = [{"name": name, "type": ["string", "null"]} for name in (_OP, _KEY)]
        return _json({"type": "record", "name": "Record", "fields": fields})
    tree = json.loads(schema)
    own = [each for each in tree["fields"] if each["name"] not in META_COLUMNS]
    image = {**tree, "fields": own}
    namespace = tree.get("namespace")
    fields = [_field(_OP, _TEXT)]
    if logging is CdcLoggingMode.BEFORE:
        fields += [_field(_KEY, _TEXT), _field(_BEFORE, ["null", image])]
    else:
        name = f"{namespace}.{tree['name']}" if namespace else tree["name"]
        after = _field(_AFTER, ["null", name])
        fields += [_field(_TIME, _TEXT), _field(_BEFORE, ["null", image]), after]
    place = {"namespace": namespace} if namespace else {}
    return _json({"type": "record", "name": "CDC", **place, "doc": "", "fields": fields})


def _field(name: str, kind: list[Any]) -> dict[str, Any]:
    return {"name": name, "type": kind, "doc": "", "default": None}


def _json(tree: dict[str, Any]) -> str:
    return json.dumps(tree, separators=(",", ":"), ensure_ascii=False)


def require_base(partition: str, file_id: str, item: FileSlice | None) -> None:
    """Refuse log files without a base file: readers of changes find no rows from before there."""
    if item is None or item.base is None:
        raise UnsupportedError(
            "the table logs changes, and this file group has no base file to tell them by: "
            "compact the table first",
            partition=partition,
            file_id=file_id,
            **{CHANGE_DATA: "true"},
        )


@dataclass
class CdcLogWriter:
    """Gathers what a write does to the rows of one file group.

    It is held in memory as the bytes it will be written as, one block after the other.
    """

    task: WriteTask
    logging: CdcLoggingMode
    _waiting: list[pa.Table] = field(default_factory=list)
    _waiting_bytes: int = 0
    _blocks: list[EncodedBlock] = field(default_factory=list)

    @classmethod
    def for_task(cls, task: WriteTask) -> CdcLogWriter | None:
        """An empty one; None if changes are not logged."""
        return None if task.logging is None else cls(task, task.logging)

    def add(self, before: pa.Table | None, after: pa.Table | None) -> None:
        """Note that rows came, changed or went."""
        rows = after if after is not None else before
        if rows is None or not len(rows):
            return
        op = "i" if before is None else "d" if after is None else "u"
        told = {_OP: pa.repeat(pa.scalar(op), len(rows))}
        if self.logging is CdcLoggingMode.BOTH:
            told[_TIME] = pa.repeat(pa.scalar(self.task.instant), len(rows))
        else:
            told[_KEY] = rows.column(RECORD_KEY)
        if self.logging is not CdcLoggingMode.KEYS:
            told[_BEFORE] = self._images(before, len(rows))
        if self.logging is CdcLoggingMode.BOTH:
            told[_AFTER] = self._images(after, len(rows))
        changes = pa.table(told)
        self._waiting.append(changes)
        self._waiting_bytes += changes.nbytes
        if self._waiting_bytes >= self.task.settings.log_block_max_size:
            self._flush()

    def write(self, partition: str, file_id: str, token: str) -> Mapping[str, int]:
        """Write all that was noted; gives the size of each file by its path.

        There is a file also if nothing changed: for real readers a base file without one holds
        new rows only.
        """
        if self._waiting or not self._blocks:
            self._flush()
        written: dict[str, int] = {}
        for blocks in into_files(self._blocks, self.task.settings.log_max_size):
            file = LogFile(file_id, self.task.instant, len(written) + 1, token, cdc=True)
            path = join_path(partition, file.name)
            data = b"".join(block.data for block in blocks)
            create_file(self.task, path, data)
            written[path] = len(data)
        return written

    def _images(self, rows: pa.Table | None, length: int) -> pa.ChunkedArray:
        """Rows without meta columns, each as one value."""
        own = self.task.own_schema
        kind = pa.struct(list(own))
        if rows is None:
            return pa.chunked_array([pa.nulls(length, kind)])
        chunks = [
            pa.StructArray.from_arrays(batch.columns, fields=list(own))
            for batch in rows.select(own.names).to_batches()
        ]
        return pa.chunked_array(chunks, kind)

    def _flush(self) -> None:
        schema = cdc_schema(self.task.schema, self.logging)
        self._blocks += self._encoded(schema)
        self._waiting, self._waiting_bytes = [], 0

    def _encoded(self, schema: str) -> Iterator[EncodedBlock]:
        instant = self.task.instant
        if not self._waiting:
            none = pa.table({name: [] for name in _names(schema)})
            yield EncodedBlock(format_avro_block(none, instant, schema, kind=BlockKind.CDC))
            return
        rows = pa.concat_tables(self._waiting)
        for piece in pieces(rows, self.task.settings.log_block_max_size):
            yield EncodedBlock(format_avro_block(piece, instant, schema, kind=BlockKind.CDC))


def _names(schema: str) -> list[str]:
    return [each["name"] for each in json.loads(schema)["fields"]]
