"""The keys and partition paths of rows as Spark columns, by the library's own rules."""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial, reduce
from inspect import signature
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakKeyDictionary

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.pandas.types import to_arrow_schema

from lakewright.errors import InvalidError, UnavailableError
from lakewright.model.partition_paths import DEFAULT_PARTITION, PartitionField, partition_paths
from lakewright.model.record_keys import record_keys
from lakewright.model.schema import META_COLUMNS, OPERATION, PARTITION_PATH, RECORD_KEY
from lakewright.scan.planner import plan_snapshot
from lakewright.spark.reader import quoted, scan_slices
from lakewright.spark.worker_environment import SPARK_ERRORS, problem_in, require_workers
from lakewright.utils.bin_packing import pack_by_size
from lakewright.write.incoming_rows import MOVED_COLUMN, rows_in
from lakewright.write.operations import needs_no_shuffle, run_deferred, run_task
from lakewright.write.spill import run_until_done
from lakewright.write.task import DeferredWork, Operation, WriteStatus, WriteTask, WriteToken
from lakewright.write.write_config import SortMode, WriteSettings

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

# Spark 4.1 knows no other zone than UTC here, and has no word for it.
_IN_UTC: dict[str, Any] = (
    {"timezone": "UTC"} if "timezone" in signature(to_arrow_schema).parameters else {}
)


def arrow_schema(columns: T.StructType) -> pa.Schema:
    """Columns as Spark hands them to Arrow, with times in UTC."""
    return to_arrow_schema(columns, **_IN_UTC)


def key_column(task: WriteTask) -> Column:
    """The record key of each row."""
    rule = task.keys
    strict = task.adds_rows
    return _computed(task, rule.fields, lambda rows: record_keys(rows, rule, strict=strict))


def path_column(task: WriteTask) -> Column:
    """The partition path of each row."""
    rule = task.partitions
    if not rule.fields:
        return F.lit("")
    names = (field.name for field in rule.fields)
    strict = task.adds_rows
    return _computed(task, names, lambda rows: partition_paths(rows, rule, strict=strict))


def field_of(frame: DataFrame, name: str) -> Column:
    """A column, or with dots in its name a field of a struct column."""
    return F.col(field_name(frame, name))


def field_name(frame: DataFrame, name: str) -> str:
    """The name by which Spark finds a column, or with dots in it a field of a struct column."""
    if name in frame.columns:
        return quoted(name)
    return ".".join(quoted(part) for part in name.split("."))


def _computed(
    task: WriteTask, fields: Iterable[str], rule: Callable[[pa.Table], pa.Array]
) -> Column:
    """A text computed from whole columns in the table's types; only these cross to Arrow."""
    known = set(task.own_schema.names)
    tops = (name if name in known else name.split(".")[0] for name in fields)
    names = list(dict.fromkeys(tops))
    schema = pa.schema([task.own_schema.field(name) for name in names])

    def compute(*columns: pa.Array) -> pa.Array:
        rows = rows_in(pa.table(list(columns), names=names), schema)
        return rule(rows).cast(pa.string())

    make: Callable[..., Callable[..., Column]] = arrow_udf
    return make(compute, "string")(*(F.col(quoted(name)) for name in names))


# ------------------------------------------------------------------------------------------------
# Where in the whole table keys live: one join, on Spark, before rows go to their partitions.
#
# A row whose key lives in another partition moves: it leaves the old one and enters the new one.
# Rows
# that only arrive late stay out, as they would within one partition.


_KEY = "_lakewright_key"
_OLD_PATH = "_lakewright_old_path"
_OLD_ORDER = "_lakewright_old_order"


