"""`WriteClient`: writes to one table, configured by Hudi's options."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession

from lakewright.catalog.options import SYNC_KEYS, sync_settings
from lakewright.catalog.sync import sync_after_write
from lakewright.client.ttl import TableTtl
from lakewright.clock import Clock, SystemClock
from lakewright.datasource.session_catalog import spark_catalog_sync
from lakewright.engine.base import Engine, LazyEngine
from lakewright.engine.local import ArrowRows, LocalEngine
from lakewright.errors import InvalidError, LakewrightError
from lakewright.metrics.commit_metrics import record_rollback
from lakewright.metrics.meter import with_metrics
from lakewright.model.instant import Instant, InstantTime
from lakewright.model.plans import Skip
from lakewright.model.table_config import WRITE_NAMES, TableConfig
from lakewright.model.ttl import HUDI_PREFIX, PREFIX, validated_settings, with_settings
from lakewright.options import added_options
from lakewright.services.asynchronous import (
    ASYNC_KEYS,
    AsyncServices,
    async_services,
    outcomes_for_writer,
    warn_of,
    with_heartbeat,
)
from lakewright.services.inline import INLINE_KEYS, run_inline
from lakewright.services.registry import service_keys
from lakewright.services.runner import RUN_KEYS, ServiceRunner
from lakewright.services.ttl.hooks import TtlBesideWrite
from lakewright.spark.engine import SparkEngine
from lakewright.spark.writer import SparkRows, refuse_speculation
from lakewright.storage.base import Storage
from lakewright.storage.factory import OpenedStorage, other_options
from lakewright.table.savepoint import create_savepoint, delete_savepoint, restore, rollback_instant
from lakewright.table.snapshot import load_snapshot
from lakewright.table.transaction import TransactionManager
from lakewright.write.options import check_options_match_table, check_write_options, write_settings
from lakewright.write.task import Operation
from lakewright.write.writer import (
    Commit,
    EmptyRows,
    RowSource,
    WriteRequest,
    execute_write,
    match_partitions,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Options = Mapping[str, str] | None

OPERATION = "hoodie.datasource.write.operation"
# Prefixes of table settings that may change after the table was created.
_STORED_PREFIXES = (PREFIX, HUDI_PREFIX)
# Options that describe the table as it is, or name the operation: there is nothing to store.
_DESCRIPTIVE_OPTIONS = frozenset(
    {OPERATION, *WRITE_NAMES, *(name for names in WRITE_NAMES.values() for name in names)}
)


@dataclass(frozen=True)
class WriteClient:
    """Writes to one table and maintains it: the storage, clock, options and engines of a write.

    `engine` starts the engine of DataFrames and services; `local_engine` writes Arrow rows.
    `beside` are the services that run in a thread beside a write. `stream_services`, if given, are
    those of a stream, which go on between its batches.
    """

    storage: Storage
    clock: Clock
    options: Mapping[str, str]
    engine: Callable[[], Engine]
    local_engine: Engine = field(default_factory=LocalEngine)
    beside: frozenset[str] = frozenset()
    stream_services: AsyncServices | None = None

    @classmethod
    def create(
        cls,
        storage: Storage | OpenedStorage,
        options: Options,
        clock: Clock | None = None,
        spark: SparkSession | None = None,
        *,
        stream: bool = False,
    ) -> WriteClient:
        """Check the option names and return the client; Hudi's options without effect are warnings.

        Storage options are added to those with which the storage was opened. Services run on
        `spark`, or on the active session. The client of a `stream` may have asynchronous
        compactions.
        """
        service_options = service_keys() | RUN_KEYS | INLINE_KEYS | ASYNC_KEYS
        known_keys = service_options | SYNC_KEYS | added_options()
        opened_storage = storage if isinstance(storage, OpenedStorage) else OpenedStorage(storage)
        string_options = {key: str(value) for key, value in (options or {}).items()}
        checked = check_write_options(other_options(string_options), also=known_keys)
        for key in checked.ignored:
            warnings.warn(f"option {key} has no effect on writing", stacklevel=4)
        sync_settings(checked.values)
        beside = async_services(checked.values, stream=stream)
        values = with_heartbeat(checked.values) if beside else checked.values
        return cls(
            with_metrics(opened_storage.with_options(string_options).storage, values),
            clock or SystemClock(),
            values,
            SessionEngine(spark, values),
            beside=beside,
        )

    def write(
        self,
        operation: Operation,
        rows: RowSource,
        *,
        ordered: bool = False,
        extra: Mapping[str, str] | None = None,
    ) -> Commit:
        """Write rows; with `ordered`, deletes compare ordering values with the stored rows."""
        self._refuse_other(operation)
        request = WriteRequest(operation, ordered_deletes=ordered, extra=extra or {})
        return self.run(request, rows)

    def delete_partitions(self, patterns: Sequence[str] | str) -> Commit:
        """Delete partitions by path, or by patterns with `*` and `?`.

        As in Hudi, the commit is empty if no partition matches.
        """
        self._refuse_other(Operation.DELETE_PARTITION)
        paths = (patterns,) if isinstance(patterns, str) else tuple(patterns)
        request = WriteRequest(Operation.DELETE_PARTITION, patterns=paths)
        _check_names_partitions(request)
        return self.run(request, EmptyRows())

    def run(self, request: WriteRequest, rows: RowSource) -> Commit:
        """Execute a write request with the options of this client and the metadata they add."""
        settings = write_settings(None, self.options)
        if isinstance(rows, SparkRows):
            refuse_speculation(rows.spark, settings)
        prefix = settings.commit_metadata_prefix
        option_metadata = {k: v for k, v in self.options.items() if prefix and k.startswith(prefix)}
        request = replace(request, options=self.options, extra={**option_metadata, **request.extra})
        services = self.stream_services or self.async_services()
        try:
            result = self._run(request, rows, services)
        except BaseException:
            self._finish(services, committed=None)
            raise
        beside = self._finish(services, committed=result.instant)
        result = replace(result, services=(*result.services, *beside))
        sync_after_write(
            self.storage,
            self.clock,
            self.options,
            spark_catalog_sync(self._session),
            result.instant,
        )
        return result

    def _run(self, request: WriteRequest, rows: RowSource, services: AsyncServices) -> Commit:
        """Write rows, with asynchronous services beside the write and the others after it."""
        engine = self.local_engine if isinstance(rows, ArrowRows) else LazyEngine(self.engine)
        request = replace(request, pre_write=TtlBesideWrite(services.runner, services))
        services.start_round()
        with services.turns.taken():
            commit, snapshot = execute_write(self.writer(), request, rows, engine)
            self._store_ttl_settings(snapshot.config)
            return replace(commit, services=run_inline(self.services, snapshot, self.beside))

    def async_services(self) -> AsyncServices:
        """Return the asynchronous services of this client; none is running yet."""
        return AsyncServices(self._own_services(), self.beside)

    def _own_services(self) -> ServiceRunner:
        """Return the service runner with the session of this thread, which another one lacks."""
        engine = self.engine
        if self.beside and isinstance(engine, SessionEngine):
            engine = replace(engine, spark=engine.spark or SparkSession.getActiveSession())
        return replace(self.services, engine=engine)

    def _finish(
        self, services: AsyncServices, *, committed: InstantTime | None
    ) -> tuple[Commit | Skip, ...]:
        """Wait for the services beside a write, unless they go on beside the next batch.

        If nothing was committed, the error of the write counts, and those of services are warnings.
        """
        is_stream = services is self.stream_services
        if is_stream:
            services.start_round()
        outcomes = services.take() if is_stream else services.close()
        if committed is not None:
            return outcomes_for_writer(
                outcomes, self.options, stream=is_stream, committed=committed
            )
        for outcome in outcomes:
            if outcome.error is not None:
                warn_of(outcome.service, outcome.error)
        return ()

    def _session(self) -> SparkSession:
        engine = self.engine()
        if not isinstance(engine, SparkEngine):
            raise InvalidError("the catalog of a Spark session needs Spark: name another one")
        return engine.spark

    def _store_ttl_settings(self, config: TableConfig) -> None:
        """Store the TTL settings of a write in the table properties if they differ."""
        ttl_options = {key: value for key, value in self.options.items() if key.startswith(PREFIX)}
        settings = validated_settings(ttl_options, partitioned=bool(config.partition_fields))
        if with_settings(config.properties, settings) == config.properties:
            return
        try:
            TableTtl.for_table(self.storage, self.options, self.clock).store(settings)
        except LakewrightError as error:
            # The write itself has completed; the next write with these options stores them.
            warnings.warn(f"the settings of TTL were not stored: {error}", stacklevel=4)

    @property
    def services(self) -> ServiceRunner:
        """The service runner of the table, with the same options."""
        return ServiceRunner(self.storage, self.clock, self.engine, self.options)

    def run_deletion(self, request: WriteRequest) -> Commit | Skip:
        """Execute a request to delete partitions; `Skip` if no partition matches."""
        _check_names_partitions(request)
        snapshot = load_snapshot(self.storage)
        check_options_match_table(snapshot.config, self.options, partition_by=request.partition_by)
        if not match_partitions(snapshot, request.patterns, exact=request.exact):
            return Skip(f"the table has no partition {', '.join(request.patterns)}")
        return self.run(request, EmptyRows())

    def _refuse_other(self, operation: Operation) -> None:
        if OPERATION in self.options and parse_operation(self.options) is not operation:
            raise InvalidError(
                "an option names another operation than the call: leave it out",
                call=operation.lower(),
                **{OPERATION: self.options[OPERATION]},
            )

    def rollback(
        self, instant: InstantTime, *, keep_plan: bool = False, force: bool = False
    ) -> Instant:
        """Roll back a write or service, completed or not; with `keep_plan`, the plan stays.

        `force` is for a completed write whose file on the timeline is damaged.
        """
        rollback = rollback_instant(self.writer(), instant, keep_plan=keep_plan, force=force)
        record_rollback(self.services.meter, self.storage, rollback)
        return rollback

    def savepoint(self, instant: InstantTime, *, user: str, comment: str) -> Instant:
        """Create a savepoint of a completed write."""
        return create_savepoint(self.writer(), instant, user=user, comment=comment)

    def delete_savepoint(self, instant: InstantTime) -> None:
        """Delete a savepoint."""
        delete_savepoint(self.writer(), instant)

    def restore(self, instant: InstantTime) -> Instant:
        """Restore the table to a savepoint."""
        return restore(self.writer(), instant)

    def store_settings(self, partition_by: Sequence[str] = ()) -> Skip:
        """Store the table settings among the options in the table properties."""
        settings = {k: v for k, v in self.options.items() if k.startswith(_STORED_PREFIXES)}
        config = load_snapshot(self.storage).config
        check_options_match_table(config, self.options, partition_by=partition_by)
        if settings:
            TableTtl.for_table(self.storage, self.options, self.clock).store(settings)
        ineffective = _ineffective_options(config, self.options)
        if ineffective:
            text = ", ".join(sorted(ineffective))
            warnings.warn(f"without columns these options have no effect: {text}", stacklevel=4)
        return Skip(f"there are no columns to write; {len(settings)} settings were stored")

    def writer(self) -> TransactionManager:
        """Return the transaction manager, configured by the options."""
        return TransactionManager.from_options(self.storage, self.clock, self.options)


def _check_names_partitions(request: WriteRequest) -> None:
    if not request.patterns:
        raise InvalidError(
            "no partition to delete was named: give paths, or patterns such as day=2026-01-*"
        )


def write_frame(
    storage: Storage | OpenedStorage,
    frame: DataFrame,
    operation: Operation,
    options: Options = None,
    *,
    ordered: bool = False,
) -> Commit:
    """Write a DataFrame; one without columns is an InvalidError."""
    writer = WriteClient.create(storage, options, spark=frame.sparkSession)
    rows = spark_rows(frame)
    if not rows.schema.names:
        raise InvalidError(
            "the frame has no columns, so there is nothing to write; table.ttl stores settings"
        )
    return writer.write(operation, rows, ordered=ordered)


@dataclass(frozen=True)
class SessionEngine:
    """Starts the engine of a session, or of the active one, on which services run."""

    spark: SparkSession | None
    options: Mapping[str, str]

    def __call__(self) -> Engine:
        """Return the engine."""
        return spark_engine(self.spark, self.options)


def spark_engine(spark: SparkSession | None, options: Mapping[str, str]) -> Engine:
    """Return the engine of a session, or of the active one."""
    session = spark or SparkSession.getActiveSession()
    if session is None:
        raise InvalidError(
            "rewriting rows needs Spark: open the table with spark=..., or start a session before"
        )
    refuse_speculation(session, write_settings(None, options))
    return SparkEngine(session)


def spark_rows(frame: DataFrame) -> RowSource:
    """Return the rows of a DataFrame."""
    return SparkRows(frame) if frame.columns else EmptyRows()


def parse_operation(options: Mapping[str, str]) -> Operation:
    """Return the operation that the options name, by default upsert."""
    name = options.get(OPERATION, "upsert").strip().upper()
    operations = [operation for operation in Operation if not operation.is_service]
    if name not in operations:
        known_names = sorted(operation.lower() for operation in operations)
        raise InvalidError("no such operation", operation=name.lower(), known=known_names)
    return Operation(name)


def _ineffective_options(config: TableConfig, options: Mapping[str, str]) -> list[str]:
    """Return the options without effect: neither stored nor equal to a table property."""
    return [
        key
        for key, value in options.items()
        if key.startswith("hoodie.")
        and not key.startswith(_STORED_PREFIXES)
        and key not in _DESCRIPTIVE_OPTIONS
        and config.properties.get(key) != value
    ]
