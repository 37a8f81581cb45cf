"""Scan plans: the file slices, columns and versions that a query reads, and partition pruning.

A plan is a value; `encode_plan` makes a text of it that fits into an option of a Spark data source.
Pruning uses the partition columns whose value can be derived from the partition path.
"""

from __future__ import annotations

import base64
import json
import operator
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import date
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lakewright.errors import InvalidError, UnsupportedError
from lakewright.model.file_group import BaseFile, FileSlice, LogFile
from lakewright.model.merge import MergeRule
from lakewright.model.schema import COMMIT_TIME, IS_DELETED, OPERATION, RECORD_KEY, select_fields
from lakewright.model.table_config import MergeMode, TableConfig
from lakewright.utils.bin_packing import pack_by_size

# Only characters that have no special meaning in a folder name, a URI or a glob.
_PLAIN_STRING = re.compile(r"[A-Za-z0-9_.-]+")
_INTEGER = re.compile(r"0|-?[1-9][0-9]*")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_DEFAULT_PARTITION = "__HIVE_DEFAULT_PARTITION__"
# Key generators that write a partition value into the path as it is.
_PLAIN_KEY_GENERATORS = frozenset({"SIMPLE", "COMPLEX", "SIMPLE_AVRO", "COMPLEX_AVRO"})

Value = str | int | date


@dataclass(frozen=True, slots=True)
class PathColumn:
    """A partition column whose value is a segment of the partition path.

    - `position` and `depth` count segments from the path's start (0) and from its end (1);
    - `kind` is the column's Arrow type as text;
    - `prefix` precedes the value (`name=` in Hive style);
    - `span` is where the segment begins in the path, and its length, if both are the same in all
      partitions.
    """

    name: str
    position: int
    depth: int
    kind: str
    prefix: str = ""
    span: tuple[int, int] | None = None

    def value(self, partition: str) -> Value:
        """Return the column's value in all rows of a partition."""
        text = partition.split("/")[self.position][len(self.prefix) :]
        if self.kind == "string":
            return text
        return date.fromisoformat(text) if self.kind.startswith("date") else int(text)


def path_columns(
    config: TableConfig, schema: pa.Schema, partitions: Iterable[str]
) -> tuple[PathColumn, ...]:
    """Return the partition columns whose value the path shows in all of these partitions.

    A column with a value that is null, empty, encoded, or written in another form than the column's
    own is left out: there path and column differ, and only the column is right.
    """
    fields = config.partition_fields
    slashed = config.flag("hoodie.datasource.write.slash.separated.date.partitioning")
    if not fields or slashed or config.key_generator not in _PLAIN_KEY_GENERATORS:
        return ()
    split_paths = [partition.split("/") for partition in partitions]
    if not split_paths or any(len(segments) != len(fields) for segments in split_paths):
        return ()
    columns = []
    start: int | None = 0
    for position, name in enumerate(fields):
        pattern = _value_pattern(schema, name)
        prefix = f"{name}=" if config.hive_style else ""
        segments = {path[position] for path in split_paths}
        lengths = {len(segment) for segment in segments}
        span = (start, max(lengths)) if start is not None and len(lengths) == 1 else None
        start = start + max(lengths) + 1 if span is not None and start is not None else None
        if pattern is not None and all(_is_plain_value(text, prefix, pattern) for text in segments):
            kind = str(schema.field(name).type)
            depth = len(fields) - position
            columns.append(PathColumn(name, position, depth, kind, prefix, span))
    return tuple(columns)


def _value_pattern(schema: pa.Schema, name: str) -> re.Pattern[str] | None:
    if name not in schema.names:
        return None
    kind = schema.field(name).type
    if pa.types.is_string(kind):
        return _PLAIN_STRING
    if pa.types.is_date32(kind):
        return _DATE
    return _INTEGER if pa.types.is_int32(kind) or pa.types.is_int64(kind) else None


def _is_plain_value(segment: str, prefix: str, pattern: re.Pattern[str]) -> bool:
    if not segment.startswith(prefix):
        return False
    value = segment[len(prefix) :]
    return value != _DEFAULT_PARTITION and pattern.fullmatch(value) is not None


@dataclass(frozen=True, slots=True)
class Comparison:
    """A filter on one column: `operator` is =, <, <=, >, >= or in; `value` is as in Spark."""

    column: str
    operator: str
    value: object


@dataclass(frozen=True, slots=True)
class RowFilter:
    """A filter on rows.

    `comparisons` are those parts that every row must pass: partition pruning uses them.
    """

    expression: pc.Expression
    columns: tuple[str, ...]
    comparisons: tuple[Comparison, ...] = ()


_OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def may_match(partition: str, columns: Sequence[PathColumn], filters: Iterable[Comparison]) -> bool:
    """Whether a partition may contain rows that pass all filters."""
    by_name = {column.name: column for column in columns}
    return all(
        _may_pass(by_name[condition.column].value(partition), condition)
        for condition in filters
        if condition.column in by_name
    )


