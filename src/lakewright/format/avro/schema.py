"""Avro schemas: those of table rows, which map to Arrow schemas, and those of metadata records.

In Arrow schemas of rows a timestamp keeps its unit, milliseconds or microseconds; the reader
converts it when it brings rows into the table's schema.

Metadata files carry the schema of their writer, so that schema may be damaged or hostile.
`plain_schema` reduces it to what determines the encoding and refuses everything else, above all
types that take no bytes: an array of those could claim billions of items in a tiny file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from importlib.resources import files
from typing import Any

import fastavro
import pyarrow as pa
from fastavro.schema import SchemaParseException, UnknownType

from lakewright.errors import CorruptError, InvalidError, UnsupportedError
from lakewright.model.schema import META_COLUMNS

_MAX_TYPE_DEPTH = 64
# A schema may refer to a type by name many times: without a limit, a short schema could describe
# more columns than fit in memory.
_MAX_LEAVES = 20_000
_MAX_DECIMAL_PRECISION = 38
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

_PRIMITIVE_TYPES: dict[str, tuple[pa.DataType, int]] = {
    "boolean": (pa.bool_(), 1),
    "int": (pa.int32(), 1),
    "long": (pa.int64(), 1),
    "float": (pa.float32(), 4),
    "double": (pa.float64(), 8),
    "bytes": (pa.binary(), 1),
    "string": (pa.string(), 1),
}
_LOGICAL_TYPES: dict[tuple[str, str], pa.DataType] = {
    ("int", "date"): pa.date32(),
    ("int", "time-millis"): pa.time32("ms"),
    ("long", "time-micros"): pa.time64("us"),
    ("long", "timestamp-millis"): pa.timestamp("ms", "UTC"),
    ("long", "timestamp-micros"): pa.timestamp("us", "UTC"),
    ("long", "local-timestamp-millis"): pa.timestamp("ms"),
    ("long", "local-timestamp-micros"): pa.timestamp("us"),
}
_AVRO_TYPES: dict[pa.DataType, Any] = {
    pa.int8(): "int",
    pa.int16(): "int",
    pa.large_string(): "string",
    pa.string_view(): "string",
    pa.large_binary(): "bytes",
    pa.binary_view(): "bytes",
    **{arrow: name for name, (arrow, _) in _PRIMITIVE_TYPES.items()},
    **{
        arrow: {"type": n, "logicalType": logical} for (n, logical), arrow in _LOGICAL_TYPES.items()
    },
}


@dataclass(frozen=True, slots=True)
class AvroType:
    """One type of a resolved schema: how its values are encoded, and their Arrow type.

    `kind` is the Avro type, which determines the encoding. A branch number precedes a value of a
    union: `branch` is that of the value, None without a union; `null_branch` is that of null, None
    if null is not allowed. `smallest` is the minimum number of bytes of a value without its branch.
    `leaves` counts the primitive types in it.
    """

    kind: str
    arrow: pa.DataType
    children: tuple[AvroField, ...] = ()
    size: int = 0
    symbols: tuple[str, ...] = ()
    branch: int | None = None
    null_branch: int | None = None
    smallest: int = 1
    leaves: int = 1

    @property
    def nullable(self) -> bool:
        """Whether a value may be null."""
        return self.null_branch is not None or self.kind == "null"


@dataclass(frozen=True, slots=True)
class AvroField:
    """A field of a record; array items and map entries are fields as well."""

    name: str
    type: AvroType

    @property
    def arrow(self) -> pa.Field:
        """The Arrow field."""
        return pa.field(self.name, self.type.arrow, self.type.nullable)


def arrow_schema(avro_json: str) -> pa.Schema:
    """Return the Arrow schema of rows that an Avro record schema describes."""
    return pa.schema([field.arrow for field in parse_schema(avro_json).children])


@lru_cache(maxsize=64)
def parse_schema(avro_json: str) -> AvroType:
    """Resolve the Avro schema of a row; cached, because a table has few of them.

    Raises:
        CorruptError: it is not the schema of a record.
        UnsupportedError: it uses a union of several types or a recursive record.
    """
    try:
        tree = json.loads(avro_json)
    except (ValueError, RecursionError) as error:
        raise CorruptError("an Avro schema is not JSON", cause=str(error)) from error
    record = _Resolver().resolve(tree, "", "", _MAX_TYPE_DEPTH)
    if record.kind != "record" or record.branch is not None:
        raise CorruptError("the Avro schema of rows is not that of a record", type=record.kind)
    return record


def avro_schema(schema: pa.Schema, name: str, namespace: str) -> str:
    """Return the Avro schema of rows of an Arrow schema, as Hudi's Spark writer formats it."""
    record = _write_record(list(schema), name, namespace)
    return json.dumps(record, separators=(",", ":"), ensure_ascii=False)


