"""Schema evolution: how a table's schema changes with the rows that are written.

Arrow types decide what changes. The change is then made in the stored Avro text, so that names,
docs and everything else that another writer put there is preserved.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from lakewright.errors import CorruptError, InvalidError, UnsupportedError
from lakewright.format.avro.schema import arrow_schema, avro_schema, decimal_size
from lakewright.model.schema import META_COLUMNS, OPERATION, query_schema

_IGNORED = frozenset({*META_COLUMNS, OPERATION})
# Prefix of the columns that a write adds to rows inside Spark.
_RESERVED_PREFIX = "_lakewright_"
_NOTHING_WRITTEN = "nothing was written"

_INT, _LONG, _FLOAT, _DOUBLE = pa.int32(), pa.int64(), pa.float32(), pa.float64()
_NUMBER_NAMES = {_INT: "int", _LONG: "long", _FLOAT: "float", _DOUBLE: "double"}
_NARROWER = {_LONG: (_INT,), _FLOAT: (_INT, _LONG), _DOUBLE: (_INT, _LONG, _FLOAT)}
_WIDER = {_INT: (_LONG, _DOUBLE), _FLOAT: (_DOUBLE,)}
# The format allows these widenings, but Spark's parquet reader fails on files with the old type.
_UNREADABLE = {_INT: (_FLOAT,), _LONG: (_FLOAT, _DOUBLE)}
_CANONICAL = {
    pa.int8(): _INT,
    pa.int16(): _INT,
    pa.large_string(): pa.string(),
    pa.string_view(): pa.string(),
    pa.large_binary(): pa.binary(),
    pa.binary_view(): pa.binary(),
    pa.date64(): pa.date32(),
}
_MAX_DECIMAL_PRECISION = 38


@dataclass(frozen=True, slots=True)
class Evolution:
    """The table's schema after a write, to be recorded in its commit."""

    avro: str
    changed: bool


def record_names(table: str) -> tuple[str, str]:
    """Return name and namespace of the Avro record of a table's rows, as Hudi derives them.

    >>> record_names("my-trips")
    ('my__trips_record', 'hoodie.my__trips')
    """
    clean = re.sub("[^A-Za-z0-9_]", "__", re.sub("^[^A-Za-z_]", "__", table))
    return f"{clean}_record", f"hoodie.{clean}"


def evolved(
    table_avro: str | None,
    incoming: pa.Schema,
    *,
    name: str,
    allow_missing: bool,
    keys: Collection[str] = (),
    ordering: Collection[str] = (),
) -> Evolution:
    """Return the schema of the table `name` after a write of rows of the schema `incoming`.

    `table_avro` is the current schema, None for a new table; it is returned verbatim if nothing
    changes. `keys` are columns whose values are part of a record key or a partition path: the text
    of their values must not change. `ordering` are columns that must keep their type.

    Raises:
        InvalidError: the rows do not fit the table.
        UnsupportedError: the change cannot be made in this Avro schema.
    """
    check_column_names(incoming)
    rows = [_canonical_field(field) for field in incoming if field.name not in _IGNORED]
    if table_avro is None:
        return Evolution(_first_schema(rows, name), True)
    stored = list(arrow_schema(table_avro))
    target = _merge_fields(stored, rows, _Rules(allow_missing, keys, ordering), "")
    if target == stored:
        return Evolution(table_avro, False)
    return Evolution(_edited(table_avro, pa.schema(stored), pa.schema(target)), True)


def check_column_names(incoming: pa.Schema) -> None:
    """Refuse columns with reserved names.

    Meta columns with their exact names are left to the caller: rows that were read have them.

    Raises:
        InvalidError: a name differs from that of a meta column only in case, which Spark ignores,
            or has the prefix of the columns that writes add.
    """
    reserved = [
        name
        for name in incoming.names
        if (name not in _IGNORED and name.lower() in _IGNORED)
        or name.lower().startswith(_RESERVED_PREFIX)
    ]
    if reserved:
        raise InvalidError(
            f"columns have reserved names: rename or drop them; {_NOTHING_WRITTEN}",
            columns=reserved,
        )


@dataclass(frozen=True, slots=True)
class _Rules:
    allow_missing: bool
    keys: Collection[str]
    ordering: Collection[str]


def _first_schema(rows: Sequence[pa.Field], table: str) -> str:
    if not rows:
        raise InvalidError("rows have no columns; " + _NOTHING_WRITTEN, table=table)
    _check_names([], rows, "")
    return avro_schema(_new_fields(rows), *record_names(table))


def _new_fields(fields: Sequence[pa.Field]) -> pa.Schema:
    schema = pa.schema([_nullable(field) for field in fields])
    # Refuse a column that no query could return.
    query_schema(schema)
    return schema


