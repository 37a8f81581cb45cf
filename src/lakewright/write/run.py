"""A write on Spark: rows go to the task that owns their partition, and cross to Arrow once."""

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

from lakewright.core.dealing import deal
from lakewright.core.meta_columns import META_COLUMNS, OPERATION, PARTITION_PATH
from lakewright.core.partition_paths import DEFAULT_PARTITION, PartitionField
from lakewright.errors import InvalidError, UnavailableError
from lakewright.read.run import quoted
from lakewright.read.workers.facts import problem_in
from lakewright.read.workers.run import SPARK_ERRORS, require_workers
from lakewright.write.columns.run import arrow_schema, field_name, field_of, path_column
from lakewright.write.global_index.run import placed
from lakewright.write.incoming import LEAVES
from lakewright.write.settings import SortMode, WriteSettings
from lakewright.write.task import Operation, Outcome, Token, Work, WriteTask
from lakewright.write.worker import run_task, run_works, spreads_freely
from lakewright.write.works import to_the_end

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

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
        self._frame = frame.drop(*known) if known else frame

    @property
    def spark(self) -> SparkSession:
        """Its session."""
        return self._frame.sparkSession

    @property
    def schema(self) -> pa.Schema:
        """Its columns, as Spark hands them to Arrow."""
        return arrow_schema(self._frame.schema)

    def write(self, task: WriteTask) -> Sequence[Outcome]:
        """Shuffle the rows once, and let each task write the partitions it got."""
        spark = self._frame.sparkSession
        try:
            frame = _with_keys_checked(_needed(self._frame, task), task)
            if task.is_global and task.operation.merges:
                frame = placed(frame, task)
            packed = pickle.dumps(task)
            with _fine_shuffle(spark):
                routed = _spread(frame, task) if spreads_freely(task) else _routed(frame, task)
                first = _outcomes(routed, partial(_work, packed))
            return to_the_end(first, partial(_run_works, spark, packed))
        except SPARK_ERRORS as error:
            raise _translated(error, task) from error


def _outcomes(frame: DataFrame, work: Callable[..., Iterator[pa.RecordBatch]]) -> list[Outcome]:
    # Pickles of our own function on workers, as Spark's own are between processes of a session.
    rows = frame.mapInArrow(work, "outcome binary").collect()
    return [pickle.loads(row.outcome) for row in rows]


def _work(packed: bytes, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    return _answer(run_task(pickle.loads(packed), _token(), batches))


def _run_works(spark: SparkSession, packed: bytes, works: Sequence[Work]) -> list[Outcome]:
    """Deal out what tasks have handed on."""
    return on_workers(spark, partial(_work_bundle, packed), works, lambda work: work.size)


def _work_bundle(packed: bytes, works: Sequence[Work], token: Token) -> Outcome:
    return run_works(pickle.loads(packed), token, works)


def on_workers(
    spark: SparkSession,
    do: Callable[[Sequence[Item], Token], Answer],
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
    bundles = deal(items, size, tasks)
    numbers = spark.range(0, len(bundles), 1, len(bundles))
    rows = numbers.mapInArrow(partial(_bundle, pickle.dumps((do, bundles))), "answer binary")
    return [pickle.loads(row.answer) for row in rows.collect()]


def _bundle(packed: bytes, numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    do, bundles = pickle.loads(packed)
    for batch in numbers:
        for number in batch.column(0).to_pylist():
            answer = pickle.dumps(do(bundles[number], _token()))
            yield pa.RecordBatch.from_pydict({"answer": [answer]})


def _token() -> Token:
    context = TaskContext.get()
    if context is None:
        return Token()
    return Token(context.partitionId(), context.stageId(), context.taskAttemptId())


def _answer(outcome: Outcome) -> Iterator[pa.RecordBatch]:
    if outcome != Outcome():
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
    placed_already = {LEAVES, PARTITION_PATH}.issubset(frame.columns)
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
def _fine_shuffle(spark: SparkSession) -> Iterator[None]:
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
    return failure_of(error)


def failure_of(error: Exception) -> Exception:
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