class _Resolver:
    """Resolves the types of one schema.

    `definitions` holds the named types; a record is None until all its fields are resolved.
    """

    def __init__(self) -> None:
        self.definitions: dict[str, AvroType | None] = {}

    def resolve(self, tree: Any, namespace: str, path: str, depth: int) -> AvroType:
        if depth == 0:
            raise CorruptError(
                "an Avro schema is nested too deeply", field=path, limit=_MAX_TYPE_DEPTH
            )
        if isinstance(tree, list):
            return self._union(tree, namespace, path, depth - 1)
        if isinstance(tree, str):
            return self._name(tree, namespace, path)
        if not isinstance(tree, dict):
            raise CorruptError("an Avro type is neither a name, a list nor an object", field=path)
        return self._object(tree, namespace, path, depth)

    def _object(self, tree: dict[str, Any], namespace: str, path: str, depth: int) -> AvroType:
        match tree.get("type"):
            case "record":
                return self._record(tree, namespace, path, depth - 1)
            case "array":
                return self._array(tree, namespace, path, depth - 1)
            case "map":
                return self._map(tree, namespace, path, depth - 1)
            case "fixed":
                return self._define(tree, namespace, path, _fixed(tree, path))
            case "enum":
                return self._define(tree, namespace, path, _enum(tree, path))
            case str(name):
                return _logical(self._name(name, namespace, path), tree, path)
            case inner:
                return self.resolve(inner, namespace, path, depth - 1)

    def _union(self, tree: list[Any], namespace: str, path: str, depth: int) -> AvroType:
        value_branches = [i for i, branch in enumerate(tree) if branch != "null"]
        if len(value_branches) != 1 or len(tree) > 2:
            raise UnsupportedError("an Avro union is more than a type and null", field=path)
        value = self.resolve(tree[value_branches[0]], namespace, path, depth)
        if value.branch is not None:
            raise CorruptError("an Avro union holds a union", field=path)
        null_branch = 1 - value_branches[0] if len(tree) == 2 else None
        return replace(value, branch=value_branches[0], null_branch=null_branch)

    def _name(self, name: str, namespace: str, path: str) -> AvroType:
        if name in _PRIMITIVE_TYPES:
            arrow, smallest = _PRIMITIVE_TYPES[name]
            return AvroType(name, arrow, smallest=smallest)
        if name == "null":
            return AvroType("null", pa.null(), smallest=0)
        full = _qualified_name(name, namespace)
        if full not in self.definitions:
            raise CorruptError("an Avro type is not defined", type=full, field=path)
        definition = self.definitions[full]
        if definition is None:
            raise UnsupportedError("an Avro record holds itself", record=full, field=path)
        return definition

    def _define(self, tree: dict[str, Any], namespace: str, path: str, kind: AvroType) -> AvroType:
        self.definitions[self._own_name(tree, namespace, path)] = kind
        return kind

    def _own_name(self, tree: dict[str, Any], namespace: str, path: str) -> str:
        name, own = tree.get("name"), tree.get("namespace", namespace)
        if not isinstance(name, str) or not isinstance(own, str) or not name:
            raise CorruptError("an Avro type has no usable name", field=path)
        full = _qualified_name(name, own)
        if full in self.definitions:
            raise CorruptError("an Avro type is defined twice", type=full, field=path)
        return full

    def _record(self, tree: dict[str, Any], namespace: str, path: str, depth: int) -> AvroType:
        full = self._own_name(tree, namespace, path)
        self.definitions[full] = None
        fields = tree.get("fields")
        if not isinstance(fields, list):
            raise CorruptError("an Avro record has no fields", record=full)
        inner = full.rpartition(".")[0]
        children = tuple(self._field(field_tree, inner, path, depth) for field_tree in fields)
        if len({child.name for child in children}) < len(children):
            raise CorruptError("an Avro record has two fields of one name", record=full)
        record = _record_of(children, path)
        self.definitions[full] = record
        return record

    def _field(self, tree: Any, namespace: str, path: str, depth: int) -> AvroField:
        if not isinstance(tree, dict) or not isinstance(tree.get("name"), str):
            raise CorruptError("a field of an Avro record has no name", record=path)
        name = tree["name"]
        inner_path = f"{path}.{name}" if path else name
        return AvroField(name, self.resolve(tree.get("type"), namespace, inner_path, depth))

    def _array(self, tree: dict[str, Any], namespace: str, path: str, depth: int) -> AvroType:
        item = AvroField("element", self.resolve(tree.get("items"), namespace, path, depth))
        if item.type.smallest == 0 and item.type.branch is None:
            # Such an array could claim any number of items in a few bytes.
            raise UnsupportedError("items of an Avro array take no bytes", field=path)
        return AvroType("array", pa.list_(item.arrow), (item,), leaves=_leaves((item,), path))

    def _map(self, tree: dict[str, Any], namespace: str, path: str, depth: int) -> AvroType:
        key = AvroField("key", AvroType("string", pa.string()))
        value = AvroField("value", self.resolve(tree.get("values"), namespace, path, depth))
        entry = AvroField("entries", _record_of((key, value), path))
        return AvroType(
            "map", pa.map_(pa.string(), value.arrow), (entry,), leaves=entry.type.leaves
        )


