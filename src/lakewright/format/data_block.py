"""Data blocks of log files: conversion of Avro and parquet content to Arrow tables and back."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lakewright.errors import CorruptError, InvalidError, UnsupportedError
from lakewright.format.avro.decode import Ints, decode_rows
from lakewright.format.avro.encode import encode_rows, in_columns, join_parts, joined_bytes
from lakewright.format.avro.schema import arrow_schema, parse_schema
from lakewright.format.log_block import CONTENT_VERSION, BlockKind, Header, LogBlock, format_block
from lakewright.format.record_positions import RecordPositions

_INT = struct.Struct(">i")
# Hudi's default is gzip, which takes many times as long and is no smaller.
_CODEC, _CODEC_LEVEL = "zstd", 1


def data_block_rows(block: LogBlock, columns: Sequence[str] | None = None) -> pa.Table:
    """Return the rows of a data block, with those of `columns` that it has, in that order.

    Avro rows have the Arrow types of the block's schema, parquet rows those of their file.
    """
    if block.kind in (BlockKind.AVRO, BlockKind.CDC):
        return _avro_rows(block, columns)
    if block.kind is BlockKind.PARQUET:
        return _parquet_rows(block, columns)
    if block.kind is BlockKind.HFILE:
        raise UnsupportedError(
            "a block of a metadata table holds no rows of a table", file_name=block.file_name
        )
    raise InvalidError("a block without rows was asked for rows", kind=block.kind.name)


def format_avro_block(
    rows: pa.Table,
    instant: str,
    schema_json: str,
    *,
    kind: BlockKind = BlockKind.AVRO,
    is_partial: bool = False,
    compacted_instants: Sequence[str] = (),
    positions: RecordPositions | None = None,
) -> bytes:
    """Return a block of Avro records; change data capture uses the kind `BlockKind.CDC`."""
    encoded = encode_rows(rows, parse_schema(schema_json))
    head = struct.pack(">ii", CONTENT_VERSION, rows.num_rows)
    content = b"".join((head, *(joined_bytes(_with_length(batch)) for batch in encoded)))
    headers = _headers(instant, schema_json, is_partial, compacted_instants, positions)
    return format_block(kind, headers, content)


def format_parquet_block(
    rows: pa.Table,
    instant: str,
    schema_json: str,
    *,
    is_partial: bool = False,
    compacted_instants: Sequence[str] = (),
    positions: RecordPositions | None = None,
) -> bytes:
    """Return a block whose content is a parquet file of the rows."""
    schema = arrow_schema(schema_json)
    ordered = in_columns(rows, schema.names)
    sink = pa.BufferOutputStream()
    try:
        pq.write_table(
            # The file must have the nullability of the block's schema: readers compare the two.
            ordered.cast(schema),
            sink,
            compression=_CODEC,
            compression_level=_CODEC_LEVEL,
            store_schema=False,
            write_page_checksum=True,
        )
    except (pa.ArrowException, ValueError) as error:
        raise InvalidError("rows do not fit their schema", cause=str(error)) from error
    headers = _headers(instant, schema_json, is_partial, compacted_instants, positions)
    return format_block(BlockKind.PARQUET, headers, memoryview(sink.getvalue()))


def _headers(
    instant: str,
    schema_json: str,
    is_partial: bool,
    compacted_instants: Sequence[str],
    positions: RecordPositions | None,
) -> dict[Header, str]:
    headers = {Header.INSTANT_TIME: instant, Header.SCHEMA: schema_json}
    if is_partial:
        headers[Header.IS_PARTIAL] = "true"
    if compacted_instants:
        headers[Header.COMPACTED_BLOCK_TIMES] = ",".join(compacted_instants)
    if positions is not None:
        headers |= positions.headers()
    return headers


def _with_length(rows: pa.Array) -> pa.Array:
    length = np.asarray(pc.binary_length(rows)).astype(">i4")
    fixed = pa.Array.from_buffers(pa.binary(4), len(rows), [None, pa.py_buffer(length)])
    return join_parts([fixed.cast(pa.binary()), rows])


def _schema_json(block: LogBlock) -> str:
    if block.schema_json is None:
        raise block.corrupt("a data block has no schema")
    return block.schema_json


def _avro_rows(block: LogBlock, columns: Sequence[str] | None) -> pa.Table:
    schema = parse_schema(_schema_json(block))
    content = block.versioned_content()
    starts, ends = _row_bounds(block, content)
    try:
        return decode_rows(content, starts, ends, schema, columns)
    except CorruptError as error:
        raise block.corrupt(error.message, **error.facts) from error


def _row_bounds(block: LogBlock, content: memoryview) -> tuple[Ints, Ints]:
    """Return where each row starts and ends; each row has a length prefix."""
    if len(content) < _INT.size:
        raise block.corrupt("a block is too short for its number of rows")
    count, at, unpack = _INT.unpack(content[: _INT.size])[0], _INT.size, _INT.unpack_from
    if not 0 <= count <= len(content) // _INT.size:
        raise block.corrupt("a block has an impossible number of rows", rows=count)
    ends = []
    try:
        for _ in range(count):
            (length,) = unpack(content, at)
            at += _INT.size + length
            if length < 0:
                break
            ends.append(at)
    except struct.error as error:
        raise block.corrupt("a block ends in the middle of its rows", rows=count) from error
    if len(ends) != count or at != len(content):
        raise block.corrupt("the rows of a block do not fill it", rows=count)
    bounds = np.array([_INT.size, *ends], np.int64)
    return bounds[:-1] + _INT.size, bounds[1:]


def _parquet_rows(block: LogBlock, columns: Sequence[str] | None) -> pa.Table:
    if not len(block.content):
        empty = arrow_schema(_schema_json(block)).empty_table()
        return empty if columns is None else empty.select(_existing(columns, empty.column_names))
    try:
        source = pa.BufferReader(pa.py_buffer(block.content))
        file = pq.ParquetFile(source, page_checksum_verification=True)
        names = file.schema_arrow.names
        selected = names if columns is None else _existing(columns, names)
        rows = file.read(selected, use_threads=False)
        return rows.select(selected)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise block.corrupt("a parquet block cannot be read", cause=str(error)) from error


def _existing(columns: Sequence[str], names: Sequence[str]) -> list[str]:
    return [name for name in columns if name in names]
