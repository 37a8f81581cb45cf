"""Scans on Spark: its own parquet scan for base files, Python workers for slices with log files.

Python workers also read CDC plans. They run as data sources that get the plan as an option.
"""

from __future__ import annotations

import hmac
import pickle
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from lakewright.clock import SystemClock
from lakewright.errors import UnavailableError, UnsupportedError
from lakewright.model.schema import COMMIT_TIME
from lakewright.scan.cdc.planner import CdcScanPlan, decode_cdc_plan, encode_cdc_plan
from lakewright.scan.cdc.reader import read_cdc
from lakewright.scan.scan_plan import FILE, ROW, PathColumn, ScanPlan, decode_plan, encode_plan
from lakewright.scan.slice_reader import read_overwritten_rows, read_slices, read_updated_rows
from lakewright.spark.worker_environment import SPARK_ERRORS, require_workers
from lakewright.storage.base import Storage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameReader, SparkSession

# Source names are keyed hashes: they reveal nothing about the credentials of a storage.
_SOURCE_NAME_KEY = SystemClock().new_id().encode()
# These must not depend on the session's settings. Spark records the calendar of dates in the files
# it writes; files without that record, such as ours and those of Hudi's Avro writer, use the
# calendar of the parquet format.
NATIVE_OPTIONS: Mapping[str, str] = {
    "ignoreMissingFiles": "false",
    "ignoreCorruptFiles": "false",
    "datetimeRebaseMode": "CORRECTED",
    "int96RebaseMode": "CORRECTED",
}
_NO_FILE_SYSTEM = re.compile(r"No FileSystem for scheme|ClassNotFoundException|Class \S+ not found")
_GLOB_CHARACTERS = re.compile(r"[][{}*?\\]")
_PLAIN_ROOT = re.compile(r"[A-Za-z0-9_./:=@-]+")


def scan_slices(spark: SparkSession, storage: Storage, plan: ScanPlan) -> DataFrame:
    """Return the rows of a plan as a DataFrame, which is evaluated lazily."""
    base_only, masked, merging = plan.base_only, plan.masked, plan.merge_on_read
    native = base_only if base_only.slices else masked
    if native.slices and not _can_open(spark, storage, native):
        base_only, masked, merging = plan.with_slices(()), plan.with_slices(()), plan
    frames = []
    if base_only.slices:
        frames.append(_native_scan(spark, storage, base_only))
    if masked.slices:
        frames.append(_unmasked_base_rows(spark, storage, masked))
        frames.append(_worker_scan(spark, storage, masked, "changed", masked.result_schema))
    if merging.slices:
        frames.append(_worker_scan(spark, storage, merging, "merged", merging.result_schema))
    if not frames:
        return spark.createDataFrame([], spark_schema(plan.result_schema))
    return reduce(lambda left, right: left.union(right), frames)


def _can_open(spark: SparkSession, storage: Storage, plan: ScanPlan) -> bool:
    """Whether Spark has a file system for the table's storage.

    It has one for local files; for object stores only if their JAR is installed. Without it, Python
    workers read everything, because they do not need it.
    """
    if storage.root.startswith("file:"):
        return True
    first = next(storage.url(item.path(item.base)) for item in plan.slices if item.base)
    probe = _native_reader(spark, T.StructType([T.StructField("path", T.StringType())]))
    try:
        # Spark Connect opens no file before the schema is requested.
        return probe.parquet(literal(first)).schema is not None
    except SPARK_ERRORS as error:
        if _NO_FILE_SYSTEM.search(str(error)):
            return False
        raise UnavailableError(
            "Spark cannot open a file of the table", file=first, reason=str(error)[:500]
        ) from error


def _unmasked_base_rows(spark: SparkSession, storage: Storage, plan: ScanPlan) -> DataFrame:
    """Return Spark's own scan of base files, without the rows that log files changed.

    The join columns include the partition columns: a filter on them then reaches both sides.
    """
    overwritten = _worker_scan(spark, storage, plan, "beaten", plan.overwritten_schema)
    frame = _native_scan(spark, storage, plan, numbered=True)
    remaining = frame.join(F.broadcast(overwritten), plan.overwritten_schema.names, "left_anti")
    # A join puts its join columns first.
    return remaining.select(*(quoted(name) for name in plan.columns))