def _may_pass(value: Value, comparison: Comparison) -> bool:
    operand = comparison.value
    if comparison.operator == "in":
        if not isinstance(operand, tuple | list | frozenset | set):
            return True
        same_type = all(isinstance(item, type(value)) for item in operand)
        return not same_type or value in operand
    if not isinstance(operand, type(value)):
        return True
    compare = _OPERATORS.get(comparison.operator)
    return compare is None or compare(value, operand)


# As in Spark's own scans: opening a file costs about as much as reading this many bytes.
_OPEN_COST = 4 << 20
_TASK_BYTES = 64 << 20
# Small scans are spread over a few cores, if each part is worth a task.
_SPREAD_TASKS = 8
_SPREAD_BYTES = 8 << 20
# A mask reads the log files twice: that pays off if they are small compared with the base file.
_MIN_BASE_TO_LOG_RATIO = 4
_MIN_MASKED_BYTES = 128 << 20
# The mask is broadcast: it must fit into memory, and be computed before Spark's broadcast timeout.
_MAX_MASKED_LOG_BYTES = 64 << 20
_MAX_MASKED_BASE_BYTES = 32 << 30
# No table can have these columns: they begin like meta columns.
ROW, FILE = "_hoodie_lakewright_row", "_hoodie_lakewright_file"