def tag_global_location(frame: DataFrame, task: WriteTask) -> DataFrame:
    """The rows with the partition that each goes to, and a second one for each that leaves."""
    columns = [column for column in frame.columns if column not in (PARTITION_PATH, MOVED_COLUMN)]
    keyed = frame.drop(PARTITION_PATH).withColumn(_KEY, key_column(task))
    if task.operation is Operation.DELETE:
        return _deletes(keyed, task, columns)
    newest = _newest(keyed, task).withColumn(PARTITION_PATH, path_column(task))
    joined = newest.join(_existing(newest, task), _KEY, "left")
    moves = F.col(_OLD_PATH).isNotNull() & (F.col(_OLD_PATH) != F.col(PARTITION_PATH))
    told = (
        F.coalesce(F.col(MOVED_COLUMN), F.lit(False))
        if MOVED_COLUMN in frame.columns
        else F.lit(False)
    )
    gone = told | _deleted(task)
    stays_behind = gone if task.settings.update_partition_path else F.lit(True)
    target = F.when(moves & stays_behind, F.col(_OLD_PATH)).otherwise(F.col(PARTITION_PATH))
    leaving = moves & ~stays_behind
    if task.rule.ordering:
        # Compared with what the other partition holds: a late row would lose there.
        joined = joined.where(~(leaving & (_order(task) < F.col(_OLD_ORDER))))
    destinations = F.when(
        leaving, F.array(_entry(F.col(_OLD_PATH), F.lit(True)), _entry(target, told))
    ).otherwise(F.array(_entry(target, told)))
    return joined.withColumn("_lakewright_to", F.explode(destinations)).select(
        *(quoted(name) for name in columns),
        F.col("_lakewright_to.path").alias(PARTITION_PATH),
        F.col("_lakewright_to.leaves").alias(MOVED_COLUMN),
    )


def _deletes(keyed: DataFrame, task: WriteTask, columns: list[str]) -> DataFrame:
    joined = keyed.join(_existing(keyed, task), _KEY, "inner")
    return joined.select(
        *(quoted(name) for name in columns),
        F.col(_OLD_PATH).alias(PARTITION_PATH),
        F.lit(True).alias(MOVED_COLUMN),
    )


def _existing(frame: DataFrame, task: WriteTask) -> DataFrame:
    """Every key of the table with its partition and ordering values."""
    if task.snapshot.avro_schema() is None:
        empty = f"{_KEY} string, {_OLD_PATH} string"
        known = frame.sparkSession.createDataFrame([], empty)
        return known.withColumn(_OLD_ORDER, F.lit(None)) if task.rule.ordering else known
    columns = (RECORD_KEY, PARTITION_PATH, *task.rule.ordering)
    rows = scan_slices(
        frame.sparkSession, task.storage, plan_snapshot(task.snapshot, columns=columns)
    )
    chosen = [F.col(RECORD_KEY).alias(_KEY), F.col(PARTITION_PATH).alias(_OLD_PATH)]
    if task.rule.ordering:
        chosen.append(_order(task).alias(_OLD_ORDER))
    return rows.select(*chosen)


def _newest(keyed: DataFrame, task: WriteTask) -> DataFrame:
    """One row for each key: a batch may name a key in two partitions."""
    whole = F.struct(*(F.col(quoted(name)) for name in keyed.columns))
    order = _order(task) if task.rule.ordering else F.lit(0)
    best = keyed.groupBy(_KEY).agg(F.max_by(whole, order).alias("row"))
    return best.select("row.*")


def _order(task: WriteTask) -> Column:
    return F.struct(*(F.col(quoted(name)) for name in task.rule.ordering))


def _deleted(task: WriteTask) -> Column:
    """Whether a row says of itself that it is deleted: then it has nowhere to move to."""
    flags = []
    for name in task.delete_columns:
        marker = task.rule.delete_marker
        wanted = marker[1] if marker is not None and name == marker[0] else "true"
        flags.append(F.coalesce(F.col(quoted(name)).cast("string") == wanted, F.lit(False)))
    return reduce(lambda left, right: left | right, flags, F.lit(False))


def _entry(path: Column, leaves: Column) -> Column:
    return F.struct(path.alias("path"), leaves.alias("leaves"))


# ------------------------------------------------------------------------------------------------
# A write on Spark: rows go to the task that owns their partition, and cross to Arrow once.


Item = TypeVar("Item")
Answer = TypeVar("Answer")