def _record_of(children: tuple[AvroField, ...], path: str) -> AvroType:
    smallest = sum(1 if c.type.branch is not None else c.type.smallest for c in children)
    arrow = pa.struct([child.arrow for child in children])
    return AvroType("record", arrow, children, smallest=smallest, leaves=_leaves(children, path))


def _leaves(children: tuple[AvroField, ...], path: str) -> int:
    leaves = sum(child.type.leaves for child in children)
    if leaves > _MAX_LEAVES:
        raise UnsupportedError("an Avro schema has too many fields", field=path, limit=_MAX_LEAVES)
    return leaves


def _logical(kind: AvroType, tree: dict[str, Any], path: str) -> AvroType:
    logical = tree.get("logicalType")
    if logical == "decimal" and kind.kind == "bytes":
        return replace(kind, arrow=_decimal(tree, path))
    # Avro requires readers to ignore a logical type that is unknown or does not fit the type.
    arrow = _LOGICAL_TYPES.get((kind.kind, logical)) if isinstance(logical, str) else None
    return kind if arrow is None else replace(kind, arrow=arrow)


def _fixed(tree: dict[str, Any], path: str) -> AvroType:
    size = tree.get("size")
    if not isinstance(size, int) or not 0 < size < 1 << 31:
        raise CorruptError("an Avro fixed type has no usable size", field=path, size=size)
    decimal = tree.get("logicalType") == "decimal"
    arrow = _decimal(tree, path) if decimal else pa.binary(size)
    return AvroType("fixed", arrow, size=size, smallest=size)


def _decimal(tree: dict[str, Any], path: str) -> pa.DataType:
    precision, scale = tree.get("precision"), tree.get("scale", 0)
    if not isinstance(precision, int) or not isinstance(scale, int):
        raise CorruptError("an Avro decimal has no precision", field=path)
    if precision > _MAX_DECIMAL_PRECISION:
        raise UnsupportedError("a decimal of more than 38 digits", field=path, precision=precision)
    if not 0 <= scale <= precision or precision == 0:
        raise CorruptError("an Avro decimal is not possible", field=path, scale=scale)
    return pa.decimal128(precision, scale)


def _enum(tree: dict[str, Any], path: str) -> AvroType:
    symbols = tree.get("symbols")
    if not isinstance(symbols, list) or not all(isinstance(symbol, str) for symbol in symbols):
        raise CorruptError("an Avro enum has no symbols", field=path)
    return AvroType("enum", pa.string(), symbols=tuple(symbols))


def _qualified_name(name: str, namespace: str) -> str:
    return name if "." in name or not namespace else f"{namespace}.{name}"


