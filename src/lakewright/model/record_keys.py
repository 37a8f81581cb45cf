"""Record keys: formatting of key fields as one string, parsing of keys, and their buckets.

Values are formatted exactly as in Java, so that Hudi's writers compute the same keys.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakewright.errors import InvalidError, UnsupportedError
from lakewright.model.hashing import bucket_of, buckets_of
from lakewright.model.instant import InstantTime

NULL_TEXT = "__null__"
EMPTY_TEXT = "__empty__"

_PLAIN_GENERATORS = frozenset({"SIMPLE", "TIMESTAMP"})
_ANY_GENERATORS = frozenset({"CUSTOM", "NON_PARTITION", "GLOBAL_DELETE"})
_BINARY = (pa.binary(), pa.large_binary(), pa.binary_view())
_TRAILING_ZEROS = r"(\.\d+?)0+$"


@dataclass(frozen=True, slots=True)
class KeyRule:
    """The key fields of a table.

    With `names_fields`, keys are `field:value,field:value`, otherwise the value.

    `timestamps_as_text` formats timestamps as date and time, not as numbers.
    """

    fields: tuple[str, ...]
    names_fields: bool = False
    timestamps_as_text: bool = False


def key_rule(
    generator: str,
    fields: Sequence[str],
    *,
    names_single_field: bool = True,
    timestamps_as_text: bool = False,
) -> KeyRule:
    """Return the rule of a key generator, given its type as in the table properties.

    `names_single_field` says whether the COMPLEX generator names a single field too: always in
    table version 9; in version 8 unless its writers are configured otherwise.
    """
    kind = generator.upper().removesuffix("_AVRO") or ("COMPLEX" if len(fields) > 1 else "SIMPLE")
    several = len(fields) > 1
    if not fields:
        raise UnsupportedError("the table has no key fields: its keys are generated")
    if kind == "COMPLEX":
        return KeyRule(tuple(fields), several or names_single_field, timestamps_as_text)
    if kind in _ANY_GENERATORS or (kind in _PLAIN_GENERATORS and not several):
        return KeyRule(tuple(fields), several, timestamps_as_text)
    if kind in _PLAIN_GENERATORS:
        raise InvalidError("a key generator for one field has several", generator=kind)
    raise UnsupportedError("keys of this key generator are not known", generator=generator)


def record_keys(rows: pa.Table, rule: KeyRule, *, strict: bool = False) -> pa.Array:
    """Return the record key of each row; `strict` refuses ambiguous values.

    Raises:
        InvalidError: a row has no key, or a key field has a type that keys cannot have.
    """
    texts = [
        value_text(field_column(rows, name), name, timestamps_as_text=rule.timestamps_as_text)
        for name in rule.fields
    ]
    has_value = [np.asarray(pc.fill_null(pc.not_equal(text, ""), False)) for text in texts]
    keyless = ~np.any(has_value, axis=0)
    if keyless.any():
        raise InvalidError("rows have no record key", fields=rule.fields, rows=int(keyless.sum()))
    if not rule.names_fields:
        return texts[0]
    if strict:
        _refuse_ambiguous(rule.fields, texts)
    parts: list[pa.Array | pa.Scalar] = []
    for name, text in zip(rule.fields, texts, strict=True):
        value = pc.fill_null(pc.if_else(pc.equal(text, ""), EMPTY_TEXT, text), NULL_TEXT)
        parts += [pa.scalar(f",{name}:" if parts else f"{name}:"), value]
    return pc.binary_join_element_wise(*parts, "")


def _refuse_ambiguous(fields: Sequence[str], texts: Sequence[pa.Array]) -> None:
    """Raise InvalidError for values by which two different rows could have the same key.

    A key of several fields has no escaping: a value that contains the name prefix of the next field
    is ambiguous, as are the texts that stand for null and for the empty string.
    """
    for (name, next_field), text in zip(pairwise((*fields, "")), texts, strict=True):
        reserved = pa.array([NULL_TEXT, EMPTY_TEXT] if len(fields) > 1 else [], pa.string())
        is_ambiguous = pc.is_in(text, reserved)
        if next_field:
            is_ambiguous = pc.or_kleene(is_ambiguous, pc.match_substring(text, f",{next_field}:"))
        ambiguous = text.filter(is_ambiguous)
        if len(ambiguous):
            raise InvalidError(
                "the key of a row could be that of another row: in a key field of several no "
                f"value is {NULL_TEXT} or {EMPTY_TEXT}, or holds a comma, the next field's name "
                "and a colon; change the value",
                field=name,
                value=ambiguous[0].as_py(),
                rows=len(ambiguous),
            )


def generated_keys(instant: InstantTime, writer: int, first: int, count: int) -> pa.Array:
    """Return keys for rows of a table without key fields, unique by instant, writer and number."""
    numbers = pa.array(np.arange(first, first + count)).cast(pa.string())
    return pc.binary_join_element_wise(pa.scalar(f"{instant}_{writer}_"), numbers, "")


def field_column(rows: pa.Table, name: str) -> pa.Array:
    """Return a column, or with a dotted name a field of a struct column; null in null structs."""
    head, *inner = [name] if name in rows.column_names else name.split(".")
    if head not in rows.column_names:
        raise InvalidError("rows lack a field", field=name, columns=rows.column_names)
    column = rows.column(head).combine_chunks()
    for part in inner:
        if not pa.types.is_struct(column.type) or column.type.get_field_index(part) < 0:
            raise InvalidError("rows lack a field", field=name, columns=rows.column_names)
        column = pc.struct_field(column, part)
    return column


def value_text(column: pa.Array, name: str, *, timestamps_as_text: bool = False) -> pa.Array:
    """Return each value as text, formatted as in Java; null stays null."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        return value_text(column.cast(kind.value_type), name, timestamps_as_text=timestamps_as_text)
    if pa.types.is_timestamp(kind):
        zoned = kind.tz is not None
        return _timestamp_text(column) if timestamps_as_text and zoned else _number_text(column)
    if pa.types.is_time(kind):
        return _number_text(column)
    if pa.types.is_floating(kind):
        return _by_value(column, java_float if pa.types.is_float32(kind) else java_double)
    if pa.types.is_fixed_size_binary(kind) or kind in _BINARY:
        return _by_value(column, bytes.hex)
    if pa.types.is_nested(kind):
        raise InvalidError("a field of this type makes no key", field=name, type=str(kind))
    return column.cast(pa.string())


