"""Writes on Spark: keys and partition paths as columns, the global index, and the write tasks.

Rows are shuffled once, to the task that writes their partition, and pass to Arrow once. With a
global index, one join with the table finds the partition of each key before that.
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, TypeVar
from weakref import WeakKeyDictionary

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import functions as F
from pyspark.sql import types as T

from lakewright.errors import InvalidError, UnavailableError
from lakewright.model.partition_paths import DEFAULT_PARTITION, PartitionField, PartitionRule
from lakewright.model.schema import META_COLUMNS, OPERATION, PARTITION_PATH
from lakewright.spark.reader import quoted
from lakewright.spark.size_estimate import estimated_bytes
from lakewright.spark.tagging import (
    KEY_BATCHES,
    arrow_schema,
    field_name,
    field_of,
    key_batches,
    path_column,
    tag_buckets,
    tag_file_groups,
    tag_global_location,
)
from lakewright.spark.worker_environment import (
    SPARK_ERRORS,
    local_folder,
    problem_in,
    require_workers,
)
from lakewright.utils.bin_packing import pack_by_size
from lakewright.write.distribution import (
    Distribution,
    check_partitions,
    first_distribution,
    write_distributed,
)
from lakewright.write.incoming_rows import MOVED_COLUMN, TARGET_COLUMN
from lakewright.write.index import NumberedSlice
from lakewright.write.spill import run_until_done
from lakewright.write.task import DeferredWork, Operation, WriteStatus, WriteTask, WriteToken
from lakewright.write.task_runner import run_deferred, run_task
from lakewright.write.write_config import SortMode, WriteSettings

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

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
    """Shuffle rows once by partition; each Spark task writes the partitions it gets.

    Where that is too much for a task, rows are tagged with their file groups and shuffled by these.
    """
    spark = rows.spark
    try:
        frame = _with_keys_checked(_needed_columns(rows.frame, task), task)
        if task.is_global and task.operation.merges:
            frame = tag_global_location(frame, task)
        pickled = pickle.dumps(task)
        adaptive = _coalesces_partitions(spark)
        first = first_distribution(task, estimated_bytes(rows.frame), rebalances=adaptive)
        with _small_shuffle_partitions(spark):
            return write_distributed(task, first, partial(_write_frame, frame, task, pickled))
    except SPARK_ERRORS as error:
        raise _translate_error(error, task) from error


def _write_frame(
    frame: DataFrame, task: WriteTask, pickled: bytes, distribution: Distribution
) -> list[WriteStatus]:
    spark, looked_up = frame.sparkSession, None
    match distribution:
        case Distribution.AS_THEY_COME:
            shuffled = _shuffled_by_sort_mode(frame, task)
        case Distribution.BALANCED:
            shuffled = _balanced(frame, task)
        case Distribution.BY_PARTITION:
            shuffled = _shuffled_by_partition(frame, task)
        case Distribution.BY_BUCKET:
            shuffled = _shuffled_by_target(tag_buckets(frame, task))
        case Distribution.BY_FILE_GROUP:
            tagged, looked_up = tag_file_groups(frame, task, partial(_read_keys, spark, pickled))
            shuffled = _shuffled_by_target(tagged)
    first_statuses = _statuses(shuffled, partial(_write_batches, pickled, distribution))
    if looked_up is not None:
        check_partitions(first_statuses, looked_up)
    return run_until_done(first_statuses, partial(_run_deferred_work, spark, pickled))


def _shuffled_by_target(tagged: DataFrame) -> DataFrame:
    """Return the rows with each target in one task, partitions and targets contiguous."""
    by = (PARTITION_PATH, TARGET_COLUMN)
    return tagged.repartition(*by).sortWithinPartitions(*by)


def _read_keys(spark: SparkSession, pickled: bytes, slices: Sequence[NumberedSlice]) -> DataFrame:
    """Return the keys of slices, read by tasks of similar size."""
    sizes = sum(item.size for _, item in slices)
    tasks = max(_parallelism(spark) * _TASKS_PER_CORE, sizes // _BUNDLE_BYTES)
    bundles = pack_by_size(slices, lambda numbered: numbered[1].size, tasks)
    numbers = spark.range(0, len(bundles), 1, len(bundles))
    return numbers.mapInArrow(partial(_key_batches, pickled, pickle.dumps(bundles)), KEY_BATCHES)


def _key_batches(
    task: bytes, pickled: bytes, numbers: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    bundles = pickle.loads(pickled)
    for batch in numbers:
        for number in batch.column(0).to_pylist():
            yield from key_batches(pickle.loads(task), bundles[number])


def _statuses(frame: DataFrame, work: Callable[..., Iterator[pa.RecordBatch]]) -> list[WriteStatus]:
    # Safe to unpickle: our own function pickled it on a worker of this session, as Spark does.
    rows = frame.mapInArrow(work, "outcome binary").collect()
    return [pickle.loads(row.outcome) for row in rows]


def _write_batches(
    pickled: bytes, distribution: Distribution, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    status = run_task(pickle.loads(pickled), _write_token(), batches, distribution)
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


def _balanced(frame: DataFrame, task: WriteTask) -> DataFrame:
    """Return the rows in tasks of similar size, each partition contiguous within a task.

    Spark splits the rows of a large partition between tasks, and combines small partitions.
    """
    if not task.partition_rule.fields:
        return frame.hint("rebalance")
    routed = frame.withColumn(_ROUTE_COLUMN, _route_expression(frame, task))
    balanced = routed.hint("rebalance", _ROUTE_COLUMN)
    return balanced.sortWithinPartitions(_ROUTE_COLUMN).drop(_ROUTE_COLUMN)


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
