"""A read plan on Spark: native scans where nothing is merged, Arrow workers where logs are."""

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

# Names of sources tell nothing about the credentials that are in their storages.
_NAMING_KEY = SystemClock().new_id().encode()
# What must not depend on a session. Spark says in its files which calendar they count days by; a
# file that says nothing, as ours and those of Hudi's Avro writer, counts as the format does.
NATIVE_OPTIONS: Mapping[str, str] = {
    "ignoreMissingFiles": "false",
    "ignoreCorruptFiles": "false",
    "datetimeRebaseMode": "CORRECTED",
    "int96RebaseMode": "CORRECTED",
}
_NO_FILE_SYSTEM = re.compile(r"No FileSystem for scheme|ClassNotFoundException|Class \S+ not found")
_PATTERNS = re.compile(r"[][{}*?\\]")
_PLAIN_ROOT = re.compile(r"[A-Za-z0-9_./:=@-]+")


def scan_slices(spark: SparkSession, storage: Storage, plan: ScanPlan) -> DataFrame:
    """The rows of a plan as a DataFrame; nothing is read before it is used."""
    plain, masked, merging = plan.base_only, plan.masked, plan.merge_on_read
    native = plain if plain.slices else masked
    if native.slices and not _can_open(spark, storage, native):
        plain, masked, merging = plan.with_slices(()), plan.with_slices(()), plan
    parts = []
    if plain.slices:
        parts.append(_native(spark, storage, plain))
    if masked.slices:
        parts.append(_unmasked_base_rows(spark, storage, masked))
        parts.append(_by_workers(spark, storage, masked, "changed", masked.result_schema))
    if merging.slices:
        parts.append(_by_workers(spark, storage, merging, "merged", merging.result_schema))
    if not parts:
        return spark.createDataFrame([], spark_schema(plan.result_schema))
    return reduce(lambda left, right: left.union(right), parts)


def _can_open(spark: SparkSession, storage: Storage, plan: ScanPlan) -> bool:
    """Whether Spark itself has a file system for the table's place.

    It has one for local files; for object stores only if their JAR is there. Without it the
    workers, which need none, read everything.
    """
    if storage.root.startswith("file:"):
        return True
    first = next(storage.url(item.path(item.base)) for item in plan.slices if item.base)
    probe = _native_reader(spark, T.StructType([T.StructField("path", T.StringType())]))
    try:
        # On Spark Connect nothing is looked at before somebody asks for the schema.
        return probe.parquet(literal(first)).schema is not None
    except SPARK_ERRORS as error:
        if _NO_FILE_SYSTEM.search(str(error)):
            return False
        raise UnavailableError(
            "Spark cannot open a file of the table", file=first, reason=str(error)[:500]
        ) from error


def _unmasked_base_rows(spark: SparkSession, storage: Storage, plan: ScanPlan) -> DataFrame:
    """Spark's own scan of base files without the rows that log files have changed.

    These are joined by what tells their partition too: a filter on it then reaches both sides.
    """
    beaten = _by_workers(spark, storage, plan, "beaten", plan.overwritten_schema)
    frame = _native(spark, storage, plan, numbered=True)
    kept = frame.join(F.broadcast(beaten), plan.overwritten_schema.names, "left_anti")
    # A join puts the columns that it joins by in front.
    return kept.select(*(quoted(name) for name in plan.columns))


def _native(
    spark: SparkSession, storage: Storage, plan: ScanPlan, *, numbered: bool = False
) -> DataFrame:
    """Spark's own parquet scan of base files.

    A partition column is taken from the path where it can be told: Spark then prunes files by a
    filter on it before it opens any of them.
    """
    schema = plan.result_schema
    if plan.commits is not None and COMMIT_TIME not in schema.names:
        schema = schema.append(plan.schema.field(COMMIT_TIME))
    urls = [literal(storage.url(item.path(item.base))) for item in plan.slices if item.base]
    frame = _native_reader(spark, spark_schema(schema)).parquet(*urls)
    if plan.commits is not None:
        frame = frame.where(F.col(COMMIT_TIME).isin(sorted(plan.commits)))
    # A column of the table's own by that name would hide Spark's.
    by_path = () if "_metadata" in schema.names else plan.partition_columns_from_path
    told = {column.name: F.expr(path_expression(column, storage.root)) for column in by_path}
    if numbered:
        told |= {ROW: F.col("_metadata.row_index"), FILE: F.col("_metadata.file_name")}
    frame = frame.withColumns(told) if told else frame
    return frame if COMMIT_TIME in plan.columns else frame.drop(COMMIT_TIME)


def _native_reader(spark: SparkSession, schema: T.StructType) -> DataFrameReader:
    """Spark's own reader, whatever the session tells about files that are missing or damaged."""
    return spark.read.schema(schema).options(**NATIVE_OPTIONS)


def path_expression(column: PathColumn, root: str) -> str:
    """The column's value as SQL, from the URI of the file a row comes from.

    Counting segments from the end is right for every URI, but walks back over the file's name for
    each row, which is dear. Below the table's own root the value begins at a known byte; whether
    a URI begins with that root is cheap to ask.
    """
    path = "_metadata.file_path"
    value = f"substring_index(substring_index({path}, '/', {-(column.depth + 1)}), '/', 1)"
    # Spark writes the URI of a local file with one slash.
    root = root.replace("file:///", "file:/", 1) + "/"
    if _PLAIN_ROOT.fullmatch(root):
        near = _segment(path, len(root) + 1, column)
        value = f"CASE WHEN startswith({path}, '{root}') THEN {near} ELSE {value} END"
    if column.prefix:
        value = f"substring({value}, {len(column.prefix) + 1})"
    kind = _PRIMITIVES[column.kind].simpleString()
    return value if column.kind == "string" else f"CAST({value} AS {kind})"


