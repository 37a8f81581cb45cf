"""The table as people hold it in their hands; it only forwards."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from pyspark.sql import SparkSession

from lakewright.catalog.sync import SyncResult, sync
from lakewright.client.stream_sink import IDENTIFIER, StreamSink, names_stream
from lakewright.client.ttl import TableTtl
from lakewright.client.write_client import Options, WriteClient, write_frame
from lakewright.clock import SystemClock, zone_of
from lakewright.datasource.session_catalog import spark_catalog_sync
from lakewright.errors import InvalidError
from lakewright.model.freshness import Freshness
from lakewright.model.instant import Instant, InstantTime, query_time
from lakewright.model.plans import Skip
from lakewright.model.table_config import TableConfig
from lakewright.options import check_names
from lakewright.scan.cdc.planner import CdcScan, plan_cdc
from lakewright.scan.planner import (
    IncrementalScan,
    plan_changes,
    plan_read_optimized,
    plan_snapshot,
)
from lakewright.scan.query_options import begin_of_range, end_of_range
from lakewright.services.compaction_debt import CompactionDebt, load_debt
from lakewright.services.runner import ServiceRunner
from lakewright.spark.reader import scan
from lakewright.storage.base import Storage
from lakewright.storage.factory import OpenedStorage, other_options, storage_option_names
from lakewright.table.doctor.doctor import examine
from lakewright.table.doctor.doctor import repair as repair_table
from lakewright.table.doctor.findings import Diagnosis
from lakewright.table.freshness import BlockingLogFile
from lakewright.table.freshness_report import (
    Catalog,
    SparkCatalog,
    catalog_properties,
    load_blocking_log_files,
    load_freshness,
    wait_until_complete,
)
from lakewright.table.rollback import RollbackInfo, load_rollbacks
from lakewright.table.snapshot import Snapshot, load_consistent_snapshot, load_snapshot
from lakewright.write.task import Operation
from lakewright.write.writer import Commit

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from lakewright.scan.cdc.planner import CdcScanPlan
    from lakewright.scan.scan_plan import ScanPlan

_CHANGE_FORMATS: dict[str, Callable[..., IncrementalScan | CdcScan]] = {
    "latest_state": plan_changes,
    "cdc": plan_cdc,
}


@dataclass(frozen=True)
class Changes:
    """The rows that changed in a range, and where to go on from next time."""

    dataframe: DataFrame
    checkpoint: str | None
    instants: tuple[Instant, ...]


class Table:
    """A table at a path. Each call looks at the table as it is then."""

    def __init__(
        self,
        storage: Storage,
        spark: SparkSession | None = None,
        *,
        places: Mapping[str, str] | None = None,
    ) -> None:
        """`places` are options for storage that a stream's checkpoint may need as well."""
        self.storage = storage
        self._spark = spark
        self._place = OpenedStorage(storage, dict(places or {}))

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
        `fallback` that is an error. The format `cdc` tells what was done to each row instead, with
        `columns` of it before and after.
        """
        if format not in _CHANGE_FORMATS:
            raise InvalidError(
                "there is no such format of changes", format=format, known=list(_CHANGE_FORMATS)
            )
        plan = _CHANGE_FORMATS[format](
            load_consistent_snapshot(self.storage),
            since=begin_of_range(since),
            until=end_of_range(until),
            limit=limit,
            columns=columns,
            fallback=fallback,
        )
        return Changes(self._scan(plan.plan), plan.context.checkpoint, plan.context.instants)

    def upsert(self, frame: DataFrame, options: Options = None) -> Commit | Skip:
        """Update the rows whose key the table has, insert the others."""
        return write_frame(self._place, frame, Operation.UPSERT, options)

    def insert(self, frame: DataFrame, options: Options = None) -> Commit | Skip:
        """Add rows without looking for their keys; small files are filled first."""
        return write_frame(self._place, frame, Operation.INSERT, options)

    def bulk_insert(self, frame: DataFrame, options: Options = None) -> Commit | Skip:
        """Add rows, each task into files of its own: the fastest way to load many."""
        return write_frame(self._place, frame, Operation.BULK_INSERT, options)

    def delete(
        self, frame: DataFrame, options: Options = None, *, ordered: bool = False
    ) -> Commit | Skip:
        """Delete the rows whose key and partition columns are in `frame`.

        An `ordered` delete competes by the ordering columns: it spares a row that is newer.
        """
        return write_frame(self._place, frame, Operation.DELETE, options, ordered=ordered)

    def insert_overwrite(self, frame: DataFrame, options: Options = None) -> Commit | Skip:
        """Replace all rows of the partitions that `frame` has rows for."""
        return write_frame(self._place, frame, Operation.INSERT_OVERWRITE, options)

    def insert_overwrite_table(self, frame: DataFrame, options: Options = None) -> Commit | Skip:
        """Replace all rows of the table."""
        return write_frame(self._place, frame, Operation.INSERT_OVERWRITE_TABLE, options)

    def delete_partitions(
        self, partitions: Sequence[str] | str, options: Options = None
    ) -> Commit | Skip:
        """Take partitions out of the table: paths, or patterns with `*` and `?` for each level."""
        return WriteClient.create(self._place, options).delete_partitions(partitions)

    def stream_sink(self, options: Options = None, *, checkpoint: str | None = None) -> StreamSink:
        """A function for `foreachBatch` that writes each batch exactly once.

        The operation is an upsert unless `hoodie.datasource.write.operation` says otherwise.
        `checkpoint` is the query's checkpoint location. Without it batches of another query would
        be taken for replayed ones, unless an option gives each query an identifier of its own.
        """
        told = other_options(options or {})
        place = self._place.with_options(options or {})
        if checkpoint is None and not names_stream(told):
            raise InvalidError(
                "a stream must be told from others: give checkpoint=, or name it by the option",
                option=IDENTIFIER,
            )
        return StreamSink(place.storage, told, checkpoint=checkpoint, places=place.options)

    def preview(self, service: str, options: Options = None) -> Any:
        """The plan that a service would make now, or `Skip`; nothing is written."""
        return self.services(options).preview(service)

    def schedule(self, service: str, options: Options = None) -> Instant | Skip:
        """Put the plan of a service on the timeline, for anybody to execute."""
        return self.services(options).schedule(service)

    def execute(self, instant: InstantTime | Instant, options: Options = None) -> Commit | Skip:
        """Execute a plan on the timeline, whoever made it; done already: its result."""
        return self.services(options).execute(_time(instant))

    def run(self, service: str, options: Options = None) -> Commit | Skip:
        """Schedule a service and execute it."""
        return self.services(options).run(service)

    def cancel(
        self,
        instant: InstantTime | Instant,
        options: Options = None,
        *,
        user: str = "",
        reason: str = "",
        wait: float = 0.0,
    ) -> Instant:
        """Take a cancellable plan back, whoever made it; gives its rollback. May be repeated.

        A plan that is being executed is asked to stop: the rollback is in state REQUESTED until
        that has happened, and `wait` is how many seconds to wait for it.
        """
        runner = self.services(options)
        return runner.cancel(_time(instant), user=user, reason=reason, wait_s=wait)

    def rollbacks(self, *, archived: bool = False) -> tuple[RollbackInfo, ...]:
        """The rollbacks on the active timeline: what they took back, by what caused, and why.

        `archived` adds those in history.
        """
        return load_rollbacks(self.snapshot(), archived=archived)

    @property
    def ttl(self) -> TableTtl:
        """The settings and policies by which old partitions leave the table."""
        return TableTtl.for_table(self.storage)

    def doctor(
        self, options: Options = None, *, repair: bool = False, force: bool = False
    ) -> Diagnosis:
        """What is wrong with the table: findings, each with what to do about it.

        `repair` puts right what can safely be, under the table's lock, and gives what is left. With
        `force` it also rolls the newest write back if its completed file is empty or cut off.
        """
        if force and not repair:
            raise InvalidError("force is for a repair: ask for that as well")
        writer = WriteClient.create(self._place, options).writer()
        found = examine(writer.storage, writer.clock, writer.heartbeat)
        return repair_table(writer, found, force=force) if repair else found

    def debt(self) -> CompactionDebt:
        """What the table owes: log files that no compaction has folded in yet, and why."""
        return load_debt(self.services().planning_context(self.snapshot()))

    def freshness(self, options: Options = None) -> Freshness:
        """Completion and freshness of the snapshot and of the read-optimized view.

        They are told from commits, no data file is read. An option says how far in the future an
        event time may lie before it is flagged: `lakewright.event.time.future.tolerance.ms`.
        """
        told = other_options(options or {})
        check_names(told, also=storage_option_names())
        return load_freshness(self._place.with_options(options or {}).storage, SystemClock(), told)

    def holding_back(self, limit: int = 20) -> tuple[BlockingLogFile, ...]:
        """The log files that hold read-optimized completion back, the worst first."""
        return load_blocking_log_files(self.storage, limit)

    def wait_until_complete(
        self,
        time: int | str | datetime,
        view: str = "read_optimized",
        timeout: float = 600.0,
        poll: float = 5.0,
    ) -> Freshness:
        """Wait until a view is complete up to an event time; gives the freshness seen then.

        `time` is in milliseconds since 1970, a date and time, or an instant. UnavailableError after
        `timeout` seconds tells what holds the view back.
        """
        return wait_until_complete(
            self.storage, SystemClock(), time, view=view, timeout=timeout, poll=poll
        )

    def sync_catalog(self, name: str, catalog: Catalog | None = None) -> dict[str, str | None]:
        """Put completion and freshness among the properties of a table in a catalog.

        That is the catalog of the Spark session unless another one is given. Gives what was set;
        what is unknown is taken away there.
        """
        properties = catalog_properties(self.freshness())
        (catalog or SparkCatalog(self._session(), self.path)).set_properties(name, properties)
        return properties

    def sync(self, options: Options = None) -> tuple[SyncResult, ...] | Skip:
        """Register the table and its partitions in a catalog, or tell it what has changed.

        Options in Hudi's words name the catalog; without them it is that of the Spark session.
        """
        writer = WriteClient.create(self._place, options)
        return sync(writer.storage, writer.clock, writer.options, spark_catalog_sync(self._session))

    def services(self, options: Options = None) -> ServiceRunner:
        """What runs services on the table, with some options."""
        return WriteClient.create(self._place, options, spark=self._spark).services

    def rollback(
        self, instant: InstantTime | Instant, options: Options = None, *, force: bool = False
    ) -> Instant | Skip:
        """Take back a write, its files and its place on the timeline; the newest ones first.

        With `force` also one whose completed file on the timeline is empty or cut off, as after a
        power cut: its data files are found by name, and its rows are gone then.
        """
        return WriteClient.create(self._place, options).rollback(_time(instant), force=force)

    def savepoint(
        self,
        instant: InstantTime | Instant,
        options: Options = None,
        *,
        user: str = "",
        comment: str = "",
    ) -> Instant:
        """Keep the files of the table as of a completed write, so that it can be restored."""
        writer = WriteClient.create(self._place, options)
        return writer.savepoint(_time(instant), user=user, comment=comment)

    def restore(self, instant: InstantTime | Instant, options: Options = None) -> Instant:
        """Take the table back to a savepoint."""
        return WriteClient.create(self._place, options).restore(_time(instant))

    def _scan(self, plan: ScanPlan | CdcScanPlan) -> DataFrame:
        return scan(self._session(), self.storage, plan)

    def _session(self) -> SparkSession:
        spark = self._spark or SparkSession.getActiveSession()
        if spark is None:
            raise InvalidError(
                "reading rows needs Spark: open the table with spark=..., or start a session before"
            )
        return spark

    def __repr__(self) -> str:
        return f"Table({self.path!r})"


def _time(instant: InstantTime | Instant) -> str:
    return instant.requested_at if isinstance(instant, Instant) else instant
