"""Partition pruning: which partition columns a file's path tells, and what filters say of them."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lakewright.core.table_config import TableConfig

# Only characters that stand for themselves in a folder name, in a URI and in a glob.
_SAFE = re.compile(r"[A-Za-z0-9_.-]+")
_INTEGER = re.compile(r"0|-?[1-9][0-9]*")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_DEFAULT = "__HIVE_DEFAULT_PARTITION__"
# Key generators that write a partition value into the path as it is.
_PLAIN_GENERATORS = frozenset({"SIMPLE", "COMPLEX", "SIMPLE_AVRO", "COMPLEX_AVRO"})

Value = str | int | date


@dataclass(frozen=True, slots=True)
class PathColumn:
    """A partition column whose value is a segment of the partition's path.

    - `position` and `depth` count segments from the path's beginning (0) and from its end (1);
    - `kind` is the column's Arrow type as text;
    - `prefix` stands before the value (`name=` in hive style);
    - `span` is where in the path the segment begins and how long it is, if that is the same in all
      partitions.
    """

    name: str
    position: int
    depth: int
    kind: str
    prefix: str = ""
    span: tuple[int, int] | None = None

    def value(self, partition: str) -> Value:
        """The column's value in all rows of a partition."""
        text = partition.split("/")[self.position][len(self.prefix) :]
        if self.kind == "string":
            return text
        return date.fromisoformat(text) if self.kind.startswith("date") else int(text)


def path_columns(
    config: TableConfig, schema: pa.Schema, partitions: Iterable[str]
) -> tuple[PathColumn, ...]:
    """The partition columns that can be told from the path in every one of these partitions.

    A value that is null, empty, encoded, or written in another form than the column's own keeps
    its column out, for then path and column differ and only the column is right.
    """
    fields = config.partition_fields
    slashed = config.flag("hoodie.datasource.write.slash.separated.date.partitioning")
    if not fields or slashed or config.key_generator not in _PLAIN_GENERATORS:
        return ()
    split = [partition.split("/") for partition in partitions]
    if not split or any(len(segments) != len(fields) for segments in split):
        return ()
    found = []
    start: int | None = 0
    for position, name in enumerate(fields):
        pattern = _pattern(schema, name)
        prefix = f"{name}=" if config.hive_style else ""
        segments = {item[position] for item in split}
        lengths = {len(segment) for segment in segments}
        span = (start, max(lengths)) if start is not None and len(lengths) == 1 else None
        start = start + max(lengths) + 1 if span is not None and start is not None else None
        if pattern is not None and all(_tells(text, prefix, pattern) for text in segments):
            kind = str(schema.field(name).type)
            depth = len(fields) - position
            found.append(PathColumn(name, position, depth, kind, prefix, span))
    return tuple(found)


def _pattern(schema: pa.Schema, name: str) -> re.Pattern[str] | None:
    if name not in schema.names:
        return None
    kind = schema.field(name).type
    if pa.types.is_string(kind):
        return _SAFE
    if pa.types.is_date32(kind):
        return _DATE
    return _INTEGER if pa.types.is_int32(kind) or pa.types.is_int64(kind) else None


def _tells(segment: str, prefix: str, pattern: re.Pattern[str]) -> bool:
    if not segment.startswith(prefix):
        return False
    value = segment[len(prefix) :]
    return value != _DEFAULT and pattern.fullmatch(value) is not None


@dataclass(frozen=True, slots=True)
class Comparison:
    """A filter on one column: `operator` is one of =, <, <=, >, >=, in; `value` as in Spark."""

    column: str
    operator: str
    value: object


@dataclass(frozen=True, slots=True)
class RowFilter:
    """A filter on rows.

    `comparisons` are those of its parts that every row must pass: they tell which partitions are
    worth reading.
    """

    expression: pc.Expression
    columns: tuple[str, ...]
    comparisons: tuple[Comparison, ...] = ()


_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def may_match(partition: str, columns: Sequence[PathColumn], filters: Iterable[Comparison]) -> bool:
    """Whether a partition can hold rows that pass all filters; in doubt it can."""
    known = {column.name: column for column in columns}
    return all(_passes(known[f.column].value(partition), f) for f in filters if f.column in known)


def _passes(value: Value, comparison: Comparison) -> bool:
    wanted = comparison.value
    if comparison.operator == "in":
        if not isinstance(wanted, tuple | list | frozenset | set):
            return True
        same_kind = all(isinstance(item, type(value)) for item in wanted)
        return not same_kind or value in wanted
    if not isinstance(wanted, type(value)):
        return True
    compare = _COMPARE.get(comparison.operator)
    return compare is None or compare(value, wanted)
