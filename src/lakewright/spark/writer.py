"""Writes on Spark: keys and partition paths as columns, the global index, and the write tasks.

Rows are shuffled once, to the task that writes their partition, and pass to Arrow once. With a
global index, one join with the table finds the partition of each key before that.
"""

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
from lakewright.model.partition_paths import (
    DEFAULT_PARTITION,
    PartitionField,
    PartitionRule,
    partition_paths,
)
from lakewright.model.record_keys import record_keys
from lakewright.model.schema import META_COLUMNS, OPERATION, PARTITION_PATH, RECORD_KEY
from lakewright.scan.planner import plan_snapshot
from lakewright.spark.reader import quoted, scan_slices
from lakewright.spark.worker_environment import (
    SPARK_ERRORS,
    local_folder,
    problem_in,
    require_workers,
)
from lakewright.utils.bin_packing import pack_by_size
from lakewright.write.incoming_rows import MOVED_COLUMN, rows_in
from lakewright.write.operations import needs_no_shuffle, run_deferred, run_task
from lakewright.write.spill import run_until_done
from lakewright.write.task import DeferredWork, Operation, WriteStatus, WriteTask, WriteToken
from lakewright.write.write_config import SortMode, WriteSettings

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

# Spark 4.1 always uses UTC here, and has no parameter for it.
_UTC_OPTION: dict[str, Any] = (
    {"timezone": "UTC"} if "timezone" in signature(to_arrow_schema).parameters else {}
)


def arrow_schema(columns: T.StructType) -> pa.Schema:
    """Return the Arrow schema of Spark columns, with timestamps in UTC."""
    return to_arrow_schema(columns, **_UTC_OPTION)


def key_column(task: WriteTask) -> Column:
    """Return a column with the record key of each row."""
    rule = task.key_rule
    strict = task.adds_rows
    return _computed_column(task, rule.fields, lambda rows: record_keys(rows, rule, strict=strict))


def path_column(task: WriteTask) -> Column:
    """Return a column with the partition path of each row."""
    rule = task.partition_rule
    if not rule.fields:
        return F.lit("")
    names = (field.name for field in rule.fields)
    strict = task.adds_rows
    return _computed_column(task, names, lambda rows: partition_paths(rows, rule, strict=strict))


def field_of(frame: DataFrame, name: str) -> Column:
    """Return a column, or with dots in the name a field of a struct column."""
    return F.col(field_name(frame, name))


def field_name(frame: DataFrame, name: str) -> str:
    """Return the quoted name of a column, or with dots in it of a field of a struct column."""
    if name in frame.columns:
        return quoted(name)
    return ".".join(quoted(part) for part in name.split("."))


def _computed_column(
    task: WriteTask, fields: Iterable[str], function: Callable[[pa.Table], pa.Array]
) -> Column:
    """Return a string column that `function` computes from columns in the table's types."""
    columns_of_table = set(task.data_schema.names)
    top_columns = (name if name in columns_of_table else name.split(".")[0] for name in fields)
    names = list(dict.fromkeys(top_columns))
    schema = pa.schema([task.data_schema.field(name) for name in names])

    def compute(*columns: pa.Array) -> pa.Array:
        rows = rows_in(pa.table(list(columns), names=names), schema)
        return function(rows).cast(pa.string())

    udf: Callable[..., Callable[..., Column]] = arrow_udf
    return udf(compute, "string")(*(F.col(quoted(name)) for name in names))


# The global index: one join with all keys of the table, before rows are shuffled.
#
# A row whose key exists in another partition moves: it is deleted there and inserted into the new
# partition. A late row is left out, as it would lose within one partition.


_KEY = "_lakewright_key"
_OLD_PATH = "_lakewright_old_path"
_OLD_ORDER = "_lakewright_old_order"