@dataclass(frozen=True)
class ScanPlan:
    """The file slices of a query, and how their rows are read.

    `schema` is the table's whole query schema, `columns` are those that the query returns.
    `commits`, if set, selects only rows that one of these instants wrote. `path_columns` are the
    partition columns whose value can be derived from a file's path, so that a filter on them prunes
    files.
    """

    schema: pa.Schema
    columns: tuple[str, ...]
    slices: tuple[FileSlice, ...]
    rule: MergeRule
    commits: frozenset[str] | None = None
    path_columns: tuple[PathColumn, ...] = ()

    @property
    def result_schema(self) -> pa.Schema:
        """The schema of the rows that the query returns."""
        return select_fields(self.schema, self.columns)

    @property
    def merge_schema(self) -> pa.Schema:
        """The result's columns, and those that merging needs."""
        needed = [RECORD_KEY, *self.rule.ordering, IS_DELETED]
        if self.rule.delete_marker is not None:
            needed.append(self.rule.delete_marker[0])
        if self.commits is not None:
            needed.append(COMMIT_TIME)
        unselected = set(self.schema.names).difference(self.columns)
        extra = [name for name in needed if name in unselected]
        selected = select_fields(self.schema, (*self.columns, *dict.fromkeys(extra)))
        # A meta column that only changelog writers add: it is in their files, not in the schema.
        has_operation = OPERATION in selected.names
        return selected if has_operation else selected.append(pa.field(OPERATION, pa.string()))

    @property
    def partition_columns_from_path(self) -> tuple[PathColumn, ...]:
        """The columns of the result that can be derived from a file's path."""
        return tuple(column for column in self.path_columns if column.name in self.columns)

    @property
    def key_schema(self) -> pa.Schema:
        """The columns by which base rows and log rows are compared."""
        return select_fields(self.schema, (RECORD_KEY, *self.rule.ordering))

    @property
    def overwritten_schema(self) -> pa.Schema:
        """How an overwritten base row is identified: row number, file, partition columns."""
        partition_fields = [
            self.schema.field(column.name) for column in self.partition_columns_from_path
        ]
        return pa.schema(
            [pa.field(ROW, pa.int64()), pa.field(FILE, pa.string()), *partition_fields]
        )

    def with_slices(self, slices: Iterable[FileSlice]) -> ScanPlan:
        """Return the same query on other slices."""
        return replace(self, slices=tuple(slices))

    @property
    def base_only(self) -> ScanPlan:
        """The slices without log files: they need no merging."""
        return self.with_slices(s for s in self.slices if not s.logs)

    @cached_property
    def masked(self) -> ScanPlan:
        """The slices whose base files Spark reads itself, without the rows that log files changed.

        This pays off if most rows are unchanged: those do not pass through a Python worker. The
        rows to leave out are broadcast to all tasks, so they must not be too many.
        """
        if self.commits is not None or "_metadata" in self.schema.names:
            return self.with_slices(())
        with_logs = [item for item in self.slices if item.logs]
        name_counts = (
            Counter(item.base.name for item in self.slices if item.base) if with_logs else {}
        )
        selected, log_room, base_room = [], _MAX_MASKED_LOG_BYTES, _MAX_MASKED_BASE_BYTES
        for item in sorted(with_logs, key=lambda s: s.log_size):
            if item.base is None or item.full_slice is not None:
                continue
            # With non-blocking concurrency, file groups of several partitions have the same id.
            unique = name_counts[item.base.name] == 1
            few_changes = item.log_size * _MIN_BASE_TO_LOG_RATIO <= item.base.size
            if unique and few_changes and item.log_size <= log_room and item.base.size <= base_room:
                selected.append(item)
                log_room -= item.log_size
                base_room -= item.base.size
        worthwhile = sum(item.size for item in selected) >= _MIN_MASKED_BYTES
        return self.with_slices(selected if worthwhile else ())

    @property
    def merge_on_read(self) -> ScanPlan:
        """The slices whose base rows must be merged with log files one by one."""
        masked = set(self.masked.slices)
        return self.with_slices(s for s in self.slices if s.logs and s not in masked)

    def tasks(self) -> list[ScanPlan]:
        """Split the plan into parts of similar size, one for each worker."""

        def cost(item: FileSlice) -> int:
            return item.size + _OPEN_COST * (len(item.logs) + 1)

        total = sum(cost(item) for item in self.slices)
        size = sum(item.size for item in self.slices)
        parts = max(-(-total // _TASK_BYTES), min(_SPREAD_TASKS, -(-size // _SPREAD_BYTES)))
        return [self.with_slices(part) for part in pack_by_size(self.slices, cost, parts)]


def merge_rule(config: TableConfig) -> MergeRule:
    """Return how the table's rows are merged."""
    ordering = config.ordering_fields if config.merge_mode is MergeMode.EVENT_TIME else ()
    return MergeRule(ordering, config.delete_marker)


def plan_scan(
    config: TableConfig,
    schema: pa.Schema,
    slices: Sequence[FileSlice],
    *,
    columns: Sequence[str] | None = None,
    commits: frozenset[str] | None = None,
    path_columns: tuple[PathColumn, ...] = (),
) -> ScanPlan:
    """Plan a query over these slices; raise if the table's rows cannot be merged."""
    rule = merge_rule(config)
    if any(item.logs for item in slices):
        config.require_mergeable()
        existing = set(schema.names)
        missing = [name for name in rule.ordering if name not in existing]
        if missing:
            raise UnsupportedError(
                "rows are ordered by a field that is no column of the table", fields=missing
            )
    names = tuple(dict.fromkeys(select_fields(schema, columns).names))
    return ScanPlan(schema, names, tuple(slices), rule, commits, path_columns)


def encode_plan(plan: ScanPlan) -> str:
    """Return a plan as text, small enough for an option of a data source."""
    return pack(plan_value(plan))


def decode_plan(text: str) -> ScanPlan:
    """Return the plan that `encode_plan` encoded; InvalidError for any other text."""
    with decoding():
        return plan_of(unpack(text))


def pack(value: object) -> str:
    """Return a JSON value as compressed Base64 text."""
    packed = zlib.compress(json.dumps(value, separators=(",", ":")).encode())
    return base64.b64encode(packed).decode("ascii")


def unpack(text: str) -> Any:
    """Return the JSON value that `pack` encoded."""
    return json.loads(zlib.decompress(base64.b64decode(text)))


@contextmanager
def decoding() -> Iterator[None]:
    """Raise InvalidError if the block fails to decode a plan.

    Any user who sends SQL can set the options of a data source.
    """
    try:
        yield
    except (ValueError, LookupError, TypeError, zlib.error, pa.ArrowException) as error:
        raise InvalidError("an option holds no plan of a query", option="plan") from error


def plan_value(plan: ScanPlan) -> dict[str, object]:
    """Return a plan as a JSON value."""
    return {
        "schema": base64.b64encode(plan.schema.serialize().to_pybytes()).decode("ascii"),
        "columns": plan.columns,
        "ordering": plan.rule.ordering,
        "delete_marker": plan.rule.delete_marker,
        "commits": None if plan.commits is None else sorted(plan.commits),
        "path_columns": [
            [c.name, c.position, c.depth, c.kind, c.prefix] for c in plan.path_columns
        ],
        "slices": [slice_value(item) for item in plan.slices],
    }


def plan_of(value: dict[str, Any]) -> ScanPlan:
    """Return the plan that `plan_value` encoded."""
    schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(value["schema"])))
    marker = value["delete_marker"]
    return ScanPlan(
        schema=schema,
        columns=tuple(value["columns"]),
        slices=tuple(slice_of(item) for item in value["slices"]),
        rule=MergeRule(tuple(value["ordering"]), tuple(marker) if marker else None),
        commits=None if value["commits"] is None else frozenset(value["commits"]),
        path_columns=tuple(PathColumn(*item) for item in value["path_columns"]),
    )


def slice_value(item: FileSlice) -> list[object]:
    """Return a file slice as a JSON value."""
    base = item.base and [item.base.token, item.base.instant, item.base.extension, item.base.size]
    logs = [[log.instant, log.version, log.token, log.size] for log in item.logs]
    full_slice = item.full_slice and slice_value(item.full_slice)
    return [item.partition, item.file_id, item.base_instant, base, logs, full_slice]


def slice_of(value: list[object]) -> FileSlice:
    """Return the file slice that `slice_value` encoded."""
    partition, file_id, base_instant, base, logs, full_slice = value
    return FileSlice(
        str(partition),
        str(file_id),
        str(base_instant),
        BaseFile(str(file_id), *base) if isinstance(base, list) else None,
        tuple(
            LogFile(str(file_id), instant, version, token, size=size)
            for instant, version, token, size in (logs if isinstance(logs, list) else [])
        ),
        slice_of(full_slice) if isinstance(full_slice, list) else None,
    )
