"""Where in the whole table keys live: one join, on Spark, before rows go to their partitions.

A row whose key lives in another partition moves: it leaves the old one and enters the new one. Rows
that only arrive late stay out, as they would within one partition.
"""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from lakewright.core.meta_columns import PARTITION_PATH, RECORD_KEY
from lakewright.read.query import plan_snapshot
from lakewright.read.run import quoted, scan
from lakewright.write.columns.run import key_column, path_column
from lakewright.write.incoming import LEAVES
from lakewright.write.task import Operation, WriteTask

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_KEY = "_lakewright_key"
_OLD_PATH = "_lakewright_old_path"
_OLD_ORDER = "_lakewright_old_order"


def placed(frame: DataFrame, task: WriteTask) -> DataFrame:
    """The rows with the partition that each goes to, and a second one for each that leaves."""
    columns = [column for column in frame.columns if column not in (PARTITION_PATH, LEAVES)]
    keyed = frame.drop(PARTITION_PATH).withColumn(_KEY, key_column(task))
    if task.operation is Operation.DELETE:
        return _deletes(keyed, task, columns)
    newest = _newest(keyed, task).withColumn(PARTITION_PATH, path_column(task))
    joined = newest.join(_existing(newest, task), _KEY, "left")
    moves = F.col(_OLD_PATH).isNotNull() & (F.col(_OLD_PATH) != F.col(PARTITION_PATH))
    told = F.coalesce(F.col(LEAVES), F.lit(False)) if LEAVES in frame.columns else F.lit(False)
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
        F.col("_lakewright_to.leaves").alias(LEAVES),
    )


def _deletes(keyed: DataFrame, task: WriteTask, columns: list[str]) -> DataFrame:
    joined = keyed.join(_existing(keyed, task), _KEY, "inner")
    return joined.select(
        *(quoted(name) for name in columns),
        F.col(_OLD_PATH).alias(PARTITION_PATH),
        F.lit(True).alias(LEAVES),
    )


def _existing(frame: DataFrame, task: WriteTask) -> DataFrame:
    """Every key of the table with its partition and ordering values."""
    if task.snapshot.avro_schema() is None:
        empty = f"{_KEY} string, {_OLD_PATH} string"
        known = frame.sparkSession.createDataFrame([], empty)
        return known.withColumn(_OLD_ORDER, F.lit(None)) if task.rule.ordering else known
    columns = (RECORD_KEY, PARTITION_PATH, *task.rule.ordering)
    rows = scan(frame.sparkSession, task.storage, plan_snapshot(task.snapshot, columns=columns))
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