_ROUTE = "_lakewright_route"
_PARALLELISM = "spark.lakewright.parallelism"
_SPECULATION = "spark.speculation"
_NO_KEY = "lakewright: rows have no record key"
# The last two: queries that run side by side share objects which Spark sends while it changes them.
_LOST = re.compile(
    r"ExecutorLost|FetchFailed|Executor heartbeat|worker exited unexpectedly|"
    r"OptionalDataException|ConcurrentModificationException"
)
# What our code has refused where Spark runs it for a column: its message, in Spark's own.
_REFUSED = re.compile(r"lakewright\.errors\.InvalidError: (.+)")
_CANCELLED = "SPARK_JOB_CANCELLED"
# Tasks for each core where work is dealt out by size: sizes tell only roughly how long it takes.
_TASKS_PER_CORE = 3
_ADAPTIVE = ("spark.sql.adaptive.enabled", "spark.sql.adaptive.coalescePartitions.enabled")
_SHUFFLE_PARTS = "spark.sql.adaptive.coalescePartitions.initialPartitionNum"
_LEAST_PARTS = 64
_LEAST_TASK = "spark.sql.adaptive.coalescePartitions.minPartitionSize"
_LEAST_TASK_BYTES = "32k"
_BUNDLE_BYTES = 256 << 20
# How many writes of a session are under way in threads of this process, and what it had set.
_FINE: WeakKeyDictionary[SparkSession, tuple[int, dict[str, str | None]]] = WeakKeyDictionary()
_FINE_GUARD = Lock()


def refuse_speculation(spark: SparkSession, settings: WriteSettings) -> None:
    """InvalidError on a session that runs slow tasks twice, unless the settings allow it."""
    speculates = spark.conf.get(_SPECULATION, "false") or ""
    if settings.block_speculation and speculates.lower() == "true":
        raise InvalidError(
            "Spark's speculative execution is on, and other readers may see files of both attempts "
            "of a task: start the session with spark.speculation=false, or write with "
            "hoodie.block.writes.on.speculative.execution=false"
        )


class SparkRows:
    """The rows of a DataFrame."""

    def __init__(self, frame: DataFrame) -> None:
        # Rows that were read from a table bring its meta columns along: they get new ones.
        require_workers(frame.sparkSession)
        known = {*META_COLUMNS, OPERATION}.intersection(frame.columns)
        self.frame = frame.drop(*known) if known else frame

    @property
    def spark(self) -> SparkSession:
        """Its session."""
        return self.frame.sparkSession

    @property
    def schema(self) -> pa.Schema:
        """Its columns, as Spark hands them to Arrow."""
        return arrow_schema(self.frame.schema)


def write_rows(task: WriteTask, rows: SparkRows) -> Sequence[WriteStatus]:
    """Shuffle rows once by partition; each Spark task writes the partitions it gets."""
    spark = rows.spark
    try:
        frame = _with_keys_checked(_needed(rows.frame, task), task)
        if task.is_global and task.operation.merges:
            frame = tag_global_location(frame, task)
        packed = pickle.dumps(task)
        with _small_shuffle_partitions(spark):
            routed = _spread(frame, task) if needs_no_shuffle(task) else _routed(frame, task)
            first = _outcomes(routed, partial(_work, packed))
        return run_until_done(first, partial(_run_deferred, spark, packed))
    except SPARK_ERRORS as error:
        raise _translated(error, task) from error


def _outcomes(frame: DataFrame, work: Callable[..., Iterator[pa.RecordBatch]]) -> list[WriteStatus]:
    # Pickles of our own function on workers, as Spark's own are between processes of a session.
    rows = frame.mapInArrow(work, "outcome binary").collect()
    return [pickle.loads(row.outcome) for row in rows]