def java_double(value: float) -> str:
    """Format a double as Java does: plain from 0.001 up to 10 million, else with an exponent."""
    return _java_number(value, repr(float(value)), sys.float_info.min)


def java_float(value: float) -> str:
    """Format a float as Java does."""
    narrow = np.float32(value)
    shortest = np.format_float_scientific(narrow, trim="-")
    return _java_number(float(narrow), shortest, float(np.finfo(np.float32).tiny))


def hash_keys(record_key: str, fields: Sequence[str] = ()) -> tuple[str | None, ...]:
    """Return the values of a record key that determine its bucket: those of `fields`, or all.

    As in Hudi, a key without comma or without colon is used as a whole, whatever its fields are.
    """
    if "," not in record_key or ":" not in record_key:
        return (record_key,)
    values: list[str | None] = []
    start = 0
    while start < len(record_key):
        colon = record_key.find(":", start)
        end = _value_end(record_key, colon)
        if not fields or record_key[start:colon] in fields:
            values.append(_stored_value(record_key[colon + 1 : end]))
        start = end + 1
    return tuple(values) or (record_key,)


def bucket_ids(
    keys: pa.Array, rule: KeyRule, hash_fields: Sequence[str], buckets: int
) -> npt.NDArray[np.int32]:
    """Return the bucket of each record key."""
    has_both = pc.and_(pc.match_substring(keys, ","), pc.match_substring(keys, ":"))
    composed = np.asarray(has_both)
    ids = buckets_of([keys], buckets)
    if not composed.any():
        return ids
    unparsed = composed.copy()
    # Keys whose values contain neither comma nor colon are parsed by one expression, vectorized.
    groups = [f"{re.escape(name)}:(?P<v{i}>[^:,]*)" for i, name in enumerate(rule.fields)]
    values = pc.extract_regex(keys, f"^(?s:{','.join(groups)})$")
    simple = composed & np.asarray(values.is_valid())
    if simple.any() and len(rule.fields) > 1:
        positions = [i for i, n in enumerate(rule.fields) if not hash_fields or n in hash_fields]
        columns = values.filter(pa.array(simple)).flatten()
        if positions:
            ids[simple] = buckets_of([_stored_values(columns[i]) for i in positions], buckets)
            unparsed &= ~simple
    for row in np.flatnonzero(unparsed):
        ids[row] = bucket_of(hash_keys(keys[int(row)].as_py(), hash_fields), buckets)
    return ids


def _value_end(key: str, colon: int) -> int:
    """Return where a value ends: at the last comma before the next colon, or at the key's end."""
    comma = key.find(",", colon)
    next_colon = key.find(":", comma) if comma >= 0 else -1
    return key.rfind(",", colon, next_colon) if next_colon >= 0 else len(key)


def _stored_value(text: str) -> str | None:
    if text == NULL_TEXT:
        return None
    return "" if text == EMPTY_TEXT else text


def _stored_values(column: pa.Array) -> pa.Array:
    with_empty = pc.if_else(pc.equal(column, EMPTY_TEXT), "", column)
    return pc.if_else(pc.equal(column, NULL_TEXT), pa.scalar(None, pa.string()), with_empty)


def _number_text(column: pa.Array) -> pa.Array:
    integer_type = pa.int32() if pa.types.is_time32(column.type) else pa.int64()
    return column.cast(integer_type).cast(pa.string())


def _timestamp_text(column: pa.Array) -> pa.Array:
    local = column.cast(pa.timestamp("us"))
    return pc.replace_substring_regex(
        pc.strftime(local, format="%Y-%m-%d %H:%M:%S"), _TRAILING_ZEROS, r"\1"
    )


def _by_value(column: pa.Array, format_value: Callable[[Any], str]) -> pa.Array:
    encoded = column.dictionary_encode()
    texts = pa.array([format_value(value) for value in encoded.dictionary.to_pylist()], pa.string())
    return texts.take(encoded.indices)


def _java_number(value: float, shortest: str, smallest_normal: float) -> str:
    if value != value:
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "Infinity" if value > 0 else "-Infinity"
    if value == 0:
        return "-0.0" if str(value).startswith("-") else "0.0"
    sign, digits, exponent = Decimal(shortest).as_tuple()
    text = "".join(map(str, digits)).rstrip("0") or "0"
    point = len(digits) + int(exponent)
    if len(text) == 1 and abs(value) < smallest_normal:
        # Java prints at least two digits; of a subnormal number the second one is significant.
        mantissa, _, power = f"{abs(value):.1e}".partition("e")
        text, point = mantissa.replace(".", ""), int(power) + 1
    minus = "-" if sign else ""
    if 1e-3 <= abs(value) < 1e7:
        whole = text[:point].ljust(point, "0") if point > 0 else "0"
        fraction = text[point:] if point > 0 else "0" * -point + text
        return f"{minus}{whole}.{fraction or '0'}"
    return f"{minus}{text[0]}.{text[1:] or '0'}E{point - 1}"
