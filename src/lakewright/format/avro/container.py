"""Avro object container files with exactly one record, in which the timeline stores metadata.

This module reads and writes the container itself; fastavro encodes and decodes the record. Like
Hudi's own files, the files written here name no codec. The sync marker is a hash of the content, so
that equal records have equal bytes.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any

import fastavro
from fastavro.read import SchemaResolutionError

from lakewright.errors import CorruptError, InvalidError, UnsupportedError
from lakewright.format.avro.schema import RecordSchema, WriterSchema, parse_writer_schema

MAGIC = b"Obj\x01"
_SYNC_SIZE = 16
_HEADER = fastavro.parse_schema({"type": "map", "values": "bytes"})
_LONG = fastavro.parse_schema("long")
# Exceptions that fastavro raises, or may raise, for bytes that do not fit their schema.
_DECODE_ERRORS = (
    EOFError,
    LookupError,
    MemoryError,
    OverflowError,
    RecursionError,
    SchemaResolutionError,
    TypeError,
    ValueError,
    struct.error,
)
_ENCODE_ERRORS = (AttributeError, LookupError, OverflowError, TypeError, ValueError)


def decode_record(data: bytes, schema: RecordSchema) -> dict[str, Any]:
    """Return the record in `data`, resolved against `schema` by field name.

    Fields that the writer's schema lacks get their default; fields that `schema` lacks are dropped.

    Raises:
        CorruptError: `data` is not a container with exactly one record that fits `schema`.
        UnsupportedError: `data` is JSON, as in tables before version 8, or is compressed.
    """
    stream = io.BytesIO(data)
    writer, sync = _read_header(stream, len(data))
    reader = None if writer.plain == schema.plain else schema.parsed
    count, size = _read(stream, _LONG), _read(stream, _LONG)
    start = stream.tell()
    if count != 1 or size != len(data) - start - _SYNC_SIZE:
        raise CorruptError(
            "the Avro file is cut off or does not hold exactly one record",
            record=schema.name,
            count=count,
            size=len(data),
        )
    record = _read(stream, writer.parsed, reader)
    if stream.tell() != start + size or stream.read() != sync:
        raise CorruptError("the Avro record does not end where it should", record=schema.name)
    if not isinstance(record, dict):
        raise CorruptError("the Avro file holds something other than a record", record=schema.name)
    return record


def record_name(data: bytes) -> str:
    """Return the name, without namespace, of the record schema in the header of `data`."""
    writer, _ = _read_header(io.BytesIO(data), len(data))
    return writer.name


def encode_record(record: Mapping[str, Any], schema: RecordSchema) -> bytes:
    """Return the container file of one record.

    Raises:
        InvalidError: a value does not fit its field.
    """
    return container_of([encode_fields(record, schema)], schema)


def encode_fields(record: Mapping[str, Any], schema: RecordSchema) -> bytes:
    """Return the bytes of a record's fields, without a container.

    The bytes of a record are those of its first fields, followed by those of its other fields.

    Raises:
        InvalidError: a value does not fit its field.
    """
    body = io.BytesIO()
    try:
        fastavro.schemaless_writer(body, schema.parsed, dict(record))
    except _ENCODE_ERRORS as error:
        raise InvalidError(
            "a value does not fit its metadata field",
            record=schema.name,
            cause=str(error),
        ) from error
    return body.getvalue()


def container_of(parts: Sequence[bytes], schema: RecordSchema) -> bytes:
    """Return the container file of the record whose fields have these bytes."""
    text = schema.text.encode()
    digest = blake2b(text, digest_size=_SYNC_SIZE)
    for part in parts:
        digest.update(part)
    sync = digest.digest()
    header = _encode({"avro.schema": text}, _HEADER)
    size = sum(map(len, parts))
    return b"".join((MAGIC, header, sync, _encode(1, _LONG), _encode(size, _LONG), *parts, sync))


def _read_header(stream: io.BytesIO, size: int) -> tuple[WriterSchema, bytes]:
    magic = stream.read(len(MAGIC))
    if magic.lstrip()[:1] == b"{":
        raise UnsupportedError("the metadata is JSON, as in tables before version 8")
    if magic != MAGIC:
        raise CorruptError("the metadata is not an Avro file", size=size, starts_with=magic)
    header = _read(stream, _HEADER)
    sync = stream.read(_SYNC_SIZE)
    codec = header.get("avro.codec", b"null")
    if codec != b"null":
        raise UnsupportedError("compressed Avro metadata", codec=codec)
    if "avro.schema" not in header or len(sync) != _SYNC_SIZE:
        raise CorruptError("the Avro header is cut off or names no schema", size=size)
    return parse_writer_schema(header["avro.schema"]), sync


def _read(stream: io.BytesIO, writer: Any, reader: Any = None) -> Any:
    try:
        return fastavro.schemaless_reader(stream, writer, reader)
    except _DECODE_ERRORS as error:
        raise CorruptError("the Avro bytes cannot be decoded", cause=str(error)) from error


def _encode(value: Any, schema: Any) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, schema, value)
    return stream.getvalue()