def _segment(path: str, start: int, column: PathColumn) -> str:
    """A segment of a path from a byte on; texts are cut by counting characters, bytes are not."""
    data = f"CAST({path} AS BINARY)"
    if column.span is not None:
        begin, length = column.span
        return f"CAST(substring({data}, {start + begin}, {length}) AS STRING)"
    below = f"CAST(substring({data}, {start}) AS STRING)"
    first = f"substring_index({below}, '/', {column.position + 1})"
    return f"substring_index({first}, '/', -1)" if column.position else first


def _by_workers(
    spark: SparkSession, storage: Storage, plan: ScanPlan, part: str, schema: pa.Schema
) -> DataFrame:
    """What workers make of slices: all merged rows, those changed by log files, or those beaten."""
    return (
        spark.read.format(register_planned_source(spark, SliceSource, storage))
        .schema(spark_schema(schema))
        .option("plan", encode_plan(plan))
        .option("part", part)
        .load()
    )


_PARTS = {"merged": read_slices, "changed": read_updated_rows, "beaten": read_overwritten_rows}


class PlannedSource(DataSource):
    """A source whose options tell what to read of a storage; internal to scans.

    The storage is an attribute of the class, which Spark sends to workers as it sends functions.
    It is in no option: these are shown in plans and logs, where credentials must not be, and can
    be given by everybody who sends SQL, so that nothing may be executed from them.
    """

    kind: ClassVar[str]
    storage: ClassVar[Storage]


def register_planned_source(
    spark: SparkSession, source: type[PlannedSource], storage: Storage
) -> str:
    """The name of a source that reads from a storage; the session gets to know it once."""
    require_workers(spark)
    packed = pickle.dumps(storage)
    name = f"{source.kind}_{hmac.new(_NAMING_KEY, packed, 'sha256').hexdigest()[:16]}"
    known = f"spark.lakewright.source.{name}"
    if spark.conf.get(known, "") != "true":
        spark.dataSource.register(with_values(source, name, storage=storage))
        spark.conf.set(known, "true")
    return name


def with_values(source: type[DataSource], name: str, **values: Any) -> type[DataSource]:
    """A source under a name of its own, with values that Spark sends to workers along with it."""
    made: type[DataSource] = type(
        "SentSource", (source,), {**values, "name": classmethod(lambda _: name)}
    )
    return made


class SliceSource(PlannedSource):
    """Slices of a planned query that have log files."""

    kind = "lakewright_slices"

    def reader(self, schema: T.StructType) -> DataSourceReader:
        """A reader of the plan in the options."""
        plan = decode_plan(self.options["plan"])
        return SliceReader(self.storage, plan, self.options["part"])


@dataclass
class SlicePartition(InputPartition):
    """The work of one task."""

    storage: Storage
    plan: ScanPlan


class SliceReader(DataSourceReader):
    """Reads slices with log files.

    Filters are not pushed down: Spark keeps them with the relation, and where one frame or view
    stands twice in a query, a filter of the one would take rows from the other.
    """

    def __init__(self, storage: Storage, plan: ScanPlan, part: str = "merged") -> None:
        self._storage = storage
        self._plan = plan
        self._read = _PARTS[part]

    def partitions(self) -> Sequence[InputPartition]:
        """The slices in pieces of a fair size."""
        return [SlicePartition(self._storage, task) for task in self._plan.tasks()]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one piece; where there is none Spark asks for those of a blank one."""
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
    """A URI as Spark's readers take it literally: brackets and stars would be patterns.

    Not by the option `__globPaths__`: with it Spark reads the other files of a list twice.
    """
    return _PATTERNS.sub(r"\\\g<0>", url)


def quoted(name: str) -> str:
    """A column's name as Spark takes it literally."""
    return "`" + name.replace("`", "``") + "`"


def spark_schema(schema: pa.Schema) -> T.StructType:
    """A query schema in Spark's types."""
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
    known = _PRIMITIVES.get(str(kind))
    if known is None:
        raise UnsupportedError("a column type has no counterpart in Spark", type=str(kind))
    return known


# ------------------------------------------------------------------------------------------------
# A plan of change data on Spark: Arrow workers, each with some file groups.


def scan(spark: SparkSession, storage: Storage, plan: ScanPlan | CdcScanPlan) -> DataFrame:
    """The rows or changes of a plan as a DataFrame; nothing is read before it is used."""
    if isinstance(plan, CdcScanPlan):
        return scan_cdc(spark, storage, plan)
    return scan_slices(spark, storage, plan)


def scan_cdc(spark: SparkSession, storage: Storage, plan: CdcScanPlan) -> DataFrame:
    """The changes of a plan as a DataFrame; those of a file group stay together, and in order."""
    if not plan.groups:
        return spark.createDataFrame([], spark_schema(plan.result_schema))
    return (
        spark.read.format(register_planned_source(spark, CdcSource, storage))
        .schema(spark_schema(plan.result_schema))
        .option("plan", encode_cdc_plan(plan))
        .load()
    )


class CdcSource(PlannedSource):
    """File groups of a planned query of change data."""

    kind = "lakewright_changes"

    def reader(self, schema: T.StructType) -> DataSourceReader:
        """A reader of the plan in the options."""
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
        """The file groups in pieces of a fair size."""
        return [CdcPartition(self._storage, task) for task in self._plan.tasks()]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The changes of one piece; where there is none Spark asks for those of a blank one."""
        if not isinstance(partition, CdcPartition):
            return iter(())
        return read_cdc(partition.storage, partition.plan)