def _write_record(fields: list[pa.Field], name: str, namespace: str) -> dict[str, Any]:
    # Like Hudi, use the path to a nested record as its namespace: names stay unique.
    inner = f"{namespace}.{name}" if namespace else name
    return {
        "type": "record",
        "name": name,
        **({"namespace": namespace} if namespace else {}),
        "fields": [_write_field(field, inner) for field in fields],
    }


def _write_field(field: pa.Field, namespace: str) -> dict[str, Any]:
    if not _NAME.fullmatch(field.name):
        raise InvalidError("a column name is not allowed in Avro", column=field.name)
    written: dict[str, Any] = {"name": field.name, "type": _write_nullable(field, field, namespace)}
    if field.name in META_COLUMNS:
        written["doc"] = ""
    if field.nullable:
        written["default"] = None
    return written


def _write_nullable(field: pa.Field, column: pa.Field, namespace: str) -> Any:
    written = _write_type(field.type, column, namespace)
    return ["null", written] if field.nullable else written


def _write_type(kind: pa.DataType, column: pa.Field, namespace: str) -> Any:
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        kind = pa.timestamp(kind.unit, "UTC")
    if kind in _AVRO_TYPES:
        return _AVRO_TYPES[kind]
    if pa.types.is_struct(kind):
        return _write_record(list(kind), column.name, namespace)
    if pa.types.is_map(kind) and kind.key_type in (pa.string(), pa.large_string()):
        return {"type": "map", "values": _write_nullable(kind.item_field, column, namespace)}
    if isinstance(kind, (pa.ListType, pa.LargeListType, pa.FixedSizeListType)):
        return {"type": "array", "items": _write_nullable(kind.value_field, column, namespace)}
    if pa.types.is_dictionary(kind):
        return _write_type(kind.value_type, column, namespace)
    identity = {"name": "fixed", "namespace": f"{namespace}.{column.name}"}
    if pa.types.is_fixed_size_binary(kind):
        return {"type": "fixed", **identity, "size": kind.byte_width}
    if pa.types.is_decimal(kind) and 0 <= kind.scale <= kind.precision <= _MAX_DECIMAL_PRECISION:
        size = decimal_size(kind.precision)
        logical = {"logicalType": "decimal", "precision": kind.precision, "scale": kind.scale}
        return {"type": "fixed", **identity, "size": size, **logical}
    raise InvalidError("a column type cannot be stored", column=column.name, type=str(kind))


def decimal_size(precision: int) -> int:
    """Return the least number of bytes that hold every decimal of `precision` digits."""
    bound: int = 10**precision
    return (bound.bit_length() + 8) // 8


# Schemas of metadata records: those of the format, and the writer schemas in file headers.

_PRIMITIVES = frozenset({"boolean", "int", "long", "float", "double", "bytes", "string"})
_MAX_METADATA_DEPTH = 32
_SCHEMA_ERRORS = (RecursionError, SchemaParseException, UnknownType, ValueError)