def _native_scan(
    spark: SparkSession, storage: Storage, plan: ScanPlan, *, numbered: bool = False
) -> DataFrame:
    """Return Spark's own parquet scan of base files.

    A partition column is taken from the path if the path shows its value: Spark then prunes files
    by a filter on it before it opens them.
    """
    schema = plan.result_schema
    if plan.commits is not None and COMMIT_TIME not in schema.names:
        schema = schema.append(plan.schema.field(COMMIT_TIME))
    urls = [literal(storage.url(item.path(item.base))) for item in plan.slices if item.base]
    frame = _native_reader(spark, spark_schema(schema)).parquet(*urls)
    if plan.commits is not None:
        frame = frame.where(F.col(COMMIT_TIME).isin(sorted(plan.commits)))
    # A column of the table with that name would hide Spark's.
    from_path = () if "_metadata" in schema.names else plan.partition_columns_from_path
    added = {column.name: F.expr(path_expression(column, storage.root)) for column in from_path}
    if numbered:
        added |= {ROW: F.col("_metadata.row_index"), FILE: F.col("_metadata.file_name")}
    frame = frame.withColumns(added) if added else frame
    return frame if COMMIT_TIME in plan.columns else frame.drop(COMMIT_TIME)


def _native_reader(spark: SparkSession, schema: T.StructType) -> DataFrameReader:
    """Return Spark's reader, independent of the session's settings for bad files."""
    return spark.read.schema(schema).options(**NATIVE_OPTIONS)


def path_expression(column: PathColumn, root: str) -> str:
    """Return a SQL expression for the column's value, from the URI of a row's file.

    Counting segments from the end is right for every URI, but scans the file name for each row,
    which is expensive. Below the table's own root the value begins at a known byte; checking that a
    URI begins with that root is cheap.
    """
    path = "_metadata.file_path"
    value = f"substring_index(substring_index({path}, '/', {-(column.depth + 1)}), '/', 1)"
    # Spark writes the URI of a local file with one slash.
    root = root.replace("file:///", "file:/", 1) + "/"
    if _PLAIN_ROOT.fullmatch(root):
        below_root = _path_segment(path, len(root) + 1, column)
        value = f"CASE WHEN startswith({path}, '{root}') THEN {below_root} ELSE {value} END"
    if column.prefix:
        value = f"substring({value}, {len(column.prefix) + 1})"
    kind = _PRIMITIVES[column.kind].simpleString()
    return value if column.kind == "string" else f"CAST({value} AS {kind})"


def _path_segment(path: str, start: int, column: PathColumn) -> str:
    """Return a SQL expression for a path segment; slicing bytes is faster than characters."""
    data = f"CAST({path} AS BINARY)"
    if column.span is not None:
        begin, length = column.span
        return f"CAST(substring({data}, {start + begin}, {length}) AS STRING)"
    below = f"CAST(substring({data}, {start}) AS STRING)"
    first = f"substring_index({below}, '/', {column.position + 1})"
    return f"substring_index({first}, '/', -1)" if column.position else first


def _worker_scan(
    spark: SparkSession, storage: Storage, plan: ScanPlan, part: str, schema: pa.Schema
) -> DataFrame:
    """Return what Python workers read from slices.

    `part` is "merged" for all merged rows, "changed" for those from log files, or "beaten" for the
    positions of overwritten base rows.
    """
    return (
        spark.read.format(register_planned_source(spark, SliceSource, storage))
        .schema(spark_schema(schema))
        .option("plan", encode_plan(plan))
        .option("part", part)
        .load()
    )


_READERS = {"merged": read_slices, "changed": read_updated_rows, "beaten": read_overwritten_rows}


class PlannedSource(DataSource):
    """A data source whose options contain a plan; internal to scans.

    The storage is an attribute of the class, which Spark sends to workers as it sends functions. It
    is not an option: options are shown in plans and logs, which must not contain credentials, and
    any user who sends SQL can set them, so nothing may be unpickled from them.
    """

    kind: ClassVar[str]
    storage: ClassVar[Storage]


def register_planned_source(
    spark: SparkSession, source: type[PlannedSource], storage: Storage
) -> str:
    """Return the name of a data source for a storage; register it once for a session."""
    require_workers(spark)
    pickled = pickle.dumps(storage)
    name = f"{source.kind}_{hmac.new(_SOURCE_NAME_KEY, pickled, 'sha256').hexdigest()[:16]}"
    registered_key = f"spark.lakewright.source.{name}"
    if spark.conf.get(registered_key, "") != "true":
        spark.dataSource.register(with_values(source, name, storage=storage))
        spark.conf.set(registered_key, "true")
    return name


def with_values(source: type[DataSource], name: str, **values: Any) -> type[DataSource]:
    """Return a subclass of a data source with a name and values that Spark sends to workers."""
    derived: type[DataSource] = type(
        "SentSource", (source,), {**values, "name": classmethod(lambda _: name)}
    )
    return derived


class SliceSource(PlannedSource):
    """The slices of a scan plan, read by Python workers."""

    kind = "lakewright_slices"

    def reader(self, schema: T.StructType) -> DataSourceReader:
        """Return a reader of the plan in the options."""
        plan = decode_plan(self.options["plan"])
        return SliceReader(self.storage, plan, self.options["part"])


