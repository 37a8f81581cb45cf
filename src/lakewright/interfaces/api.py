"""The table as people hold it in their hands; it only forwards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession

from lakewright.clock import zone_of
from lakewright.core.instant import Instant, query_time
from lakewright.core.table_config import TableConfig
from lakewright.errors import InvalidError, UnsupportedError
from lakewright.interfaces.datasource import session_storage_options
from lakewright.interfaces.query_options import begin_of_range, end_of_range
from lakewright.read.query import plan_changes, plan_read_optimized, plan_snapshot
from lakewright.read.run import scan
from lakewright.storage.base import Storage
from lakewright.storage.locate import storage_for
from lakewright.table.snapshot import Snapshot, load_snapshot

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from lakewright.read.plan import ReadPlan


@dataclass(frozen=True)
class Changes:
    """The rows that changed in a range, and where to go on from next time."""

    dataframe: DataFrame
    checkpoint: str | None
    instants: tuple[Instant, ...]


class Table:
    """A table at a path. Each call looks at the table as it is then."""

    def __init__(self, storage: Storage, spark: SparkSession | None = None) -> None:
        self.storage = storage
        self._spark = spark

    @property
    def path(self) -> str:
        """Where the table is, as a URI."""
        return self.storage.root

    @property
    def config(self) -> TableConfig:
        """The table's properties."""
        return self.snapshot().config

    def snapshot(self) -> Snapshot:
        """The table's state now, as a value."""
        return load_snapshot(self.storage)

    def timeline(self, *, archived: bool = False) -> tuple[Instant, ...]:
        """The instants of the active timeline, oldest first; `archived` puts history before it."""
        snapshot = self.snapshot()
        before = snapshot.archived if archived else ()
        return (*before, *snapshot.timeline)

    def read(
        self, as_of: str | datetime | Instant | None = None, *, columns: Sequence[str] | None = None
    ) -> DataFrame:
        """All rows as they are, or as they were at `as_of`.

        `as_of` is an instant, compared with requested times, or a date and time. `columns` spares
        the work for others where log files must be merged; elsewhere Spark prunes by itself.
        """
        snapshot = self.snapshot()
        time = None
        if as_of is not None:
            text = as_of.requested_at if isinstance(as_of, Instant) else as_of
            time = query_time(text, zone_of(snapshot.config.timeline_zone))
        return self._scan(plan_snapshot(snapshot, as_of=time, columns=columns))

    def read_optimized(self, *, columns: Sequence[str] | None = None) -> DataFrame:
        """The rows of base files alone: fast, and as old as the last compaction."""
        return self._scan(plan_read_optimized(self.snapshot(), columns=columns))

    def changes(
        self,
        since: str | Instant | None = None,
        until: str | Instant | None = None,
        limit: int | None = None,
        *,
        format: str = "latest_state",
        columns: Sequence[str] | None = None,
        fallback: bool = True,
    ) -> Changes:
        """The rows that changed in (since, until], by completion time, as they were at `until`.

        Where files of the range were cleaned its rows are looked for in the newest files; without
        `fallback` that is an error.
        """
        if format != "latest_state":
            raise UnsupportedError("change data is not read yet", format=format)
        plan = plan_changes(
            self.snapshot(),
            since=begin_of_range(since),
            until=end_of_range(until),
            limit=limit,
            columns=columns,
            fallback=fallback,
        )
        return Changes(self._scan(plan.read), plan.range.checkpoint, plan.range.instants)

    def _scan(self, plan: ReadPlan) -> DataFrame:
        spark = self._spark or SparkSession.getActiveSession()
        if spark is None:
            raise InvalidError(
                "reading rows needs Spark: open the table with spark=..., or start a session before"
            )
        return scan(spark, self.storage, plan)

    def __repr__(self) -> str:
        return f"Table({self.path!r})"


def open_table(
    path: str, spark: SparkSession | None = None, *, options: Mapping[str, str] | None = None
) -> Table:
    """The table at a path.

    `options` are for its storage, such as `fs.s3a.endpoint`; what the session is configured with
    (`spark.hadoop.fs.s3a.endpoint`) counts where they say nothing.
    """
    session = session_storage_options(spark) if spark is not None else {}
    table = Table(storage_for(path, {**session, **(options or {})}), spark)
    table.snapshot()
    return table