def tag_global_location(frame: DataFrame, task: WriteTask) -> DataFrame:
    """Return the rows with their target partition, and a delete for each row that moves."""
    columns = [column for column in frame.columns if column not in (PARTITION_PATH, MOVED_COLUMN)]
    keyed = frame.drop(PARTITION_PATH).withColumn(_KEY, key_column(task))
    if task.operation is Operation.DELETE:
        return _tag_deletes(keyed, task, columns)
    newest = _newest_of_keys(keyed, task).withColumn(PARTITION_PATH, path_column(task))
    joined = newest.join(_existing_keys(newest, task), _KEY, "left")
    moves = F.col(_OLD_PATH).isNotNull() & (F.col(_OLD_PATH) != F.col(PARTITION_PATH))
    marked = (
        F.coalesce(F.col(MOVED_COLUMN), F.lit(False))
        if MOVED_COLUMN in frame.columns
        else F.lit(False)
    )
    is_deleted = marked | _is_marked_deleted(task)
    keeps_old_path = is_deleted if task.settings.update_partition_path else F.lit(True)
    target = F.when(moves & keeps_old_path, F.col(_OLD_PATH)).otherwise(F.col(PARTITION_PATH))
    moves_away = moves & ~keeps_old_path
    if task.merge_rule.ordering:
        # A late row would lose against the row in the other partition.
        joined = joined.where(~(moves_away & (_ordering(task) < F.col(_OLD_ORDER))))
    destinations = F.when(
        moves_away,
        F.array(_destination(F.col(_OLD_PATH), F.lit(True)), _destination(target, marked)),
    ).otherwise(F.array(_destination(target, marked)))
    return joined.withColumn("_lakewright_to", F.explode(destinations)).select(
        *(quoted(name) for name in columns),
        F.col("_lakewright_to.path").alias(PARTITION_PATH),
        F.col("_lakewright_to.leaves").alias(MOVED_COLUMN),
    )


def _tag_deletes(keyed: DataFrame, task: WriteTask, columns: list[str]) -> DataFrame:
    joined = keyed.join(_existing_keys(keyed, task), _KEY, "inner")
    return joined.select(
        *(quoted(name) for name in columns),
        F.col(_OLD_PATH).alias(PARTITION_PATH),
        F.lit(True).alias(MOVED_COLUMN),
    )


def _existing_keys(frame: DataFrame, task: WriteTask) -> DataFrame:
    """Return every key of the table with its partition and ordering values."""
    if task.snapshot.avro_schema() is None:
        schema = f"{_KEY} string, {_OLD_PATH} string"
        no_keys = frame.sparkSession.createDataFrame([], schema)
        return no_keys.withColumn(_OLD_ORDER, F.lit(None)) if task.merge_rule.ordering else no_keys
    columns = (RECORD_KEY, PARTITION_PATH, *task.merge_rule.ordering)
    rows = scan_slices(
        frame.sparkSession, task.storage, plan_snapshot(task.snapshot, columns=columns)
    )
    selected = [F.col(RECORD_KEY).alias(_KEY), F.col(PARTITION_PATH).alias(_OLD_PATH)]
    if task.merge_rule.ordering:
        selected.append(_ordering(task).alias(_OLD_ORDER))
    return rows.select(*selected)


def _newest_of_keys(keyed: DataFrame, task: WriteTask) -> DataFrame:
    """Return one row for each key: a batch may have a key in two partitions."""
    all_columns = F.struct(*(F.col(quoted(name)) for name in keyed.columns))
    order = _ordering(task) if task.merge_rule.ordering else F.lit(0)
    newest = keyed.groupBy(_KEY).agg(F.max_by(all_columns, order).alias("row"))
    return newest.select("row.*")


def _ordering(task: WriteTask) -> Column:
    return F.struct(*(F.col(quoted(name)) for name in task.merge_rule.ordering))


def _is_marked_deleted(task: WriteTask) -> Column:
    """Whether a row's delete columns mark it as deleted: such a row does not move."""
    flags = []
    for name in task.delete_columns:
        marker = task.merge_rule.delete_marker
        deleted_value = marker[1] if marker is not None and name == marker[0] else "true"
        flags.append(F.coalesce(F.col(quoted(name)).cast("string") == deleted_value, F.lit(False)))
    return reduce(lambda left, right: left | right, flags, F.lit(False))


def _destination(path: Column, is_moved: Column) -> Column:
    return F.struct(path.alias("path"), is_moved.alias("leaves"))


# The write tasks.


Item = TypeVar("Item")
Answer = TypeVar("Answer")