@dataclass
class SlicePartition(InputPartition):
    """The work of one task."""

    storage: Storage
    plan: ScanPlan


class SliceReader(DataSourceReader):
    """Reads slices in Python workers.

    Filters are not pushed down: Spark stores them with the relation, and where one frame or view is
    used twice in a query, the filter of one would remove rows from the other.
    """

    def __init__(self, storage: Storage, plan: ScanPlan, part: str = "merged") -> None:
        self._storage = storage
        self._plan = plan
        self._read = _READERS[part]

    def partitions(self) -> Sequence[InputPartition]:
        """Return the slices in parts of similar size."""
        return [SlicePartition(self._storage, task) for task in self._plan.tasks()]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Return the rows of one part; none for the blank partition that Spark may pass."""
        if not isinstance(partition, SlicePartition):
            return iter(())
        return self._read(partition.storage, partition.plan)


_PRIMITIVES: dict[str, T.DataType] = {
    "bool": T.BooleanType(),
    "int32": T.IntegerType(),
    "int64": T.LongType(),
    "float": T.FloatType(),
    "double": T.DoubleType(),
    "string": T.StringType(),
    "binary": T.BinaryType(),
    "date32[day]": T.DateType(),
    "timestamp[us, tz=UTC]": T.TimestampType(),
    "timestamp[us]": T.TimestampNTZType(),
}


def literal(url: str) -> str:
    """Return a URI with glob characters escaped, for Spark's readers.

    The option `__globPaths__` does not do: with it Spark reads the other files of a list twice.
    """
    return _GLOB_CHARACTERS.sub(r"\\\g<0>", url)


def quoted(name: str) -> str:
    """Return a column name quoted for Spark."""
    return "`" + name.replace("`", "``") + "`"


def spark_schema(schema: pa.Schema) -> T.StructType:
    """Return a query schema in Spark's types."""
    return T.StructType([T.StructField(f.name, _spark_type(f.type), True) for f in schema])


def _spark_type(kind: pa.DataType) -> T.DataType:
    if pa.types.is_struct(kind):
        return T.StructType([T.StructField(f.name, _spark_type(f.type), True) for f in kind])
    if pa.types.is_list(kind):
        return T.ArrayType(_spark_type(kind.value_type))
    if pa.types.is_map(kind):
        return T.MapType(_spark_type(kind.key_type), _spark_type(kind.item_type))
    if pa.types.is_decimal(kind):
        return T.DecimalType(kind.precision, kind.scale)
    primitive = _PRIMITIVES.get(str(kind))
    if primitive is None:
        raise UnsupportedError("a column type has no counterpart in Spark", type=str(kind))
    return primitive


# CDC queries.


def scan(spark: SparkSession, storage: Storage, plan: ScanPlan | CdcScanPlan) -> DataFrame:
    """Return the rows or changes of a plan as a DataFrame, which is evaluated lazily."""
    if isinstance(plan, CdcScanPlan):
        return scan_cdc(spark, storage, plan)
    return scan_slices(spark, storage, plan)


def scan_cdc(spark: SparkSession, storage: Storage, plan: CdcScanPlan) -> DataFrame:
    """Return the changes of a plan as a DataFrame; those of a file group stay in order."""
    if not plan.groups:
        return spark.createDataFrame([], spark_schema(plan.result_schema))
    return (
        spark.read.format(register_planned_source(spark, CdcSource, storage))
        .schema(spark_schema(plan.result_schema))
        .option("plan", encode_cdc_plan(plan))
        .load()
    )


class CdcSource(PlannedSource):
    """The file groups of a CDC plan, read by Python workers."""

    kind = "lakewright_changes"

    def reader(self, schema: T.StructType) -> DataSourceReader:
        """Return a reader of the plan in the options."""
        return CdcReader(self.storage, decode_cdc_plan(self.options["plan"]))


@dataclass
class CdcPartition(InputPartition):
    """The work of one task."""

    storage: Storage
    plan: CdcScanPlan


class CdcReader(DataSourceReader):
    """Reads the changes of file groups."""

    def __init__(self, storage: Storage, plan: CdcScanPlan) -> None:
        self._storage = storage
        self._plan = plan

    def partitions(self) -> Sequence[InputPartition]:
        """Return the file groups in parts of similar size."""
        return [CdcPartition(self._storage, task) for task in self._plan.tasks()]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Return the changes of one part; none for the blank partition that Spark may pass."""
        if not isinstance(partition, CdcPartition):
            return iter(())
        return read_cdc(partition.storage, partition.plan)
