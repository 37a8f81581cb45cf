"""`Table`, the public interface of a table: each method calls one function of the library."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession

from lakewright.catalog.sync import SyncResult, sync
from lakewright.client.stream_sink import IDENTIFIER, StreamSink, names_stream
from lakewright.client.ttl import TableTtl
from lakewright.client.write_client import Options, WriteClient, write_frame
from lakewright.clock import Clock, SystemClock, zone_of
from lakewright.datasource.session_catalog import spark_catalog_sync
from lakewright.errors import InvalidError
from lakewright.model.freshness import Freshness
from lakewright.model.instant import Instant, InstantTime, query_time
from lakewright.model.plans import CleanPlan, ClusteringPlan, CompactionPlan, Skip
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
from lakewright.services.archiving.planner import ArchivePlan
from lakewright.services.compaction_debt import CompactionDebt, load_debt
from lakewright.services.runner import ServiceRunner
from lakewright.services.ttl.planner import TtlPlan
from lakewright.spark.reader import scan
from lakewright.storage.base import Storage
from lakewright.storage.factory import OpenedStorage, other_options, storage_option_names
from lakewright.table.doctor.doctor import examine
from lakewright.table.doctor.doctor import repair as repair_table
from lakewright.table.doctor.findings import Diagnosis
from lakewright.table.freshness_report import (
    Catalog,
    SparkCatalog,
    catalog_properties,
    load_blocking_log_files,
    load_freshness,
    wait_until_complete,
)
from lakewright.table.heartbeat import PlanHeartbeats
from lakewright.table.rollback import RollbackInfo, load_rollbacks
from lakewright.table.snapshot import Snapshot, load_consistent_snapshot, load_snapshot
from lakewright.table.uncompacted_logs import BlockingLogFile
from lakewright.utils.deprecation import warn_renamed
from lakewright.write.task import Operation
from lakewright.write.writer import Commit

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from lakewright.scan.cdc.planner import CdcScanPlan
    from lakewright.scan.scan_plan import ScanPlan

ServicePlan = CompactionPlan | ClusteringPlan | CleanPlan | ArchivePlan | TtlPlan

_CHANGE_FORMATS: dict[str, Callable[..., IncrementalScan | CdcScan]] = {
    "latest_state": plan_changes,
    "cdc": plan_cdc,
}


@dataclass(frozen=True)
class Changes:
    """The result of `Table.changes`.

    Attributes:
        dataframe: The changed rows.
        checkpoint: The completion time at which the range ends; pass it as `since` to the next
            call.
        instants: The instants of the range, in completion order.
    """

    dataframe: DataFrame
    checkpoint: str | None
    instants: Sequence[Instant]


class Table:
    """A table at a path, as returned by `lw.open` and `lw.create`.

    Each call reads the current state of the table; nothing is cached between calls. Methods that
    take `options` accept Hudi's option keys and storage options. Methods that take an instant
    accept an `Instant` or its requested time.

    Example:
        ```python
        table = lw.open("s3a://lake/trips", spark=spark)
        table.upsert(df)
        table.run("compaction")
        table.read().count()
        ```
    """

    def __init__(
        self,
        storage: Storage,
        spark: SparkSession | None = None,
        *,
        storage_options: Mapping[str, str] | None = None,
        places: Mapping[str, str] | None = None,
    ) -> None:
        """Use `lw.open` or `lw.create` instead.

        Args:
            storage: The storage of the table.
            spark: Spark session; the active session if omitted.
            storage_options: Storage options with which the storage was opened. They also apply to
                the storage of a stream's checkpoint.
            places: Deprecated: use `storage_options`.
        """
        if places is not None:
            warn_renamed("Table(places=)", "Table(storage_options=)")
            storage_options = places
        self.storage = storage
        self._spark = spark
        self._opened_storage = OpenedStorage(storage, dict(storage_options or {}))
        # This object executes the clusterings that it has scheduled, also if those expire.
        self._plan_heartbeats = PlanHeartbeats()

    @property
    def path(self) -> str:
        """The location of the table, as a URI."""
        return self.storage.root

    @property
    def config(self) -> TableConfig:
        """The table properties (`hoodie.properties`)."""
        return self.snapshot().config

    def snapshot(self) -> Snapshot:
        """Return the current state of the table as an immutable value."""
        return load_snapshot(self.storage)

    def timeline(self, *, archived: bool = False) -> tuple[Instant, ...]:
        """Return the instants of the timeline, oldest first.

        Args:
            archived: Whether to include the archived timeline.
        """
        snapshot = self.snapshot()
        archived_instants = snapshot.archived if archived else ()
        return (*archived_instants, *snapshot.timeline)

    def read(
        self, as_of: str | datetime | Instant | None = None, *, columns: Sequence[str] | None = None
    ) -> DataFrame:
        """Return all rows of the table: a snapshot query, or time travel with `as_of`.

        Args:
            as_of: An instant, compared with requested times, or a date and time. A date and time
                without a zone is in the zone of the table's timeline. The current state if omitted.
            columns: Columns to merge in file slices with log files. Spark prunes columns of other
                file slices by itself.

        Returns:
            The rows, with the five Hudi meta columns first.

        Raises:
            InvalidError: There is no Spark session, or the table has no such column.

        Example:
            ```python
            table.read().where("city = 'Oslo'").show()
            table.read(as_of="2026-01-31 12:00:00").count()
            table.read(as_of=table.timeline()[0]).drop(*lw.META_COLUMNS)
            ```
        """
        snapshot = self.snapshot()
        time = None
        if as_of is not None:
            text = as_of.requested_at if isinstance(as_of, Instant) else as_of
            time = query_time(text, zone_of(snapshot.config.timeline_zone))
        return self._scan(plan_snapshot(snapshot, as_of=time, columns=columns))

    def read_optimized(self, *, columns: Sequence[str] | None = None) -> DataFrame:
        """Return the rows of base files only, as of the last compaction: faster than `read`.

        Args:
            columns: Columns to read; all if omitted.
        """
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
        """Return the rows that changed in a range of completion times: an incremental or CDC query.

        The range is `(since, until]`. It holds the rows that its writes wrote, as of `until`. A
        write that completes late is in the range of its completion, so no write is missed.

        Args:
            since: Completion time or instant after which the range begins; the beginning of the
                table if omitted.
            until: Completion time or instant at which the range ends; the newest if omitted.
            limit: Maximum number of instants in the range.
            format: `latest_state` for each changed row as of the end of the range, or `cdc` for
                each insert, update and delete with the row before and after it.
            columns: Columns to return; with `cdc`, the columns in `before` and `after`.
            fallback: Whether to read the latest files if the cleaner has deleted files of the
                range. Otherwise that is an error.

        Returns:
            The rows and the checkpoint from which to continue.

        Raises:
            InvalidError: There is no such format, or files of the range were cleaned and cannot be
                replaced.

        Example:
            ```python
            changes = table.changes(since=None)
            changes.dataframe.show()
            later = table.changes(since=changes.checkpoint)
            cdc = table.changes(since=changes.checkpoint, format="cdc")
            cdc.dataframe.select("op", "before", "after").show()
            ```
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

    def upsert(self, frame: DataFrame, options: Options = None) -> Commit:
        """Update rows whose record key is in the table and insert the others.

        Args:
            frame: The rows. Of several rows with the same key, the one with the greatest ordering
                value is written. A row with a lower ordering value than the stored row changes
                nothing.
            options: Write options with Hudi's keys, and storage options.

        Returns:
            The commit; that of a frame without rows is empty.

        Raises:
            ConflictError: A concurrent operation changed the same file groups; nothing was
                committed.
            InvalidError: An option, a column or a value is invalid; nothing was committed.
            UnavailableError: The storage or the lock did not respond.

        Example:
            ```python
            commit = table.upsert(df)
            print(commit.instant, commit.inserted, commit.updated)
            ```
        """
        return write_frame(self._opened_storage, frame, Operation.UPSERT, options)

    def insert(self, frame: DataFrame, options: Options = None) -> Commit:
        """Insert rows without an index lookup; small files are filled first.

        Args:
            frame: The rows.
            options: Write options with Hudi's keys, and storage options.
        """
        return write_frame(self._opened_storage, frame, Operation.INSERT, options)

    def bulk_insert(self, frame: DataFrame, options: Options = None) -> Commit:
        """Insert rows, each task into its own files: the fastest way to load many rows.

        Args:
            frame: The rows.
            options: Write options with Hudi's keys, and storage options.
        """
        return write_frame(self._opened_storage, frame, Operation.BULK_INSERT, options)

    def delete(self, frame: DataFrame, options: Options = None, *, ordered: bool = False) -> Commit:
        """Delete the rows whose record key and partition columns are in `frame`.

        Args:
            frame: Rows with the key and partition columns; with `ordered`, also the ordering
                columns.
            options: Write options with Hudi's keys, and storage options.
            ordered: Whether to compare ordering values, so that a newer row is not deleted.

        Returns:
            The commit; that of a frame without rows is empty.

        Raises:
            ConflictError: A concurrent operation changed the same file groups; nothing was
                committed.
            InvalidError: An option or a column is invalid; nothing was committed.

        Example:
            ```python
            table.delete(table.read().where("rider = 'r-17'"))
            ```
        """
        return write_frame(self._opened_storage, frame, Operation.DELETE, options, ordered=ordered)

    def insert_overwrite(self, frame: DataFrame, options: Options = None) -> Commit:
        """Replace all rows of the partitions that `frame` has rows for.

        Args:
            frame: The rows.
            options: Write options with Hudi's keys, and storage options.
        """
        return write_frame(self._opened_storage, frame, Operation.INSERT_OVERWRITE, options)

    def insert_overwrite_table(self, frame: DataFrame, options: Options = None) -> Commit:
        """Replace all rows of the table.

        Args:
            frame: The rows.
            options: Write options with Hudi's keys, and storage options.
        """
        return write_frame(self._opened_storage, frame, Operation.INSERT_OVERWRITE_TABLE, options)

    def delete_partitions(self, partitions: Sequence[str] | str, options: Options = None) -> Commit:
        """Delete partitions from the table; a later clean deletes their files.

        Args:
            partitions: Partition paths, or patterns with `*` and `?` within one level.
            options: Write options with Hudi's keys, and storage options.

        Returns:
            The commit; it is empty if no partition matches.

        Example:
            ```python
            table.delete_partitions(["day=2026-01-*"])
            ```
        """
        return WriteClient.create(self._opened_storage, options).delete_partitions(partitions)

    def stream_sink(self, options: Options = None, *, checkpoint: str | None = None) -> StreamSink:
        """Return a function for `foreachBatch` that writes each batch exactly once.

        The sink upserts unless the option `hoodie.datasource.write.operation` names another
        operation.

        Args:
            options: Write options with Hudi's keys, and storage options.
            checkpoint: Checkpoint location of the query, by which the sink distinguishes its
                batches from those of other queries. Required unless the option
                `hoodie.datasource.write.streaming.checkpoint.identifier` names the query.

        Returns:
            The sink.

        Raises:
            InvalidError: Neither a checkpoint location nor an identifier is given.

        Example:
            ```python
            checkpoint = "s3a://lake/checkpoints/trips"
            sink = table.stream_sink(checkpoint=checkpoint)
            writer = stream.writeStream.foreachBatch(sink)
            query = writer.option("checkpointLocation", checkpoint).start()
            ```
        """
        write_options = other_options(options or {})
        opened_storage = self._opened_storage.with_options(options or {})
        if checkpoint is None and not names_stream(write_options):
            raise InvalidError(
                "a stream needs an identity of its own: give checkpoint=, or name it by the option",
                option=IDENTIFIER,
            )
        return StreamSink(
            opened_storage.storage,
            write_options,
            checkpoint=checkpoint,
            storage_options=opened_storage.options,
        )

    def preview(self, service: str, options: Options = None) -> ServicePlan | Skip:
        """Return the plan that a service would schedule now; nothing is written.

        Args:
            service: Name of the service, such as `compaction` or `ttl`.
            options: Options of the service, and storage options.

        Returns:
            The plan, or `Skip` with the reason if there is nothing to do. A registered service has
            plans of a class of its own.
        """
        plan: ServicePlan | Skip = self.services(options).preview(service)
        return plan

    def schedule(self, service: str, options: Options = None) -> Instant | Skip:
        """Schedule a table service: write its plan to the timeline, for any process to execute.

        With `hoodie.clustering.enable.expirations` this object has to execute its clusterings.

        Args:
            service: Name of the service: `compaction`, `logcompaction`, `clustering`, `clean`, or
                the name of a registered service.
            options: Options of the service, and storage options.

        Returns:
            The instant of the plan, or `Skip` if there is nothing to do.

        Raises:
            InvalidError: There is no such service, or an option is invalid.

        Example:
            ```python
            instant = table.schedule("compaction")
            if instant:
                table.execute(instant)
            ```
        """
        return self.services(options).schedule(service)

    def execute(self, instant: InstantTime | Instant, options: Options = None) -> Commit:
        """Execute a plan on the timeline, no matter which process scheduled it.

        Args:
            instant: The instant of the plan.
            options: Options of the service, and storage options.

        Returns:
            The commit; of a plan that has completed already, its commit again.

        Raises:
            ConflictError: Another process is executing the plan or has scheduled it for itself, or
                a concurrent write conflicts with it.
            InvalidError: There is no pending plan with this instant.

        Example:
            ```python
            commit = table.execute("20260131120000123")
            print(commit.files)
            ```
        """
        return self.services(options).execute(_time(instant))

    def run(self, service: str, options: Options = None) -> Commit | Skip:
        """Schedule a table service and execute it.

        Args:
            service: Name of the service: `compaction`, `logcompaction`, `clustering`, `clean`,
                `archive`, `ttl`, or the name of a registered service.
            options: Options of the service, and storage options.

        Returns:
            The commit, or `Skip` with the reason if there is nothing to do.

        Raises:
            ConflictError: A concurrent operation conflicts with the service.
            InvalidError: There is no such service, or an option is invalid.

        Example:
            ```python
            table.run("compaction")
            table.run("clustering", {"hoodie.clustering.plan.strategy.sort.columns": "city"})
            ```
        """
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
        """Cancel a cancellable plan, no matter which process scheduled it.

        If a process is executing the plan, the rollback is only requested: that process stops and
        rolls the plan back, or the next writer does if it crashed. Repeating the call is safe.

        Args:
            instant: The instant of the plan.
            options: Options, and storage options.
            user: Name of the user, recorded in the rollback.
            reason: Reason, recorded in the rollback.
            wait: Maximum number of seconds to wait for the execution to stop.

        Returns:
            The rollback of the plan, in state REQUESTED until the execution has stopped.

        Raises:
            InvalidError: There is no such plan, it has completed, or it is not cancellable.

        Example:
            ```python
            night = {"hoodie.table.service.plan.cancellable": "true"}
            instant = table.schedule("clustering", night)
            table.cancel(instant, reason="the morning load starts", wait=60)
            ```
        """
        runner = self.services(options)
        return runner.cancel(_time(instant), user=user, reason=reason, wait_s=wait)

    def rollbacks(self, *, archived: bool = False) -> tuple[RollbackInfo, ...]:
        """Return the rollbacks on the timeline, oldest first, with their target, cause and reason.

        Args:
            archived: Whether to include the archived timeline.
        """
        return load_rollbacks(self.snapshot(), archived=archived)

    @property
    def ttl(self) -> TableTtl:
        """The TTL settings and policies, by which old partitions and rows are deleted."""
        return TableTtl.for_table(self.storage)

    def doctor(
        self, options: Options = None, *, repair: bool = False, force: bool = False
    ) -> Diagnosis:
        """Check the table for damage and leftover files.

        Args:
            options: Options of locks and heartbeats, and storage options.
            repair: Whether to repair, under the table's lock, the findings that are safe to repair.
            force: With `repair`, also roll back the newest write if its completed file on the
                timeline is empty or truncated. Its rows are lost.

        Returns:
            The findings, each with a remedy; after a repair, those that remain.

        Raises:
            InvalidError: `force` was given without `repair`.
        """
        if force and not repair:
            raise InvalidError("force is for a repair: ask for that as well")
        writer = WriteClient.create(self._opened_storage, options).writer()
        diagnosis = examine(writer.storage, writer.clock, writer.heartbeat, writer.lock)
        return repair_table(writer, diagnosis, force=force) if repair else diagnosis

    def compaction_debt(self) -> CompactionDebt:
        """Return the compaction debt: the uncompacted log files by partition, with the reasons."""
        return load_debt(self.services().planning_context(self.snapshot()))

    def freshness(self, options: Options = None) -> Freshness:
        """Return completion and freshness of the snapshot and of the read-optimized view.

        Both are computed from commit metadata; no data file is read. The table must have an
        event-time column.

        Args:
            options: `lakewright.event.time.future.tolerance.ms` says how far in the future an event
                time may be before it is reported in `Freshness.future`.
                `lakewright.completion.lateness` is another lateness than that of the table.

        Returns:
            Event times in milliseconds since 1970; None where a value is unknown. Waits and marks
            go by `completion` or by `watermark`: `Freshness.definition` says which.

        Example:
            ```python
            freshness = table.freshness()
            freshness.read_optimized.completion  # all rows up to this event time are in base files
            freshness.partitions["day=2026-01-31"].snapshot.freshness
            ```
        """
        return load_freshness(*self._freshness_source(options))

    def _freshness_source(self, options: Options) -> tuple[Storage, Clock, dict[str, str]]:
        freshness_options = other_options(options or {})
        check_names(freshness_options, also=storage_option_names())
        storage = self._opened_storage.with_options(options or {}).storage
        return storage, SystemClock(), freshness_options

    def blocking_log_files(self, limit: int = 20) -> tuple[BlockingLogFile, ...]:
        """Return the log files that block read-optimized completion, the most blocking ones first.

        Args:
            limit: Maximum number of log files.
        """
        return load_blocking_log_files(self.storage, limit)

    def debt(self) -> CompactionDebt:
        """Deprecated: use `compaction_debt`."""
        warn_renamed("Table.debt", "Table.compaction_debt")
        return self.compaction_debt()

    def holding_back(self, limit: int = 20) -> tuple[BlockingLogFile, ...]:
        """Deprecated: use `blocking_log_files`."""
        warn_renamed("Table.holding_back", "Table.blocking_log_files")
        return self.blocking_log_files(limit)

    def wait_until_complete(
        self,
        time: int | str | datetime,
        view: str = "read_optimized",
        timeout: float = 600.0,
        poll: float = 5.0,
        options: Options = None,
    ) -> Freshness:
        """Wait until a view is complete up to an event time, by the table's definition.

        Args:
            time: Event time: milliseconds since 1970, a date and time, or an instant time.
            view: `read_optimized` or `snapshot`.
            timeout: Maximum number of seconds to wait.
            poll: Number of seconds between two checks.
            options: `lakewright.completion.lateness` chooses the definition for this wait: a
                duration waits by the watermark, `off` by the least event time of the last commit.

        Returns:
            The freshness at which the view was complete.

        Raises:
            UnavailableError: The view was not complete within `timeout`; the error lists the log
                files that block it.
            InvalidError: There is no such view.

        Example:
            ```python
            table.wait_until_complete("2026-02-01T00:00:00Z", timeout=900)
            table.read_optimized().where("day = '2026-01-31'").count()
            ```
        """
        storage, clock, own = self._freshness_source(options)
        return wait_until_complete(
            storage, clock, time, view=view, timeout=timeout, poll=poll, options=own
        )

    def sync_catalog(self, name: str, catalog: Catalog | None = None) -> dict[str, str | None]:
        """Write completion and freshness to the properties of a table in a catalog.

        Args:
            name: Name of the table in the catalog.
            catalog: The catalog; that of the Spark session if omitted.

        Returns:
            The properties; one whose value is None is unknown and was removed from the catalog.
        """
        properties = catalog_properties(self.freshness())
        (catalog or SparkCatalog(self._session(), self.path)).set_properties(name, properties)
        return properties

    def sync(self, options: Options = None) -> tuple[SyncResult, ...] | Skip:
        """Register the table and its partitions in a catalog, or update what is registered.

        Args:
            options: Hudi's `hoodie.datasource.hive_sync.*` and `hoodie.meta.sync.*` options, which
                name the catalog: a Hive metastore, AWS Glue, or by default the catalog of the Spark
                session.

        Returns:
            One result for each name of the table in the catalog, or `Skip` if the table has no
            schema yet.

        Raises:
            ConflictError: The catalog has another table of this name.
            InvalidError: An option is invalid, or the catalog rejected a request.
            UnavailableError: The catalog did not respond.

        Example:
            ```python
            table.sync(
                {
                    "hoodie.datasource.hive_sync.mode": "hms",
                    "hoodie.datasource.hive_sync.metastore.uris": "thrift://metastore:9083",
                    "hoodie.datasource.hive_sync.database": "lake",
                }
            )
            ```
        """
        writer = WriteClient.create(self._opened_storage, options)
        return sync(writer.storage, writer.clock, writer.options, spark_catalog_sync(self._session))

    def services(self, options: Options = None) -> ServiceRunner:
        """Return the service runner of the table, for the methods that `Table` does not have.

        Args:
            options: Options of the services, and storage options.
        """
        services = WriteClient.create(self._opened_storage, options, spark=self._spark).services
        return replace(services, heartbeats=self._plan_heartbeats)

    def rollback(
        self, instant: InstantTime | Instant, options: Options = None, *, force: bool = False
    ) -> Instant:
        """Roll back a write or service: delete its files and remove its instant from the timeline.

        Completed writes must be rolled back newest first.

        Args:
            instant: The instant to roll back.
            options: Options of locks and rollbacks, and storage options.
            force: Whether to roll back a completed write whose file on the timeline is empty or
                truncated, as after a power cut. Its data files are found by name; its rows are
                lost.

        Returns:
            The rollback.

        Raises:
            ConflictError: The completed file is damaged and its writer has a live heartbeat.
            CorruptError: The completed file is damaged and `force` was not given.
            InvalidError: There is no such instant, or a later write must be rolled back first.

        Example:
            ```python
            commit = table.upsert(df)
            table.rollback(commit.instant)
            ```
        """
        return WriteClient.create(self._opened_storage, options).rollback(
            _time(instant), force=force
        )

    def savepoint(
        self,
        instant: InstantTime | Instant,
        options: Options = None,
        *,
        user: str = "",
        comment: str = "",
    ) -> Instant:
        """Create a savepoint: cleans keep the files of the table as of a completed write.

        Args:
            instant: The completed write. Saving it again returns the existing savepoint.
            options: Options of locks, and storage options.
            user: Name of the user, recorded in the savepoint.
            comment: Comment, recorded in the savepoint.

        Returns:
            The savepoint.

        Raises:
            InvalidError: The write is not completed, is archived, or some of its files were
                cleaned.

        Example:
            ```python
            instant = table.timeline()[-1]
            table.savepoint(instant, user="ops", comment="before the backfill")
            table.restore(instant)
            ```
        """
        writer = WriteClient.create(self._opened_storage, options)
        return writer.savepoint(_time(instant), user=user, comment=comment)

    def restore(self, instant: InstantTime | Instant, options: Options = None) -> Instant:
        """Restore the table to a savepoint: roll back all later writes and services.

        An interrupted restore is completed by repeating the call.

        Args:
            instant: The instant of the savepoint.
            options: Options of locks, and storage options.

        Returns:
            The completed restore.

        Raises:
            InvalidError: There is no such savepoint, a later savepoint exists, or later writes were
                archived.
            CorruptError: A file of the savepoint is missing.

        Example:
            ```python
            table.restore("20260131120000123")
            ```
        """
        return WriteClient.create(self._opened_storage, options).restore(_time(instant))

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