_ROUTE_COLUMN = "_lakewright_route"
_SPECULATION_KEY = "spark.speculation"
_NO_KEY = "lakewright: rows have no record key"
# The last two: concurrent queries share objects that Spark serializes while it changes them.
_WORKER_LOST = re.compile(
    r"ExecutorLost|FetchFailed|Executor heartbeat|worker exited unexpectedly|"
    r"OptionalDataException|ConcurrentModificationException"
)
# The message of an error that our code raised in a task, within Spark's message.
_REFUSED = re.compile(r"lakewright\.errors\.InvalidError: (.+)")
_UNAVAILABLE = re.compile(r"lakewright\.errors\.UnavailableError: (.+)")
_CANCELLED = "SPARK_JOB_CANCELLED"
# Tasks per core where work is distributed by size: sizes predict only roughly how long it takes.
_TASKS_PER_CORE = 3
_ADAPTIVE_KEYS = ("spark.sql.adaptive.enabled", "spark.sql.adaptive.coalescePartitions.enabled")
_SHUFFLE_PARTITIONS_KEY = "spark.sql.adaptive.coalescePartitions.initialPartitionNum"
_MIN_SHUFFLE_PARTITIONS = 64
_MIN_TASK_BYTES_KEY = "spark.sql.adaptive.coalescePartitions.minPartitionSize"
_MIN_TASK_BYTES = "32k"
_BUNDLE_BYTES = 256 << 20
# Bundles of up to so many bytes go to all tasks.
_MAX_LITERAL_BYTES = 1 << 20
# By session: how many writes run in threads of this process, and the settings to restore.
_CHANGED_SETTINGS: WeakKeyDictionary[SparkSession, tuple[int, dict[str, str | None]]] = (
    WeakKeyDictionary()
)
_CHANGED_SETTINGS_LOCK = Lock()


def refuse_speculation(spark: SparkSession, settings: WriteSettings) -> None:
    """Raise InvalidError on a session with speculative execution, unless it is allowed."""
    speculates = spark.conf.get(_SPECULATION_KEY, "false") or ""
    if settings.block_speculation and speculates.lower() == "true":
        raise InvalidError(
            "Spark's speculative execution is on, and other readers may see files of both attempts "
            "of a task: start the session with spark.speculation=false, or write with "
            "hoodie.block.writes.on.speculative.execution=false"
        )


