"""Partition paths: formatting of partition values as paths, and parsing of paths."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, tzinfo
from enum import StrEnum
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakewright.errors import CorruptError, InvalidError
from lakewright.model.date_patterns import DatePattern, date_pattern, zone
from lakewright.model.record_keys import field_column, value_text

DEFAULT_PARTITION = "__HIVE_DEFAULT_PARTITION__"

_OPTIONS = "hoodie.keygen.timebased."
_OLD_OPTIONS = "hoodie.deltastreamer.keygen.timebased."
_ESCAPED = re.compile("[\x00-\x1f\x7f\"#%'*/:=?\\\\{\\[\\]^]")
_SEPARATED = "\0"
_HEX = re.compile("%([0-9A-Fa-f]{2})")
# Since then, the UTC offsets of all zones are multiples of a quarter of an hour.
_REGULAR_ZONES_SINCE = 63_072_000_000 + 7 * 86_400_000
_QUARTER = 15 * 60 * 1000

# The length of each unit in milliseconds, as numerator and denominator.
_UNITS = {
    "NANOSECONDS": (1, 1_000_000),
    "MICROSECONDS": (1, 1000),
    "MILLISECONDS": (1, 1),
    "SECONDS": (1000, 1),
    "MINUTES": (60_000, 1),
    "HOURS": (3_600_000, 1),
    "DAYS": (86_400_000, 1),
}


class TimeKind(StrEnum):
    """The kind of values in a time-based partition field."""

    UNIX_TIMESTAMP = "UNIX_TIMESTAMP"
    DATE_STRING = "DATE_STRING"
    MIXED = "MIXED"
    EPOCHMILLISECONDS = "EPOCHMILLISECONDS"
    EPOCHMICROSECONDS = "EPOCHMICROSECONDS"
    SCALAR = "SCALAR"


_KIND_UNITS = {
    TimeKind.UNIX_TIMESTAMP: "SECONDS",
    TimeKind.EPOCHMILLISECONDS: "MILLISECONDS",
    TimeKind.EPOCHMICROSECONDS: "MICROSECONDS",
}


@dataclass(frozen=True, slots=True)
class TimeRule:
    """How a time is formatted as a path segment.

    `unit` is the unit of numbers, None if the field holds text. Without an input zone, the zone is
    the one that the text names; without an output zone, it is that of the input. The default is
    UTC.
    """

    output: DatePattern
    unit: str | None = None
    inputs: tuple[DatePattern, ...] = ()
    input_zone: tzinfo | None = None
    output_zone: tzinfo | None = None


@dataclass(frozen=True, slots=True)
class PartitionField:
    """A partition field; `time` is set for a time-based one."""

    name: str
    time: TimeRule | None = None


@dataclass(frozen=True, slots=True)
class PartitionRule:
    """How partition paths are made; without fields all rows are in the base path of the table."""

    fields: tuple[PartitionField, ...] = ()
    hive_style: bool = False
    url_encoded: bool = False
    slashes_for_dashes: bool = False
    timestamps_as_text: bool = False


def partition_rule(
    generator: str, fields: Sequence[str], options: Mapping[str, str]
) -> PartitionRule:
    """Return the rule of a key generator, given its type and fields as in the table properties.

    Dashes are replaced by slashes only for a single field, or by the CUSTOM generator.
    """
    kind = generator.upper().removesuffix("_AVRO")
    flags = {
        "hive_style": _flag(options, "hoodie.datasource.write.hive_style_partitioning"),
        "url_encoded": _flag(options, "hoodie.datasource.write.partitionpath.urlencode"),
        "timestamps_as_text": _flag(
            options, "hoodie.datasource.write.keygenerator.consistent.logical.timestamp.enabled"
        ),
        "slashes_for_dashes": (kind == "CUSTOM" or len(fields) == 1)
        and _flag(options, "hoodie.datasource.write.slash.separated.date.partitioning"),
    }
    if kind == "NON_PARTITION":
        return PartitionRule()
    if kind == "CUSTOM":
        return PartitionRule(tuple(_custom_field(field, options) for field in fields), **flags)
    if kind == "TIMESTAMP":
        if len(fields) != 1:
            raise InvalidError("a time-based key generator has one partition field", fields=fields)
        return PartitionRule((PartitionField(fields[0], time_rule(options)),), **flags)
    return PartitionRule(tuple(PartitionField(field) for field in fields), **flags)


def time_rule(options: Mapping[str, str]) -> TimeRule:
    """Return the rule of the options `hoodie.keygen.timebased.*` or their older names."""
    kind = _time_kind(_option(options, "timestamp.type"))
    unit = _KIND_UNITS.get(kind)
    if kind is TimeKind.SCALAR:
        unit = _option(options, "timestamp.scalar.time.unit", "SECONDS").upper()
    if unit is not None and unit not in _UNITS:
        raise InvalidError("unknown time unit", unit=unit, known=sorted(_UNITS))
    inputs: tuple[DatePattern, ...] = ()
    if kind in (TimeKind.DATE_STRING, TimeKind.MIXED):
        separator = _option(options, "input.dateformat.list.delimiter.regex", "").strip() or ","
        patterns = _split_by(separator, _option(options, "input.dateformat"))
        inputs = tuple(date_pattern(text.strip()) for text in patterns)
    common_zone = _option(options, "timezone", "")
    return TimeRule(
        date_pattern(_option(options, "output.dateformat")),
        unit,
        inputs,
        _zone(common_zone or _option(options, "input.timezone", "")),
        _zone(common_zone or _option(options, "output.timezone", "")),
    )


def partition_paths(rows: pa.Table, rule: PartitionRule, *, strict: bool = False) -> pa.Array:
    """Return the partition path of each row; `strict` refuses ambiguous values.

    Raises:
        InvalidError: a field has a type or a value for which there is no path.
    """
    if not rule.fields:
        return pa.array([""] * rows.num_rows, pa.string())
    segments = [_segments(rows, field, rule, strict=strict) for field in rule.fields]
    return pc.binary_join_element_wise(*segments, "/")


def partition_values(
    path: str,
    fields: Sequence[str],
    *,
    hive_style: bool,
    url_encoded: bool,
    slashes_for_dashes: bool = False,
) -> tuple[str | None, ...]:
    """Return the value of each field in a partition path as text; None for null or empty."""
    if not fields:
        return ()
    segments = _split(path, fields, hive_style=hive_style)
    values = []
    for name, segment in zip(fields, segments, strict=True):
        text = segment.removeprefix(f"{name}=") if hive_style else segment
        if slashes_for_dashes:
            text = text.replace("/", "-")
        text = unescape(text) if url_encoded else text
        values.append(None if text == DEFAULT_PARTITION else text)
    return tuple(values)


def escape(value: str) -> str:
    """Return a value as path segment, with characters that are not allowed as `%XX`."""
    return _ESCAPED.sub(lambda match: f"%{ord(match[0]):02X}", value)


def unescape(text: str) -> str:
    """Return the value of an escaped path segment; the inverse of `escape`."""
    return _HEX.sub(lambda match: chr(int(match[1], 16)), text)


def _split(path: str, fields: Sequence[str], *, hive_style: bool) -> list[str]:
    segments = path.split("/")
    if len(segments) == len(fields):
        return segments
    if len(fields) == 1:
        return [path]
    # A value that contains a slash spans several levels: only `name=` separates the fields.
    starts = [i for i, s in enumerate(segments) if hive_style and "=" in s]
    names = [segments[i].split("=")[0] for i in starts]
    if names != list(fields) or starts[:1] != [0]:
        raise CorruptError("a partition path does not fit the partition fields", path=path)
    ends = [*starts[1:], len(segments)]
    return ["/".join(segments[a:b]) for a, b in zip(starts, ends, strict=True)]


def _segments(
    rows: pa.Table, field: PartitionField, rule: PartitionRule, *, strict: bool
) -> pa.Array:
    column = field_column(rows, field.name)
    prefix = f"{field.name}=" if rule.hive_style else ""

    def segment(text: str | None) -> str:
        if strict and text and field.time is None:
            _refuse_ambiguous(text, field.name, rule)
        value = text or DEFAULT_PARTITION
        value = prefix + (escape(value) if rule.url_encoded else value)
        return value.replace("-", "/") if rule.slashes_for_dashes and not field.time else value

    if field.time is None:
        texts = value_text(column, field.name, timestamps_as_text=rule.timestamps_as_text)
    else:
        texts = _time_texts(column, field, field.time, rule)
    return _mapped(texts, segment)


def _refuse_ambiguous(text: str, field: str, rule: PartitionRule) -> None:
    """Raise InvalidError for a value whose path could also be that of another value.

    A slash in a value begins another level. With several fields, only `name=` says which field a
    level belongs to; if dashes become slashes, values with either have the same path.
    """
    reason = ""
    if text == DEFAULT_PARTITION:
        reason = "it is where rows without a value go: write NULL"
    elif "/" in text and not rule.url_encoded:
        has_several = len(rule.fields) > 1
        name_prefixes = [f"/{other.name}=" for other in rule.fields]
        if rule.slashes_for_dashes:
            reason = "a dash in its place gives the same path: write dashes"
        elif has_several and not rule.hive_style:
            reason = (
                "a slash makes another level of the path: create the table with "
                "hoodie.datasource.write.partitionpath.urlencode=true"
            )
        elif has_several and any(prefix in text for prefix in name_prefixes):
            reason = "it holds a slash and the name of a partition field: change the value"
    if reason:
        raise InvalidError(
            f"a value of a partition field could be taken for another: {reason}",
            field=field,
            value=text,
        )


def _mapped(column: pa.Array, function: Callable[[Any], str]) -> pa.Array:
    """Map each value, null included, calling the function once for each distinct value."""
    encoded = column.dictionary_encode(null_encoding="encode")
    results = [function(value) for value in encoded.dictionary.to_pylist()]
    return pa.array(results, pa.string()).take(encoded.indices)


def _time_texts(
    column: pa.Array, field: PartitionField, time: TimeRule, rule: PartitionRule
) -> pa.Array:
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        return _mapped(column, lambda text: _reformatted(text, field, time))
    millis = _millis(column, field, time, rule)
    output_zone = time.output_zone or UTC
    distinct, index = np.unique(_rounded_down(millis, time.output), return_inverse=True)
    texts = pa.array(
        [time.output.format(int(value), output_zone) for value in distinct], pa.string()
    )
    return texts.take(pa.array(index))


def _rounded_down(millis: npt.NDArray[np.int64], pattern: DatePattern) -> npt.NDArray[np.int64]:
    """Round times down to the resolution of the pattern, which leaves far fewer distinct ones."""
    step = pattern.finest_millis
    if not pattern.shows_minutes and len(millis) and millis.min() > _REGULAR_ZONES_SINCE:
        step = _QUARTER
    return millis - millis % step


def _millis(
    column: pa.Array, field: PartitionField, time: TimeRule, rule: PartitionRule
) -> npt.NDArray[np.int64]:
    """Return the times of a column in milliseconds; null counts as one unit after 1970."""
    kind = column.type
    if pa.types.is_timestamp(kind) and rule.timestamps_as_text:
        moments = column.cast(pa.timestamp("ms", kind.tz), safe=False).cast(pa.int64())
        missing = _in_millis(1, time, field) if column.null_count else 0
        return np.asarray(pc.fill_null(moments, missing))
    if pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        column = pa.array([None if v is None else int(v) for v in column.to_pylist()])
    elif pa.types.is_date(kind):
        column = column.cast(pa.int32())
    elif not (pa.types.is_integer(kind) or pa.types.is_timestamp(kind)):
        raise InvalidError("a field of this type holds no times", field=field.name, type=str(kind))
    numbers: npt.NDArray[np.int64] = np.asarray(pc.fill_null(column.cast(pa.int64()), 1))
    factor, divisor = _unit(time, field)
    # Integer division in Java rounds towards zero.
    millis: npt.NDArray[np.int64] = np.sign(numbers) * (np.abs(numbers) // divisor) * factor
    return millis


def _in_millis(value: int, time: TimeRule, field: PartitionField) -> int:
    factor, divisor = _unit(time, field)
    return value // divisor * factor


def _unit(time: TimeRule, field: PartitionField) -> tuple[int, int]:
    if time.unit is None:
        raise InvalidError("a field that must hold dates as text holds numbers", field=field.name)
    return _UNITS[time.unit]


def _reformatted(text: str | None, field: PartitionField, time: TimeRule) -> str:
    if not time.inputs:
        raise InvalidError("a field that must hold numbers holds text", field=field.name)
    if text is None:
        # Hudi's writers use one millisecond after 1970, in the first pattern, for null.
        text = time.inputs[0].format(1, time.input_zone or time.output_zone or UTC)
    for pattern in time.inputs:
        moment = pattern.parse(text, time.input_zone)
        if moment is not None:
            millis, input_zone = moment
            return time.output.format(millis, time.output_zone or input_zone)
    raise InvalidError(
        "a date does not follow any of its patterns",
        field=field.name,
        value=text,
        patterns=[pattern.text for pattern in time.inputs],
    )


def _custom_field(field: str, options: Mapping[str, str]) -> PartitionField:
    name, _, kind = field.partition(":")
    match kind.upper():
        case "SIMPLE":
            return PartitionField(name)
        case "TIMESTAMP":
            return PartitionField(name, time_rule(options))
    raise InvalidError("a partition field is not `name:simple` or `name:timestamp`", field=field)


def _time_kind(text: str) -> TimeKind:
    try:
        return TimeKind(text)
    except ValueError as error:
        kinds = [str(kind) for kind in TimeKind]
        raise InvalidError("unknown type of timestamps", type=text, known=kinds) from error


def _split_by(separator: str, text: str) -> list[str]:
    """Split a text by a regular expression, in bounded time since both come from the table.

    Arrow's engine runs in linear time; it has no features such as backreferences, which can take
    exponential time. Matches are replaced and the text split afterwards, because Arrow's own split
    does not terminate for an expression that matches the empty string.
    """
    try:
        marked = pc.replace_substring_regex(
            pa.scalar(text), pattern=separator, replacement=_SEPARATED
        )
    except pa.ArrowInvalid as error:
        raise InvalidError(
            "this regular expression cannot be used to separate date patterns",
            option=_OPTIONS + "input.dateformat.list.delimiter.regex",
            regex=separator,
            reason=str(error),
        ) from error
    return str(marked.as_py()).split(_SEPARATED)


def _zone(name: str) -> tzinfo | None:
    return zone(name.strip()) if name.strip() else None


def _flag(options: Mapping[str, str], key: str) -> bool:
    return options.get(key, "").strip().lower() == "true"


def _option(options: Mapping[str, str], name: str, default: str | None = None) -> str:
    value = options.get(_OPTIONS + name, options.get(_OLD_OPTIONS + name, default))
    if value is None:
        raise InvalidError("a time-based key generator lacks an option", option=_OPTIONS + name)
    return value