@dataclass(frozen=True, slots=True)
class RecordSchema:
    """A record schema of the format: its text for file headers, and its form for fastavro.

    `plain` is the schema without documentation, defaults and attributes: two schemas with equal
    `plain` encode records to the same bytes.
    """

    name: str
    text: str
    parsed: Any = field(repr=False, compare=False)
    plain: Any = field(repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class WriterSchema:
    """The schema in the header of a file, checked and ready to decode."""

    name: str
    parsed: Any = field(repr=False, compare=False)
    plain: Any = field(repr=False, compare=False)


def load_schema(name: str) -> RecordSchema:
    """Return the schema of the record `name`, from the package's `schemas` folder."""
    text = (files("lakewright.format") / "schemas" / f"{name}.avsc").read_text("utf-8")
    return _record_schema(json.loads(text))


def field_names(schema: RecordSchema) -> list[str]:
    """Return the names of a record's fields, in order."""
    return [field["name"] for field in json.loads(schema.text)["fields"]]


def with_only(schema: RecordSchema, fields: Mapping[str, Collection[str]]) -> RecordSchema:
    """Return `schema` with these fields only, for records that it names; their order stays."""
    tree = json.loads(schema.text)
    for inner in _records(tree):
        if inner["name"] in fields:
            kept = fields[inner["name"]]
            inner["fields"] = [field for field in inner["fields"] if field["name"] in kept]
    return _record_schema(tree)


def with_nullable_text(schema: RecordSchema, record: str, field_name: str) -> RecordSchema:
    """Return `schema` with a nullable text field appended to the record `record`, at any depth.

    Readers resolve fields by name and ignore those that they do not know.
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
    """Check and parse the schema of a file header; cached, because a table has few of them."""
    try:
        plain = plain_schema(json.loads(text))
        return WriterSchema(_short_name(plain["name"]), fastavro.parse_schema(plain), plain)
    except _SCHEMA_ERRORS as error:
        raise CorruptError("the Avro header holds no usable schema", cause=str(error)) from error


def plain_schema(schema: Any) -> dict[str, Any]:
    """Reduce a record schema to names and types, with full names.

    Raises:
        CorruptError: it is not the schema of a record, or is malformed.
        UnsupportedError: it uses a type that the format does not, or a recursive record.
    """
    if not isinstance(schema, dict) or schema.get("type") != "record":
        raise CorruptError("the Avro schema is not that of a record")
    plain: dict[str, Any] = _plain(schema, "", {}, _MAX_METADATA_DEPTH)
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


def _plain(schema: Any, namespace: str, complete: dict[str, bool], depth: int) -> Any:
    """Reduce any type; `complete` holds the records by full name, False while one is being read."""
    if depth == 0:
        raise CorruptError("the Avro schema is nested too deeply", limit=_MAX_METADATA_DEPTH)
    if isinstance(schema, list):
        return [_plain_branch(branch, namespace, complete, depth - 1) for branch in schema]
    if isinstance(schema, str):
        return _plain_name(schema, namespace, complete)
    if not isinstance(schema, dict):
        raise CorruptError("an Avro type is neither a name, a list nor an object")
    match schema.get("type"):
        case "record":
            return _plain_record(schema, namespace, complete, depth - 1)
        case "array":
            items = _plain(schema.get("items"), namespace, complete, depth - 1)
            return {"type": "array", "items": items}
        case "map":
            values = _plain(schema.get("values"), namespace, complete, depth - 1)
            return {"type": "map", "values": values}
        case inner:
            return _plain(inner, namespace, complete, depth - 1)


def _plain_branch(schema: Any, namespace: str, complete: dict[str, bool], depth: int) -> Any:
    if isinstance(schema, list):
        raise CorruptError("an Avro union holds a union")
    return "null" if schema == "null" else _plain(schema, namespace, complete, depth)


def _plain_name(name: str, namespace: str, complete: dict[str, bool]) -> str:
    if name in _PRIMITIVES:
        return name
    full = _full_name(name, namespace)
    if full not in complete:
        # This also refuses "null" outside a union, which takes no bytes.
        raise UnsupportedError("an Avro type that this format does not use", type=name)
    if not complete[full]:
        raise UnsupportedError("an Avro record that holds itself", record=full)
    return full


def _plain_record(
    schema: dict[str, Any], namespace: str, complete: dict[str, bool], depth: int
) -> dict[str, Any]:
    name, fields = schema.get("name"), schema.get("fields")
    own_namespace = schema.get("namespace", namespace)
    if not isinstance(name, str) or not isinstance(own_namespace, str):
        raise CorruptError("an Avro record has no usable name")
    if not isinstance(fields, list) or not fields:
        raise CorruptError("an Avro record has no fields", record=name)
    full = _full_name(name, own_namespace)
    if full in complete:
        raise CorruptError("an Avro record is defined twice", record=full)
    complete[full] = False
    inner_namespace = full.rpartition(".")[0]
    plain_fields = [_plain_field(child, inner_namespace, complete, depth) for child in fields]
    if len({child["name"] for child in plain_fields}) < len(plain_fields):
        raise CorruptError("an Avro record has two fields of one name", record=full)
    complete[full] = True
    return {"type": "record", "name": full, "fields": plain_fields}


def _plain_field(
    schema: Any, namespace: str, complete: dict[str, bool], depth: int
) -> dict[str, Any]:
    if not isinstance(schema, dict) or not isinstance(schema.get("name"), str):
        raise CorruptError("a field of an Avro record has no name")
    return {
        "name": schema["name"],
        "type": _plain(schema.get("type"), namespace, complete, depth),
    }


def _full_name(name: str, namespace: str) -> str:
    return name if "." in name or not namespace else f"{namespace}.{name}"


def _short_name(full: str) -> str:
    return full.rpartition(".")[2]