def _merge_fields(
    stored: Sequence[pa.Field], rows: Sequence[pa.Field], rules: _Rules, path: str
) -> list[pa.Field]:
    """Return the fields of a record: the stored ones in their order, then the new ones."""
    _check_names(stored, rows, path)
    by_name = {field.name: field for field in rows}
    old = {field.name for field in stored} - _IGNORED
    missing = [path + field.name for field in stored if field.name in old - by_name.keys()]
    if missing and not rules.allow_missing:
        raise InvalidError(
            "rows lack columns of the table; " + _NOTHING_WRITTEN,
            missing=missing,
            option="hoodie.write.set.null.for.missing.columns",
        )
    merged = [
        _merge_field(field, by_name.get(field.name), rules, path) if field.name in old else field
        for field in stored
    ]
    return [*merged, *_new_fields([field for field in rows if field.name not in old])]


def _check_names(stored: Sequence[pa.Field], rows: Sequence[pa.Field], path: str) -> None:
    """Refuse columns whose names differ only in case: Spark ignores case."""
    counts = Counter(field.name.lower() for field in rows)
    duplicates = [path + field.name for field in rows if counts[field.name.lower()] > 1]
    if duplicates:
        raise InvalidError("rows have a column twice; " + _NOTHING_WRITTEN, columns=duplicates)
    old = {field.name for field in stored}
    lower = {name.lower(): name for name in old}
    for field in rows:
        if field.name not in old and field.name.lower() in lower:
            raise InvalidError(
                "a column differs from one of the table only in upper and lower case; "
                + _NOTHING_WRITTEN,
                column=path + field.name,
                stored=path + lower[field.name.lower()],
            )


def _merge_field(stored: pa.Field, row: pa.Field | None, rules: _Rules, path: str) -> pa.Field:
    if row is None:
        return stored.with_nullable(True)
    kind = _merge_type(stored.type, row.type, rules, path + stored.name)
    return pa.field(stored.name, kind, stored.nullable or row.nullable)


def _merge_type(stored: pa.DataType, row: pa.DataType, rules: _Rules, column: str) -> pa.DataType:
    if row == stored or pa.types.is_null(row):
        return stored
    if pa.types.is_struct(stored) and pa.types.is_struct(row):
        return pa.struct(_merge_fields(list(stored), list(row), rules, f"{column}."))
    if pa.types.is_list(stored) and pa.types.is_list(row):
        item = _merge_field(stored.value_field, row.value_field, rules, f"{column}.")
        return pa.list_(item)
    if pa.types.is_map(stored) and pa.types.is_map(row) and stored.key_type == row.key_type:
        item = _merge_field(stored.item_field, row.item_field, rules, f"{column}.")
        return pa.map_(stored.key_type, item)
    if _can_cast(stored, row):
        return stored
    if _widens(stored, row):
        _check_use(stored, row, rules, column)
        return row
    raise _incompatible(stored, row, column)


def _can_cast(stored: pa.DataType, row: pa.DataType) -> bool:
    """Whether values of the rows' type can be cast to the stored type."""
    if pa.types.is_timestamp(stored) and pa.types.is_timestamp(row):
        return (stored.tz is None) == (row.tz is None) and row.unit != "ns"
    if pa.types.is_decimal(stored) and pa.types.is_decimal(row):
        return bool(row.scale == stored.scale and row.precision <= stored.precision)
    if pa.types.is_fixed_size_binary(stored) or pa.types.is_fixed_size_binary(row):
        # Spark has no binary type of a fixed size.
        return pa.binary() in (stored, row)
    return row in _NARROWER.get(stored, ())


def _widens(stored: pa.DataType, row: pa.DataType) -> bool:
    if pa.types.is_decimal(stored) and pa.types.is_decimal(row):
        return bool(row.scale == stored.scale and row.precision <= _MAX_DECIMAL_PRECISION)
    return row in _WIDER.get(stored, ())


def _check_use(stored: pa.DataType, row: pa.DataType, rules: _Rules, column: str) -> None:
    # The text of a number changes when it becomes a double (`1`, `1.0`): the same row would get
    # another record key, or another partition.
    if column in rules.keys and row == _DOUBLE:
        raise _incompatible(stored, row, column, "the keys or partitions of its rows would change")
    # Deletes in log files have the old type, which readers do not compare with the new one.
    if column in rules.ordering:
        raise _incompatible(stored, row, column, "it decides which version of a row is newer")


def _incompatible(
    stored: pa.DataType, row: pa.DataType, column: str, reason: str = ""
) -> InvalidError:
    if row in _UNREADABLE.get(stored, ()):
        reason = "Spark could not read the existing files; cast the column, or add another"
    message = "a column cannot take the type of the rows; " + _NOTHING_WRITTEN
    facts = {"reason": reason} if reason else {}
    return InvalidError(message, column=column, stored=str(stored), incoming=str(row), **facts)


