"""Partition pruning: which partition columns a file's path tells, and what filters say of them."""

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
from lakewright.model.schema import COMMIT_TIME, OPERATION, RECORD_KEY, select_fields
from lakewright.model.table_config import MergeMode, TableConfig
from lakewright.utils.bin_packing import pack_by_size

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


# ------------------------------------------------------------------------------------------------
# What a query reads: a value that says which slices, which columns and which versions.


# As Spark does for its own scans: opening a file costs about as much as reading this many bytes.
_OPEN_COST = 4 << 20
_TASK_BYTES = 64 << 20
# A little is spread over a few cores rather than put together, if it is worth a task.
_SPREAD_TASKS = 8
_SPREAD_BYTES = 8 << 20
_IS_DELETED = "_hoodie_is_deleted"
# A mask is worth its two passes over log files where these are small beside the base file.
_LEAST_KEPT = 4
_LEAST_MASKED_BYTES = 128 << 20
# What is broadcast must fit into memory, and be found before Spark gives up waiting for it.
_MOST_MASKED_BYTES = 64 << 20
_MOST_MASKED_BASE_BYTES = 32 << 30
# Columns that no table can have: they begin like meta columns.
ROW, FILE = "_hoodie_lakewright_row", "_hoodie_lakewright_file"


@dataclass(frozen=True)
class ScanPlan:
    """The slices of a query and what becomes of their rows.

    `schema` is the table's whole query schema, `columns` what the query gives of it. `commits`, if
    set, keeps only rows that one of these instants wrote. `path_columns` are the partition columns
    whose value can be told from a file's path, so that a filter on them prunes files.
    """

    schema: pa.Schema
    columns: tuple[str, ...]
    slices: tuple[FileSlice, ...]
    rule: MergeRule
    commits: frozenset[str] | None = None
    path_columns: tuple[PathColumn, ...] = ()

    @property
    def result_schema(self) -> pa.Schema:
        """The schema of the rows that the query gives."""
        return select_fields(self.schema, self.columns)

    @property
    def merge_schema(self) -> pa.Schema:
        """The result's columns and those that merging itself needs."""
        needed = [RECORD_KEY, *self.rule.ordering, _IS_DELETED]
        if self.rule.delete_marker is not None:
            needed.append(self.rule.delete_marker[0])
        if self.commits is not None:
            needed.append(COMMIT_TIME)
        more = set(self.schema.names).difference(self.columns)
        extra = [name for name in needed if name in more]
        chosen = select_fields(self.schema, (*self.columns, *dict.fromkeys(extra)))
        # A meta column that only changelog writers add; it is in their files, not in the schema.
        known = OPERATION in chosen.names
        return chosen if known else chosen.append(pa.field(OPERATION, pa.string()))

    @property
    def partition_columns_from_path(self) -> tuple[PathColumn, ...]:
        """The columns of the result that a file's path tells."""
        return tuple(column for column in self.path_columns if column.name in self.columns)

    @property
    def key_schema(self) -> pa.Schema:
        """The columns by which base rows and log rows are compared."""
        return select_fields(self.schema, (RECORD_KEY, *self.rule.ordering))

    @property
    def overwritten_schema(self) -> pa.Schema:
        """What tells a base row that does not stay: its number, its file and its partition."""
        told = [self.schema.field(column.name) for column in self.partition_columns_from_path]
        return pa.schema([pa.field(ROW, pa.int64()), pa.field(FILE, pa.string()), *told])

    def with_slices(self, slices: Iterable[FileSlice]) -> ScanPlan:
        """The same query on other slices."""
        return replace(self, slices=tuple(slices))

    @property
    def base_only(self) -> ScanPlan:
        """The part that is read as it is: slices without log files."""
        return self.with_slices(s for s in self.slices if not s.logs)

    @cached_property
    def masked(self) -> ScanPlan:
        """The part whose base rows are read as they are but for those that log files have changed.

        It pays where most rows stay: those then need not go through a worker. What the workers
        find out is sent to all tasks, so it must not be too much.
        """
        if self.commits is not None or "_metadata" in self.schema.names:
            return self.with_slices(())
        changed = [item for item in self.slices if item.logs]
        names = Counter(item.base.name for item in self.slices if item.base) if changed else {}
        fitting, room, base_room = [], _MOST_MASKED_BYTES, _MOST_MASKED_BASE_BYTES
        for item in sorted(changed, key=lambda s: s.log_size):
            if item.base is None or item.whole is not None:
                continue
            # Writers that do not wait for each other give groups of all partitions the same ids.
            only = names[item.base.name] == 1
            few = item.log_size * _LEAST_KEPT <= item.base.size
            if only and few and item.log_size <= room and item.base.size <= base_room:
                fitting.append(item)
                room -= item.log_size
                base_room -= item.base.size
        worth = sum(item.size for item in fitting) >= _LEAST_MASKED_BYTES
        return self.with_slices(fitting if worth else ())

    @property
    def merge_on_read(self) -> ScanPlan:
        """The part whose base rows must be merged with log files one by one."""
        masked = set(self.masked.slices)
        return self.with_slices(s for s in self.slices if s.logs and s not in masked)

    def tasks(self) -> list[ScanPlan]:
        """The plan cut into pieces of a fair size for one worker each."""

        def cost(item: FileSlice) -> int:
            return item.size + _OPEN_COST * (len(item.logs) + 1)

        total = sum(cost(item) for item in self.slices)
        size = sum(item.size for item in self.slices)
        pieces = max(-(-total // _TASK_BYTES), min(_SPREAD_TASKS, -(-size // _SPREAD_BYTES)))
        return [self.with_slices(piece) for piece in pack_by_size(self.slices, cost, pieces)]


def merge_rule(config: TableConfig) -> MergeRule:
    """How the table's rows are merged."""
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
    """Plan a query over these slices; a table whose rows cannot be merged is refused here."""
    rule = merge_rule(config)
    if any(item.logs for item in slices):
        config.require_mergeable()
        known = set(schema.names)
        missing = [name for name in rule.ordering if name not in known]
        if missing:
            raise UnsupportedError(
                "rows are ordered by a field that is no column of the table", fields=missing
            )
    names = tuple(dict.fromkeys(select_fields(schema, columns).names))
    return ScanPlan(schema, names, tuple(slices), rule, commits, path_columns)


def encode_plan(plan: ScanPlan) -> str:
    """A plan as text, small enough to travel as an option of a data source."""
    return pack(plan_value(plan))


def decode_plan(text: str) -> ScanPlan:
    """The inverse of `encode_plan`; InvalidError for another text."""
    with decoding():
        return plan_of(unpack(text))


def pack(value: object) -> str:
    """A value of JSON as a text without marks that an option could lose."""
    packed = zlib.compress(json.dumps(value, separators=(",", ":")).encode())
    return base64.b64encode(packed).decode("ascii")


def unpack(text: str) -> Any:
    """The inverse of `pack`."""
    return json.loads(zlib.decompress(base64.b64decode(text)))


@contextmanager
def decoding() -> Iterator[None]:
    """Options of a data source can be given by everybody who sends SQL: tell what is wrong."""
    try:
        yield
    except (ValueError, LookupError, TypeError, zlib.error, pa.ArrowException) as error:
        raise InvalidError("an option holds no plan of a query", option="plan") from error


def plan_value(plan: ScanPlan) -> dict[str, object]:
    """A plan as a value of JSON."""
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
    """The inverse of `plan_value`."""
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
    """A slice as a value of JSON."""
    base = item.base and [item.base.token, item.base.instant, item.base.extension, item.base.size]
    logs = [[log.instant, log.version, log.token, log.size] for log in item.logs]
    whole = item.whole and slice_value(item.whole)
    return [item.partition, item.file_id, item.base_instant, base, logs, whole]


def slice_of(value: list[object]) -> FileSlice:
    """The inverse of `slice_value`."""
    partition, file_id, base_instant, base, logs, whole = value
    return FileSlice(
        str(partition),
        str(file_id),
        str(base_instant),
        BaseFile(str(file_id), *base) if isinstance(base, list) else None,
        tuple(
            LogFile(str(file_id), instant, version, token, size=size)
            for instant, version, token, size in (logs if isinstance(logs, list) else [])
        ),
        slice_of(whole) if isinstance(whole, list) else None,
    )