class SparkRows:
    """The rows of a DataFrame."""

    def __init__(self, frame: DataFrame) -> None:
        # Rows that were read from a table have its meta columns: the write sets new ones.
        require_workers(frame.sparkSession)
        meta_columns = {*META_COLUMNS, OPERATION}.intersection(frame.columns)
        self.frame = frame.drop(*meta_columns) if meta_columns else frame

    @property
    def spark(self) -> SparkSession:
        """The session of the DataFrame."""
        return self.frame.sparkSession

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema of the DataFrame."""
        return arrow_schema(self.frame.schema)

    def known_partitions(self, rule: PartitionRule) -> frozenset[str] | None:
        """See `RowSource`: only another pass over the rows would tell."""
        return None if rule.fields else frozenset({""})


def write_rows(task: WriteTask, rows: SparkRows) -> Sequence[WriteStatus]:
    """Shuffle rows once by partition; each Spark task writes the partitions it gets."""
    spark = rows.spark
    try:
        frame = _with_keys_checked(_needed_columns(rows.frame, task), task)
        if task.is_global and task.operation.merges:
            frame = tag_global_location(frame, task)
        pickled = pickle.dumps(task)
        with _small_shuffle_partitions(spark):
            shuffled = (
                _shuffled_by_sort_mode(frame, task)
                if needs_no_shuffle(task)
                else _shuffled_by_partition(frame, task)
            )
            first_statuses = _statuses(shuffled, partial(_write_batches, pickled))
        return run_until_done(first_statuses, partial(_run_deferred_work, spark, pickled))
    except SPARK_ERRORS as error:
        raise _translate_error(error, task) from error


def _statuses(frame: DataFrame, work: Callable[..., Iterator[pa.RecordBatch]]) -> list[WriteStatus]:
    # Safe to unpickle: our own function pickled it on a worker of this session, as Spark does.
    rows = frame.mapInArrow(work, "outcome binary").collect()
    return [pickle.loads(row.outcome) for row in rows]


def _write_batches(pickled: bytes, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    status = run_task(pickle.loads(pickled), _write_token(), batches)
    return _encoded_status(raise_if_unavailable(status))


def raise_if_unavailable(answer: Answer) -> Answer:
    """Raise the UnavailableError of a task attempt, so that Spark runs the task again.

    Another attempt cannot change any other error, so those are returned to the driver. The files
    of this attempt have names of their own, and their markers stay: the driver deletes them before
    the commit.
    """
    if isinstance(answer, WriteStatus) and isinstance(answer.error, UnavailableError):
        raise answer.error
    return answer


def _run_deferred_work(
    spark: SparkSession, pickled: bytes, works: Sequence[DeferredWork]
) -> list[WriteStatus]:
    """Distribute deferred work to new tasks by size."""
    return map_on_workers(spark, partial(_deferred_bundle, pickled), works, lambda work: work.size)


def _deferred_bundle(
    pickled: bytes, works: Sequence[DeferredWork], token: WriteToken
) -> WriteStatus:
    return raise_if_unavailable(run_deferred(pickle.loads(pickled), token, works))


def map_on_workers(
    spark: SparkSession,
    do: Callable[[Sequence[Item], WriteToken], Answer],
    items: Sequence[Item],
    size: Callable[[Item], int],
) -> list[Answer]:
    """Call `do` on bundles of items in Spark tasks; return one result for each bundle.

    Items are distributed by their sizes. There are as many bundles as tasks.
    """
    if not items:
        return []
    require_workers(spark)
    tasks = 1
    if len(items) > 1:
        # A cluster with dynamic allocation grows with the tasks that wait.
        by_cores = _parallelism(spark) * _TASKS_PER_CORE
        tasks = max(by_cores, sum(map(size, items)) // _BUNDLE_BYTES)
    bundles = [pickle.dumps(bundle) for bundle in pack_by_size(items, size, tasks)]
    answers = _dealt(spark, bundles, partial(_call_on_bundles, pickle.dumps(do))).collect()
    return [pickle.loads(row.answer) for row in answers]


def _dealt(
    spark: SparkSession,
    bundles: Sequence[bytes],
    call: Callable[[Iterator[bytes]], Iterator[pa.RecordBatch]],
) -> DataFrame:
    """Return the answers of a call in a task for each bundle."""
    if sum(map(len, bundles)) <= _MAX_LITERAL_BYTES:
        # The function of all tasks contains all bundles, which costs less than a shuffle.
        numbered = spark.range(0, len(bundles), 1, len(bundles))
        return numbered.mapInArrow(partial(_call_by_number, call, tuple(bundles)), "answer binary")
    numbers = pa.array(range(len(bundles)), pa.int32())
    table = pa.table([numbers, pa.array(bundles, pa.binary())], names=["number", "bundle"])
    dealt = spark.createDataFrame(table).repartitionById(len(bundles), "number").select("bundle")
    return dealt.mapInArrow(partial(_call_by_row, call), "answer binary")


def _call_by_number(
    call: Callable[[Iterator[bytes]], Iterator[pa.RecordBatch]],
    bundles: Sequence[bytes],
    numbers: Iterator[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    return call(bundles[number] for batch in numbers for number in batch.column(0).to_pylist())


def _call_by_row(
    call: Callable[[Iterator[bytes]], Iterator[pa.RecordBatch]], rows: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    return call(bundle for batch in rows for bundle in batch.column(0).to_pylist())


def _call_on_bundles(pickled: bytes, bundles: Iterator[bytes]) -> Iterator[pa.RecordBatch]:
    function = pickle.loads(pickled)
    for bundle in bundles:
        answer = pickle.dumps(function(pickle.loads(bundle), _write_token()))
        yield pa.RecordBatch.from_pydict({"answer": [answer]})


def _write_token() -> WriteToken:
    context = TaskContext.get()
    if context is None:
        return WriteToken()
    number = context.taskAttemptId()
    return WriteToken(context.partitionId(), context.stageId(), number, local_folder(number))


def _encoded_status(status: WriteStatus) -> Iterator[pa.RecordBatch]:
    if status != WriteStatus():
        yield pa.RecordBatch.from_pydict({"outcome": [pickle.dumps(status)]})


def _needed_columns(frame: DataFrame, task: WriteTask) -> DataFrame:
    """Return the columns that the write needs: of rows to delete, only those that identify them."""
    if task.operation is not Operation.DELETE:
        return frame
    ordering = task.merge_rule.ordering if task.ordered_deletes else ()
    fields = (*task.key_rule.fields, *(f.name for f in task.partition_rule.fields), *ordering)
    needed = {name if name in frame.columns else name.split(".")[0] for name in fields}
    return frame.select(*(quoted(name) for name in frame.columns if name in needed))


def _with_keys_checked(frame: DataFrame, task: WriteTask) -> DataFrame:
    """Fail on a row without key before the shuffle, when no worker has written anything yet."""
    if not task.config.record_key_fields:
        return frame
    # The check is part of a column that is used later: Spark leaves out unused columns.
    column = frame.columns[0]
    has_key = " OR ".join(
        f"coalesce(CAST({field_name(frame, name)} AS STRING) != '', false)"
        for name in task.key_rule.fields
    )
    checked = f"CASE WHEN {has_key} THEN {quoted(column)} ELSE raise_error('{_NO_KEY}') END"
    # One SQL expression: every call of a column function is a round trip to the JVM.
    return frame.withColumn(column, F.expr(checked))


def _shuffled_by_partition(frame: DataFrame, task: WriteTask) -> DataFrame:
    """Return the rows with each partition in one task, contiguous."""
    if not task.partition_rule.fields:
        return frame.repartition(1)
    has_partition = {MOVED_COLUMN, PARTITION_PATH}.issubset(frame.columns)
    route = F.col(PARTITION_PATH) if has_partition else _route_expression(frame, task)
    tasks = task.settings.parallelism
    if not tasks and not _coalesces_partitions(frame.sparkSession):
        tasks = _parallelism(frame.sparkSession) * _TASKS_PER_CORE
    routed = frame.withColumn(_ROUTE_COLUMN, route)
    shuffled = (
        routed.repartition(tasks, _ROUTE_COLUMN) if tasks else routed.repartition(_ROUTE_COLUMN)
    )
    return shuffled.sortWithinPartitions(_ROUTE_COLUMN).drop(_ROUTE_COLUMN)


def _coalesces_partitions(spark: SparkSession) -> bool:
    """Whether Spark coalesces shuffle partitions by size, which is its default."""
    return all(spark.conf.get(key, "true") == "true" for key in _ADAPTIVE_KEYS)


@contextmanager
def _small_shuffle_partitions(spark: SparkSession) -> Iterator[None]:
    """Set Spark to shuffle into many small partitions, and coalesce them into even tasks.

    So a few rows become one task, and table partitions of different sizes are combined by size.
    With as few shuffle partitions as a session may have set, only their hashes would decide. Small
    tasks are wanted: a single row in a partition of its own costs several calls to storage.
    """
    configured = int(spark.conf.get("spark.sql.shuffle.partitions", "200") or 0)
    changed = {
        _SHUFFLE_PARTITIONS_KEY: str(max(_MIN_SHUFFLE_PARTITIONS, configured)),
        _MIN_TASK_BYTES_KEY: _MIN_TASK_BYTES,
    }
    with _CHANGED_SETTINGS_LOCK:
        users, previous = _CHANGED_SETTINGS.get(spark, (0, {}))
        if not users:
            previous = {key: spark.conf.get(key, None) for key in changed}
            for key, value in changed.items():
                spark.conf.set(key, value)
        _CHANGED_SETTINGS[spark] = (users + 1, previous)
    try:
        yield
    finally:
        with _CHANGED_SETTINGS_LOCK:
            users, previous = _CHANGED_SETTINGS[spark]
            _CHANGED_SETTINGS[spark] = (users - 1, previous)
            if users == 1:
                _restore_settings(spark, previous)


def _restore_settings(spark: SparkSession, settings: Mapping[str, str | None]) -> None:
    for key, value in settings.items():
        if value is None:
            spark.conf.unset(key)
        else:
            spark.conf.set(key, value)


def _shuffled_by_sort_mode(frame: DataFrame, task: WriteTask) -> DataFrame:
    """Return the rows as they are, or distributed and sorted by the sort mode."""
    mode = task.settings.sort_mode
    if mode is SortMode.NONE:
        return frame
    route = _route_expression(frame, task) if task.partition_rule.fields else F.lit("")
    sort_columns = task.settings.sort_columns or task.config.record_key_fields
    order = [F.col(_ROUTE_COLUMN), *(field_of(frame, name) for name in sort_columns)]
    routed = frame.withColumn(_ROUTE_COLUMN, route)
    tasks = task.settings.parallelism
    if mode is SortMode.GLOBAL_SORT:
        shuffled = routed.repartitionByRange(tasks, *order) if tasks else routed.orderBy(*order)
        return shuffled.sortWithinPartitions(*order).drop(_ROUTE_COLUMN)
    if mode is not SortMode.PARTITION_SORT:
        routed = (
            routed.repartition(tasks, _ROUTE_COLUMN) if tasks else routed.repartition(_ROUTE_COLUMN)
        )
    if mode is not SortMode.PARTITION_PATH_REPARTITION:
        routed = routed.sortWithinPartitions(*order)
    return routed.drop(_ROUTE_COLUMN)


def _route_expression(frame: DataFrame, task: WriteTask) -> Column:
    """Return a string that is equal for rows of the same partition.

    Strings, integers and dates identify partitions themselves; for all other types the partition
    path is computed, which needs a Python UDF.
    """
    if not all(_is_plain_field(frame, field, task) for field in task.partition_rule.fields):
        return path_column(task)
    rule, texts = task.partition_rule, []
    for field in rule.fields:
        text = f"CAST({field_name(frame, field.name)} AS STRING)"
        text = f"coalesce(nullif({text}, ''), '{DEFAULT_PARTITION}')"
        texts.append(f"translate({text}, '-', '/')" if rule.slashes_for_dashes else text)
    return F.expr(texts[0] if len(texts) == 1 else f"concat_ws(chr(0), {', '.join(texts)})")


def _is_plain_field(frame: DataFrame, field: PartitionField, task: WriteTask) -> bool:
    if field.time is not None or field.name not in task.data_schema.names:
        return False
    stored = task.data_schema.field(field.name).type
    incoming = frame.schema[field.name].dataType if field.name in frame.columns else None
    is_text = pa.types.is_string(stored) and isinstance(incoming, T.StringType)
    is_integer = pa.types.is_integer(stored) and isinstance(incoming, T.IntegralType)
    return is_text or is_integer or (pa.types.is_date(stored) and isinstance(incoming, T.DateType))


def _parallelism(spark: SparkSession) -> int:
    """Return how many tasks Spark runs at once, on the executors that it has now."""
    # Spark splits a range into as many partitions as it has cores; no other way to find out works
    # on Spark Connect too.
    return spark.range(1 << 16).select(F.spark_partition_id().alias("p")).distinct().count()


def _translate_error(error: Exception, task: WriteTask) -> Exception:
    if _NO_KEY in str(error):
        return InvalidError("rows have no record key", fields=task.key_rule.fields)
    return translate_spark_error(error)


def translate_spark_error(error: Exception) -> Exception:
    """Return the LakewrightError for an error of Spark."""
    text = str(error)
    refused = _REFUSED.search(text)
    if refused:
        return InvalidError(refused[1].strip())
    unavailable = _UNAVAILABLE.search(text)
    if unavailable:
        return UnavailableError(unavailable[1].strip())
    # Workers on some machines of a cluster may differ from the one that was checked.
    python_problem = problem_in(text)
    if python_problem is not None:
        return python_problem
    reason = re.sub(r"\s+", " ", text)[:1000]
    if _WORKER_LOST.search(text):
        return UnavailableError("Spark lost workers while it wrote", reason=reason)
    if _CANCELLED in text:
        return UnavailableError(
            "the Spark job was cancelled, and nothing of it is in the table: run it again",
            reason=reason,
        )
    return InvalidError("Spark could not evaluate the rows of a write", reason=reason)
