"""A plan of change data on Spark: Arrow workers, each with some file groups."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import types as T
from pyspark.sql.datasource import DataSourceReader, InputPartition

from lakewright.read.cdc.step import CdcPlan, decode_changes, encode_changes
from lakewright.read.cdc.worker import read_changes
from lakewright.read.plan import ReadPlan
from lakewright.read.run import PlannedSource, registered, scan, spark_schema
from lakewright.storage.base import Storage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def scan_any(spark: SparkSession, storage: Storage, plan: ReadPlan | CdcPlan) -> DataFrame:
    """The rows or changes of a plan as a DataFrame; nothing is read before it is used."""
    if isinstance(plan, CdcPlan):
        return scan_changes(spark, storage, plan)
    return scan(spark, storage, plan)


def scan_changes(spark: SparkSession, storage: Storage, plan: CdcPlan) -> DataFrame:
    """The changes of a plan as a DataFrame; those of a file group stay together, and in order."""
    if not plan.groups:
        return spark.createDataFrame([], spark_schema(plan.result_schema))
    return (
        spark.read.format(registered(spark, ChangeSource, storage))
        .schema(spark_schema(plan.result_schema))
        .option("plan", encode_changes(plan))
        .load()
    )


class ChangeSource(PlannedSource):
    """File groups of a planned query of change data."""

    kind = "lakewright_changes"

    def reader(self, schema: T.StructType) -> DataSourceReader:
        """A reader of the plan in the options."""
        return ChangeReader(self.storage, decode_changes(self.options["plan"]))


@dataclass
class ChangePartition(InputPartition):
    """The work of one task."""

    storage: Storage
    plan: CdcPlan


class ChangeReader(DataSourceReader):
    """Reads the changes of file groups."""

    def __init__(self, storage: Storage, plan: CdcPlan) -> None:
        self._storage = storage
        self._plan = plan

    def partitions(self) -> Sequence[InputPartition]:
        """The file groups in pieces of a fair size."""
        return [ChangePartition(self._storage, task) for task in self._plan.tasks()]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The changes of one piece; where there is none Spark asks for those of a blank one."""
        if not isinstance(partition, ChangePartition):
            return iter(())
        return read_changes(partition.storage, partition.plan)
