"""Keys and partition paths as columns, and where the rows of keys are in the table.

With a global index, one join with all keys of the table finds the partition of each key. Where the
rows of a partition are too many for one task, a join with the keys of its partition finds the file
group of each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import reduce
from inspect import signature
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.pandas.types import to_arrow_schema

from lakewright.model.partition_paths import partition_paths
from lakewright.model.record_keys import record_keys
from lakewright.model.schema import PARTITION_PATH, RECORD_KEY
from lakewright.scan.planner import plan_snapshot
from lakewright.spark.reader import quoted, scan_slices
from lakewright.write.incoming_rows import MOVED_COLUMN, TARGET_COLUMN, rows_in
from lakewright.write.index import (
    DELETED_BY_LOGS,
    NumberedSlice,
    number_slices,
    ranked_keys,
    ranks_of,
)
from lakewright.write.targeted_rows import FILE_GROUP, NEW_KEYS, bucket_targets
from lakewright.write.task import Operation, WriteTask

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

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


# File groups: a join with the keys of the partitions that rows come into.


_RANK = "_lakewright_rank"
_SHARDS = "_lakewright_shards"
# Where nothing tells how many new keys come. Many shards cost little: a task writes those that it
# gets into the same files.
_DEFAULT_SHARDS = 512
_ROWS_PER_SHARD = 200_000


def tag_file_groups(
    frame: DataFrame, task: WriteTask, read_keys: Callable[[Sequence[NumberedSlice]], DataFrame]
) -> tuple[DataFrame, frozenset[str]]:
    """Return the rows with their partitions and targets, and the partitions that were looked up.

    `read_keys` returns the keys of slices as columns: partition, key, and rank.
    """
    keyed = frame.withColumn(_KEY, key_column(task))
    if PARTITION_PATH not in frame.columns:
        keyed = keyed.withColumn(PARTITION_PATH, path_column(task))
    shards = _shards_by_partition(keyed, task)
    groups = task.snapshot.groups(task.snapshot.view(), task.snapshot.files(shards))
    shard_count = _sharded(frame, shards)
    shard = F.concat(F.lit(NEW_KEYS), F.pmod(F.xxhash64(_KEY), shard_count).cast("string"))
    slices = (
        ()
        if task.operation.replaces
        else number_slices(group.latest_merged_slice() for group in groups)
    )
    if not slices:
        return keyed.withColumn(TARGET_COLUMN, shard).drop(_KEY), frozenset(shards)
    # A key that was inserted twice is in two file groups.
    ranked = read_keys(slices).groupBy(PARTITION_PATH, _KEY).agg(F.min(_RANK).alias(_RANK))
    if not task.operation.merges:
        ranked = ranked.where(F.col(_RANK) < DELETED_BY_LOGS)
    numbers = [
        (item.partition, rank, FILE_GROUP + item.file_id)
        for number, item in slices
        for rank in ranks_of(number)
    ]
    targets = frame.sparkSession.createDataFrame(
        numbers, f"{PARTITION_PATH} string, {_RANK} long, {TARGET_COLUMN} string"
    )
    located = ranked.join(F.broadcast(targets), [PARTITION_PATH, _RANK]).drop(_RANK)
    tagged = keyed.join(located, [PARTITION_PATH, _KEY], "left")
    target = F.coalesce(F.col(TARGET_COLUMN), shard)
    return tagged.withColumn(TARGET_COLUMN, target).drop(_KEY), frozenset(shards)


def tag_buckets(frame: DataFrame, task: WriteTask) -> DataFrame:
    """Return the rows with their partitions and, as targets, their buckets."""
    target = _computed_column(
        task,
        task.key_rule.fields,
        lambda rows: bucket_targets(record_keys(rows, task.key_rule, strict=task.adds_rows), task),
    )
    tagged = frame.withColumn(TARGET_COLUMN, target)
    if PARTITION_PATH in frame.columns:
        return tagged
    return tagged.withColumn(PARTITION_PATH, path_column(task))


def _shards_by_partition(keyed: DataFrame, task: WriteTask) -> dict[str, int]:
    """Return into how many shards the new keys of each partition are divided."""
    if not task.partition_rule.fields:
        return {"": _DEFAULT_SHARDS}
    counts = keyed.groupBy(PARTITION_PATH).count().collect()
    return {row[0]: max(1, -(-row[1] // _ROWS_PER_SHARD)) for row in counts}


def _sharded(frame: DataFrame, shards: Mapping[str, int]) -> Column:
    large = {path: number for path, number in shards.items() if number > 1}
    if not large:
        return F.lit(1)
    pairs = [F.lit(value) for pair in large.items() for value in pair]
    return F.coalesce(F.element_at(F.create_map(*pairs), F.col(PARTITION_PATH)), F.lit(1))


def key_batches(task: WriteTask, slices: Iterable[NumberedSlice]) -> Iterator[pa.RecordBatch]:
    """Return the keys of slices with their ranks, on a worker."""
    for number, item in slices:
        for keys, rank in ranked_keys(task, item, number):
            ranks = rank if isinstance(rank, np.ndarray) else np.full(len(keys), rank)
            yield pa.RecordBatch.from_arrays(
                [
                    pa.repeat(pa.scalar(item.partition), len(keys)),
                    keys.cast(pa.string()),
                    pa.array(ranks, pa.int64()),
                ],
                names=[PARTITION_PATH, _KEY, _RANK],
            )


KEY_BATCHES = f"{PARTITION_PATH} string, {_KEY} string, {_RANK} long"
