"""Avro schemas: those of the format, and those that foreign files bring along.

A file brings the schema of its writer, so the schema itself is input that may be damaged or
hostile. `plain_schema` reduces it to what decides about bytes and refuses the rest, above all
types that take no bytes: an array of those could claim billions of items in a tiny file.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.resources import files
from typing import Any

import fastavro
from fastavro.schema import SchemaParseException, UnknownType

from lakewright.errors import CorruptError, UnsupportedError

_PRIMITIVES = frozenset({"boolean", "int", "long", "float", "double", "bytes", "string"})
_DEEPEST = 32
_SCHEMA_ERRORS = (RecursionError, SchemaParseException, UnknownType, ValueError)


@dataclass(frozen=True, slots=True)
class RecordSchema:
    """A record schema of the format: the text for file headers, and the form fastavro works with.

    `plain` is the schema without documentation, defaults and attributes: two schemas with equal
    `plain` read and write the same bytes.
    """

    name: str
    text: str
    parsed: Any = field(repr=False, compare=False)
    plain: Any = field(repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class WriterSchema:
    """The schema that a file was written with, checked and ready to decode."""

    name: str
    parsed: Any = field(repr=False, compare=False)
    plain: Any = field(repr=False, compare=False)


def load_schema(name: str) -> RecordSchema:
    """The schema of the record `name`, from the files beside this module."""
    text = (files("lakewright.format") / "schemas" / f"{name}.avsc").read_text("utf-8")
    return _record_schema(json.loads(text))


def with_nullable_text(schema: RecordSchema, record: str, field_name: str) -> RecordSchema:
    """`schema` with a nullable text field appended to `record`, itself or one inside it.

    Readers resolve fields by name, so those that do not know the field pass over it.
    """
    tree = json.loads(schema.text)
    extra = {
        "name": field_name,
        "type": ["null", {"type": "string", "avro.java.string": "String"}],
        "default": None,
    }
    for inner in _records(tree):
        if inner["name"] == record:
            inner["fields"].append(extra)
    return _record_schema(tree)


@lru_cache(maxsize=64)
def parse_writer_schema(text: bytes) -> WriterSchema:
    """Check the schema of a file header; a table holds few of them, so they are remembered."""
    try:
        plain = plain_schema(json.loads(text))
        return WriterSchema(_short_name(plain["name"]), fastavro.parse_schema(plain), plain)
    except _SCHEMA_ERRORS as error:
        raise CorruptError("the Avro header holds no usable schema", cause=str(error)) from error


def plain_schema(schema: Any) -> dict[str, Any]:
    """Reduce a record schema to names and types, with full names.

    Raises:
        CorruptError: it is not the schema of a record, or some part of it would take no bytes.
        UnsupportedError: it uses a type that the format does not.
    """
    if not isinstance(schema, dict) or schema.get("type") != "record":
        raise CorruptError("the Avro schema is not that of a record")
    plain: dict[str, Any] = _plain(schema, "", {}, _DEEPEST)
    return plain


def _record_schema(tree: dict[str, Any]) -> RecordSchema:
    text = json.dumps(tree, separators=(",", ":"), ensure_ascii=False)
    return RecordSchema(tree["name"], text, fastavro.parse_schema(tree), plain_schema(tree))


def _records(tree: Any) -> list[dict[str, Any]]:
    if isinstance(tree, list):
        return [record for item in tree for record in _records(item)]
    if not isinstance(tree, dict):
        return []
    own = [tree] if tree.get("type") == "record" else []
    return own + [record for item in tree.values() for record in _records(item)]


def _plain(schema: Any, namespace: str, known: dict[str, bool], depth: int) -> Any:
    if depth == 0:
        raise CorruptError("the Avro schema is nested too deeply", limit=_DEEPEST)
    if isinstance(schema, list):
        return [_plain_branch(branch, namespace, known, depth - 1) for branch in schema]
    if isinstance(schema, str):
        return _plain_name(schema, namespace, known)
    if not isinstance(schema, dict):
        raise CorruptError("an Avro type is neither a name, a list nor an object")
    match schema.get("type"):
        case "record":
            return _plain_record(schema, namespace, known, depth - 1)
        case "array":
            items = _plain(schema.get("items"), namespace, known, depth - 1)
            return {"type": "array", "items": items}
        case "map":
            values = _plain(schema.get("values"), namespace, known, depth - 1)
            return {"type": "map", "values": values}
        case inner:
            return _plain(inner, namespace, known, depth - 1)


def _plain_branch(schema: Any, namespace: str, known: dict[str, bool], depth: int) -> Any:
    if isinstance(schema, list):
        raise CorruptError("an Avro union holds a union")
    return "null" if schema == "null" else _plain(schema, namespace, known, depth)


def _plain_name(name: str, namespace: str, known: dict[str, bool]) -> str:
    if name in _PRIMITIVES:
        return name
    full = _full_name(name, namespace)
    if full not in known:
        # A bare "null" ends here as well: outside of a union it takes no bytes.
        raise UnsupportedError("an Avro type that this format does not use", type=name)
    if not known[full]:
        raise UnsupportedError("an Avro record that holds itself", record=full)
    return full


def _plain_record(
    schema: dict[str, Any], namespace: str, known: dict[str, bool], depth: int
) -> dict[str, Any]:
    name, fields = schema.get("name"), schema.get("fields")
    own_namespace = schema.get("namespace", namespace)
    if not isinstance(name, str) or not isinstance(own_namespace, str):
        raise CorruptError("an Avro record has no usable name")
    if not isinstance(fields, list) or not fields:
        raise CorruptError("an Avro record has no fields", record=name)
    full = _full_name(name, own_namespace)
    if full in known:
        raise CorruptError("an Avro record is defined twice", record=full)
    known[full] = False
    inner_namespace = full.rpartition(".")[0]
    plain_fields = [_plain_field(each, inner_namespace, known, depth) for each in fields]
    if len({each["name"] for each in plain_fields}) < len(plain_fields):
        raise CorruptError("an Avro record has two fields of one name", record=full)
    known[full] = True
    return {"type": "record", "name": full, "fields": plain_fields}


def _plain_field(schema: Any, namespace: str, known: dict[str, bool], depth: int) -> dict[str, Any]:
    if not isinstance(schema, dict) or not isinstance(schema.get("name"), str):
        raise CorruptError("a field of an Avro record has no name")
    return {
        "name": schema["name"],
        "type": _plain(schema.get("type"), namespace, known, depth),
    }


def _full_name(name: str, namespace: str) -> str:
    return name if "." in name or not namespace else f"{namespace}.{name}"


def _short_name(full: str) -> str:
    return full.rpartition(".")[2]