def _work(packed: bytes, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    return _answer(run_task(pickle.loads(packed), _token(), batches))


def _run_deferred(
    spark: SparkSession, packed: bytes, works: Sequence[DeferredWork]
) -> list[WriteStatus]:
    """Deal out what tasks have handed on."""
    return map_on_workers(spark, partial(_deferred_bundle, packed), works, lambda work: work.size)


def _deferred_bundle(
    packed: bytes, works: Sequence[DeferredWork], token: WriteToken
) -> WriteStatus:
    return run_deferred(pickle.loads(packed), token, works)


def map_on_workers(
    spark: SparkSession,
    do: Callable[[Sequence[Item], WriteToken], Answer],
    items: Sequence[Item],
    size: Callable[[Item], int],
) -> list[Answer]:
    """Deal items out to Spark's workers by their sizes, in bundles; one answer for each bundle.

    As many bundles as tasks, each of which tells its own number.
    """
    if not items:
        return []
    require_workers(spark)
    # A cluster may have grown since it was asked how many tasks it runs at once.
    tasks = max(_parallelism(spark) * _TASKS_PER_CORE, sum(map(size, items)) // _BUNDLE_BYTES)
    bundles = pack_by_size(items, size, tasks)
    numbers = spark.range(0, len(bundles), 1, len(bundles))
    rows = numbers.mapInArrow(partial(_bundle, pickle.dumps((do, bundles))), "answer binary")
    return [pickle.loads(row.answer) for row in rows.collect()]


def _bundle(packed: bytes, numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    do, bundles = pickle.loads(packed)
    for batch in numbers:
        for number in batch.column(0).to_pylist():
            answer = pickle.dumps(do(bundles[number], _token()))
            yield pa.RecordBatch.from_pydict({"answer": [answer]})


def _token() -> WriteToken:
    context = TaskContext.get()
    if context is None:
        return WriteToken()
    return WriteToken(context.partitionId(), context.stageId(), context.taskAttemptId())


def _answer(outcome: WriteStatus) -> Iterator[pa.RecordBatch]:
    if outcome != WriteStatus():
        yield pa.RecordBatch.from_pydict({"outcome": [pickle.dumps(outcome)]})


def _needed(frame: DataFrame, task: WriteTask) -> DataFrame:
    """The columns that the write needs: of rows to delete, those that say which."""
    if task.operation is not Operation.DELETE:
        return frame
    ordering = task.rule.ordering if task.ordered_deletes else ()
    fields = (*task.keys.fields, *(f.name for f in task.partitions.fields), *ordering)
    tops = {name if name in frame.columns else name.split(".")[0] for name in fields}
    return frame.select(*(quoted(name) for name in frame.columns if name in tops))


def _with_keys_checked(frame: DataFrame, task: WriteTask) -> DataFrame:
    """Fail on a row without key before the shuffle: no worker has written anything by then."""
    if not task.config.record_key_fields:
        return frame
    # The check hangs on a column that is sent on: Spark leaves out what nobody uses.
    column = frame.columns[0]
    has_key = " OR ".join(
        f"coalesce(CAST({field_name(frame, name)} AS STRING) != '', false)"
        for name in task.keys.fields
    )
    checked = f"CASE WHEN {has_key} THEN {quoted(column)} ELSE raise_error('{_NO_KEY}') END"
    # One expression in words: every call of a function on a column is a round trip to the JVM.
    return frame.withColumn(column, F.expr(checked))


def _routed(frame: DataFrame, task: WriteTask) -> DataFrame:
    """All rows of a partition in one task, one partition after the other."""
    if not task.partitions.fields:
        return frame.repartition(1)
    placed_already = {MOVED_COLUMN, PARTITION_PATH}.issubset(frame.columns)
    route = F.col(PARTITION_PATH) if placed_already else _route(frame, task)
    tasks = task.settings.parallelism
    if not tasks and not _adapts(frame.sparkSession):
        tasks = _parallelism(frame.sparkSession) * _TASKS_PER_CORE
    routed = frame.withColumn(_ROUTE, route)
    dealt = routed.repartition(tasks, _ROUTE) if tasks else routed.repartition(_ROUTE)
    return dealt.sortWithinPartitions(_ROUTE).drop(_ROUTE)


def _adapts(spark: SparkSession) -> bool:
    """Whether Spark puts the parts of a shuffle together by their sizes, as it does unless told."""
    return all(spark.conf.get(key, "true") == "true" for key in _ADAPTIVE)


@contextmanager
def _small_shuffle_partitions(spark: SparkSession) -> Iterator[None]:
    """Let Spark deal rows out in many small parts, which it then puts together to even tasks.

    A few rows so become one task, and partitions of different sizes meet by their sizes. With as
    few parts as a session may have set, their hashes alone would decide. Small tasks are wanted:
    a row of its own partition costs several calls to storage.
    """
    usual = int(spark.conf.get("spark.sql.shuffle.partitions", "200") or 0)
    wanted = {_SHUFFLE_PARTS: str(max(_LEAST_PARTS, usual)), _LEAST_TASK: _LEAST_TASK_BYTES}
    with _FINE_GUARD:
        users, before = _FINE.get(spark, (0, {}))
        if not users:
            before = {key: spark.conf.get(key, None) for key in wanted}
            for key, value in wanted.items():
                spark.conf.set(key, value)
        _FINE[spark] = (users + 1, before)
    try:
        yield
    finally:
        with _FINE_GUARD:
            users, before = _FINE[spark]
            _FINE[spark] = (users - 1, before)
            if users == 1:
                _restore(spark, before)


def _restore(spark: SparkSession, settings: Mapping[str, str | None]) -> None:
    for key, value in settings.items():
        if value is None:
            spark.conf.unset(key)
        else:
            spark.conf.set(key, value)


def _spread(frame: DataFrame, task: WriteTask) -> DataFrame:
    """Rows as they come, or sorted as the sort mode says."""
    mode = task.settings.sort_mode
    if mode is SortMode.NONE:
        return frame
    route = _route(frame, task) if task.partitions.fields else F.lit("")
    wanted = task.settings.sort_columns or task.config.record_key_fields
    order = [F.col(_ROUTE), *(field_of(frame, name) for name in wanted)]
    routed = frame.withColumn(_ROUTE, route)
    tasks = task.settings.parallelism
    if mode is SortMode.GLOBAL_SORT:
        spread = routed.repartitionByRange(tasks, *order) if tasks else routed.orderBy(*order)
        return spread.sortWithinPartitions(*order).drop(_ROUTE)
    if mode is not SortMode.PARTITION_SORT:
        routed = routed.repartition(tasks, _ROUTE) if tasks else routed.repartition(_ROUTE)
    if mode is not SortMode.PARTITION_PATH_REPARTITION:
        routed = routed.sortWithinPartitions(*order)
    return routed.drop(_ROUTE)


def _route(frame: DataFrame, task: WriteTask) -> Column:
    """A text that is the same for rows of the same partition.

    Texts, whole numbers and dates tell partitions apart by themselves; for all else the path is
    computed, which only our own code can.
    """
    if not all(_is_plain(frame, field, task) for field in task.partitions.fields):
        return path_column(task)
    rule, texts = task.partitions, []
    for field in rule.fields:
        text = f"CAST({field_name(frame, field.name)} AS STRING)"
        text = f"coalesce(nullif({text}, ''), '{DEFAULT_PARTITION}')"
        texts.append(f"translate({text}, '-', '/')" if rule.slashes_for_dashes else text)
    return F.expr(texts[0] if len(texts) == 1 else f"concat_ws(chr(0), {', '.join(texts)})")


def _is_plain(frame: DataFrame, field: PartitionField, task: WriteTask) -> bool:
    if field.time is not None or field.name not in task.own_schema.names:
        return False
    stored = task.own_schema.field(field.name).type
    given = frame.schema[field.name].dataType if field.name in frame.columns else None
    texts = pa.types.is_string(stored) and isinstance(given, T.StringType)
    whole = pa.types.is_integer(stored) and isinstance(given, T.IntegralType)
    return texts or whole or (pa.types.is_date(stored) and isinstance(given, T.DateType))


def _parallelism(spark: SparkSession) -> int:
    """How many tasks Spark runs at once, asked once for a session."""
    known = spark.conf.get(_PARALLELISM, "")
    if known:
        return int(known)
    # Spark cuts a range into as many pieces as it has cores; there is no other way to ask that
    # works on Spark Connect too.
    pieces = spark.range(1 << 16).select(F.spark_partition_id().alias("p")).distinct().count()
    spark.conf.set(_PARALLELISM, str(pieces))
    return pieces


def _translated(error: Exception, task: WriteTask) -> Exception:
    if _NO_KEY in str(error):
        return InvalidError("rows have no record key", fields=task.keys.fields)
    return translate_spark_error(error)


def translate_spark_error(error: Exception) -> Exception:
    """An error of Spark as one of ours."""
    text = str(error)
    refused = _REFUSED.search(text)
    if refused:
        return InvalidError(refused[1].strip())
    # Workers on some machines of a cluster may be unlike those that were asked.
    other_python = problem_in(text)
    if other_python is not None:
        return other_python
    reason = re.sub(r"\s+", " ", text)[:1000]
    if _LOST.search(text):
        return UnavailableError("Spark lost workers while it wrote", reason=reason)
    if _CANCELLED in text:
        return UnavailableError(
            "the Spark job was cancelled, and nothing of it is in the table: run it again",
            reason=reason,
        )
    return InvalidError("Spark could not evaluate the rows of a write", reason=reason)