def _canonical_field(field: pa.Field) -> pa.Field:
    return pa.field(field.name, _canonical_type(field.type), field.nullable)


def _canonical_type(kind: pa.DataType) -> pa.DataType:
    """Return the canonical type of all types with the same values."""
    if pa.types.is_dictionary(kind):
        return _canonical_type(kind.value_type)
    if pa.types.is_struct(kind):
        return pa.struct([_canonical_field(field) for field in kind])
    if pa.types.is_map(kind):
        item = pa.field("value", _canonical_type(kind.item_type), kind.item_field.nullable)
        return pa.map_(_canonical_type(kind.key_type), item)
    if isinstance(kind, (pa.ListType, pa.LargeListType, pa.FixedSizeListType)):
        return pa.list_(
            pa.field("element", _canonical_type(kind.value_type), kind.value_field.nullable)
        )
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return pa.timestamp(kind.unit, "UTC")
    if pa.types.is_decimal(kind) and kind.precision <= _MAX_DECIMAL_PRECISION:
        return pa.decimal128(kind.precision, kind.scale)
    return _CANONICAL.get(kind, kind)


def _nullable(field: pa.Field) -> pa.Field:
    return pa.field(field.name, _nullable_type(field.type), True)


def _nullable_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct([_nullable(field) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, _nullable(kind.item_field))
    return pa.list_(_nullable(kind.value_field)) if pa.types.is_list(kind) else kind


def _edited(text: str, stored: pa.Schema, target: pa.Schema) -> str:
    tree = _edit_type(json.loads(text), pa.struct(list(stored)), pa.struct(list(target)), "")
    edited = json.dumps(tree, separators=(",", ":"), ensure_ascii=False)
    try:
        succeeded = arrow_schema(edited) == target
    except CorruptError:
        succeeded = False
    if not succeeded:
        # The edited type is one that other columns refer to by name: it changed for all of them.
        raise UnsupportedError(
            "the table's schema uses one type in several places and cannot be changed in one; "
            + _NOTHING_WRITTEN,
            columns=[field.name for field in target if field not in list(stored)],
        )
    return edited


def _edit_type(tree: Any, stored: pa.DataType, target: pa.DataType, namespace: str) -> Any:
    if stored == target:
        return tree
    if isinstance(tree, list):
        return [b if b == "null" else _edit_type(b, stored, target, namespace) for b in tree]
    if not isinstance(tree, dict):
        return _NUMBER_NAMES[target] if tree in _NUMBER_NAMES.values() else tree
    match tree["type"]:
        case "record":
            return _edit_record(tree, stored, target, namespace)
        case "array":
            items = _edit_item(tree["items"], stored.value_field, target.value_field, namespace)
            return {**tree, "items": items}
        case "map":
            values = _edit_item(tree["values"], stored.item_field, target.item_field, namespace)
            return {**tree, "values": values}
        case "fixed":
            size = max(tree["size"], decimal_size(target.precision))
            return {**tree, "size": size, "precision": target.precision}
        case "bytes":
            return {**tree, "precision": target.precision}
        case str(name):
            return _edit_type(name, stored, target, namespace)
        case inner:
            return {**tree, "type": _edit_type(inner, stored, target, namespace)}


def _edit_record(
    tree: dict[str, Any], stored: pa.StructType, target: pa.StructType, namespace: str
) -> dict[str, Any]:
    own = tree.get("namespace", namespace)
    full = tree["name"] if "." in tree["name"] or not own else f"{own}.{tree['name']}"
    space, _, name = full.rpartition(".")
    old = [
        _edit_field(field, stored.field(field["name"]), target.field(field["name"]), space)
        for field in tree["fields"]
    ]
    added = [field for field in target if stored.get_field_index(field.name) < 0]
    new = json.loads(avro_schema(pa.schema(added), name, space))["fields"]
    return {**tree, "fields": [*old, *new]}


def _edit_field(
    tree: dict[str, Any], stored: pa.Field, target: pa.Field, namespace: str
) -> dict[str, Any]:
    edited = {**tree, "type": _edit_item(tree["type"], stored, target, namespace)}
    if stored.nullable or not target.nullable:
        return edited
    if "default" in tree:
        # The default of a union must be of its first type.
        return {**edited, "type": [*edited["type"][1:], "null"]}
    return {**edited, "default": None}


def _edit_item(tree: Any, stored: pa.Field, target: pa.Field, namespace: str) -> Any:
    edited = _edit_type(tree, stored.type, target.type, namespace)
    if stored.nullable or not target.nullable:
        return edited
    return ["null", *edited] if isinstance(edited, list) else ["null", edited]
