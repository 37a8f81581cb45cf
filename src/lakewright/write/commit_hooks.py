"""What every commit records besides its files, and what runs after it: contributors and hooks.

A contributor adds extra metadata to a commit, under the table's lock. A post-commit hook runs once
the commit is visible; its failure does not undo the commit. There are contributors and hooks for
freshness, metrics, partitions marked as done, and TTL.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

from lakewright.clock import zone_of
from lakewright.errors import ConflictError, InvalidError, LakewrightError
from lakewright.metrics.commit_metrics import commit_figures, record_commit
from lakewright.metrics.meter import commit_functions
from lakewright.model.commit_metadata import SERVICE_OPERATIONS, CommitMetadata
from lakewright.model.freshness import (
    FRESHNESS_KEY,
    FreshnessRecord,
    Watermarks,
    completion_definition,
    dropped_partitions,
    format_freshness_record,
)
from lakewright.model.instant import Instant, InstantTime, parse_time
from lakewright.model.partition_time import partition_end
from lakewright.model.plans import SERVICE_KEY
from lakewright.model.table_config import TableConfig
from lakewright.model.ttl import (
    TtlSettings,
    TtlTrigger,
    active_policies,
    path_expiry,
    ttl_settings,
)
from lakewright.model.watermark import WATERMARK_KEY, format_watermark_record
from lakewright.options import settings_from
from lakewright.storage.base import Storage, join_path, map_in_threads
from lakewright.table.freshness_options import (
    SUCCESS_FILE,
    FreshnessSettings,
    call_user_function,
    load_function,
)
from lakewright.table.freshness_tracker import FreshnessTracker
from lakewright.table.properties import touch_last_update_time
from lakewright.table.snapshot import Snapshot
from lakewright.table.transaction import Transaction
from lakewright.write.options import write_settings


@dataclass(frozen=True)
class CommittedWrite:
    """A visible commit, as it is passed to post-commit hooks."""

    instant: Instant
    metadata: CommitMetadata
    freshness: FreshnessRecord | None
    completed_ms: int
    figures: Mapping[str, float]

    @classmethod
    def create(
        cls,
        transaction: Transaction,
        instant: Instant,
        metadata: CommitMetadata,
        freshness: FreshnessRecord | None,
    ) -> CommittedWrite:
        """Compute the figures of a commit."""
        zone = transaction.snapshot.config.timeline_zone
        return cls(
            instant, metadata, freshness, *commit_figures(instant, metadata, freshness, zone)
        )


class PreWriteHook(Protocol):
    """Starts something beside a write."""

    def before_write(self, snapshot: Snapshot) -> None:
        """Called under the table's lock, before the write begins or begins again."""
        ...

    def extra_metadata(self) -> Mapping[str, str]:
        """Return extra metadata for the commit; called when the data files are written."""
        ...


class PostCommitHook(Protocol):
    """Runs after a commit."""

    def after_commit(self, committed: CommittedWrite) -> None:
        """Do what follows a commit; report failures as warnings."""
        ...


def validate_callbacks(options: Mapping[str, str]) -> None:
    """Raise if an option names a function that cannot be loaded, before anything is written."""
    settings = settings_from(FreshnessSettings, options)
    for name in (settings.reporter, settings.done_mark):
        if name is not None and name != SUCCESS_FILE:
            load_function(name)


@dataclass
class FreshnessContributor:
    """Records completion and freshness in the commit, if the table tracks event times.

    If they cannot be computed, the commit does not record them, and the next commit computes them.
    """

    tracker: FreshnessTracker | None
    record: FreshnessRecord | None = None

    @classmethod
    def prepare(
        cls,
        transaction: Transaction,
        metadata: CommitMetadata,
        options: Mapping[str, str],
        marker: PartitionDoneMarker,
        late_rows: Mapping[str, int],
    ) -> FreshnessContributor:
        """Load what the record is based on, before the lock is acquired."""
        if write_settings(transaction.snapshot.config, options).event_time is None:
            return cls(None)
        settings = settings_from(FreshnessSettings, options)
        try:
            tracker = FreshnessTracker.prepare(
                transaction.snapshot,
                transaction.instant,
                transaction.action,
                metadata,
                future_from_ms=transaction.writer.clock.now_ms() + settings.future_tolerance_ms,
                options=options,
                late_rows=late_rows,
            )
            return cls(
                _with_open_partitions(tracker, metadata, marker) if marker.enabled else tracker
            )
        except LakewrightError as error:
            _warn_without_freshness(error)
            return cls(None)

    def extra_metadata(self, current: Snapshot) -> Mapping[str, str]:
        """Return the records, computed for the table as it is under the lock."""
        if self.tracker is None:
            return {}
        try:
            self.record, watermark = self.tracker.records(current)
        except LakewrightError as error:
            _warn_without_freshness(error)
            return {}
        extra = {FRESHNESS_KEY: format_freshness_record(self.record)}
        if watermark is not None:
            extra[WATERMARK_KEY] = format_watermark_record(watermark)
        return extra


def _with_open_partitions(
    tracker: FreshnessTracker, metadata: CommitMetadata, marker: PartitionDoneMarker
) -> FreshnessTracker:
    """Add the written partitions that are to be marked as done, remove those already marked."""
    state = tracker.state
    completion = marker.completion(state.watermarks, state.lateness_ms)
    completed = marker.completed_partitions(state.open, completion)
    marked = {path for path in completed if marker.is_marked(path)}
    return replace(
        tracker,
        opened=marker.partitions_with_time(metadata.stats),
        closed=frozenset((marked - metadata.stats.keys()) | dropped_partitions(metadata)),
    )


def _warn_without_freshness(error: LakewrightError) -> None:
    text = f"the commit does not record completion and freshness: {error}"
    warnings.warn(text, RuntimeWarning, stacklevel=4)


@dataclass(frozen=True)
class CommitReporter:
    """Reports a commit to metrics reporters, and its figures to the function of an option."""

    transaction: Transaction
    options: Mapping[str, str]
    began_ms: int | None

    def after_commit(self, committed: CommittedWrite) -> None:
        """Report the commit."""
        functions = list(commit_functions())
        function_name = settings_from(FreshnessSettings, self.options).reporter
        if function_name is not None:
            functions.append(load_function(function_name))
        root = self.transaction.writer.storage.root
        for function in functions if committed.figures else ():
            failure = call_user_function(function, root, committed.completed_ms, committed.figures)
            if failure is not None:
                warnings.warn(f"a reporter failed: {failure}", RuntimeWarning, stacklevel=3)
        figures = (committed.completed_ms, committed.figures, self.began_ms)
        record_commit(
            self.transaction, committed.instant, committed.metadata, self.options, figures
        )


_READ_OPTIMIZED = "read_optimized"
_SUCCESS = "_SUCCESS"
# Marks that the function was called: Hudi readers ignore files with such names.
_CALLED = ".lakewright_done"


@dataclass(frozen=True, slots=True)
class PartitionDoneMarker:
    """Which partitions of a table are done, and how they are marked.

    A partition is marked after the commit whose completion passes the end of the partition, unless
    that commit itself wrote rows to it: late ones, then, and more may follow. If the writer crashes
    between the two, the next commit marks it. A function is called until it has returned once.
    """

    storage: Storage
    settings: FreshnessSettings
    zone: str

    @classmethod
    def for_table(cls, transaction: Transaction, options: Mapping[str, str]) -> PartitionDoneMarker:
        """Return the marker of the table of a transaction."""
        settings = settings_from(FreshnessSettings, options)
        zone = transaction.snapshot.config.timeline_zone
        return cls(transaction.writer.storage, settings, zone)

    def after_commit(self, committed: CommittedWrite) -> None:
        """Mark the partitions whose end the completion of a commit has passed."""
        record = committed.freshness
        if record is not None and self.enabled:
            metadata = committed.metadata
            is_service = metadata.operation in SERVICE_OPERATIONS
            unchanged = [path for path in record.open if is_service or path not in metadata.stats]
            completion = self.completion(record.watermarks, record.lateness_ms)
            self.mark(self.completed_partitions(unchanged, completion), completion)

    @property
    def enabled(self) -> bool:
        """Whether partitions are marked at all."""
        return self.settings.done_mark is not None

    def partitions_with_time(self, partitions: Iterable[str]) -> tuple[str, ...]:
        """Return those partitions whose path names a time."""
        return tuple(path for path in partitions if self._end(path) is not None)

    def completed_partitions(
        self, partitions: Iterable[str], completion: int | None
    ) -> tuple[str, ...]:
        """Return those partitions whose end the completion has passed."""
        if completion is None:
            return ()
        ends = {path: self._end(path) for path in partitions}
        return tuple(path for path, end in ends.items() if end is not None and end <= completion)

    def completion(self, watermarks: Watermarks, lateness_ms: int | None) -> int | None:
        """Return the completion of the view that the settings choose, by the table's definition."""
        views = watermarks.views(lateness_ms)
        is_optimized = self.settings.done_view == _READ_OPTIMIZED
        view = views.read_optimized if is_optimized else views.snapshot
        return view.complete_until(completion_definition(lateness_ms))

    def is_marked(self, partition: str) -> bool:
        """Whether a partition is already marked."""
        return self.storage.exists(join_path(partition, self._file))

    def mark(self, partitions: Iterable[str], completion: int | None) -> None:
        """Mark partitions as done; a failure is a warning, and the next commit tries again."""
        for path in partitions:
            try:
                if not self.is_marked(path):
                    self._mark(path, completion)
            except LakewrightError as error:
                self._warn(path, str(error))

    def _mark(self, partition: str, completion: int | None) -> None:
        function_name = self.settings.done_mark
        if function_name is not None and function_name != SUCCESS_FILE:
            failure = call_user_function(
                load_function(function_name), self.storage.root, partition, completion
            )
            if failure is not None:
                self._warn(partition, failure)
                return
        try:
            self.storage.create(join_path(partition, self._file), b"")
        except ConflictError:
            return  # another writer was faster

    @staticmethod
    def _warn(partition: str, reason: str) -> None:
        text = f"partition {partition!r} was not marked as done: {reason}"
        warnings.warn(text, RuntimeWarning, stacklevel=4)

    @property
    def _file(self) -> str:
        return _SUCCESS if self.settings.done_mark == SUCCESS_FILE else _CALLED

    def _end(self, path: str) -> int | None:
        return partition_end(path, zone_of(self.zone), self.settings.done_interval_ms)


# TTL: a write updates the last update time of its partitions, and records when TTL was triggered.
# Neither decides which rows expire: if an update is missed, TTL goes by the timeline, and a TTL run
# that fails after its trigger is run again at the next trigger.


# Copied from commit to commit: the requested time of the write that last triggered TTL, and the
# time before which no partition can expire, with the settings that it was computed for.
CHECKED_KEY = "lakewright.ttl.checked"
NEXT_KEY = "lakewright.ttl.next"
_DAY_MS = 86_400_000


@dataclass(frozen=True)
class TouchPartitions:
    """Updates the last update time of the partitions of a write, if TTL is enabled.

    A missed update loses no rows: TTL uses the timeline where it names a later write.
    """

    storage: Storage
    config: TableConfig
    options: Mapping[str, str]

    def after_commit(self, committed: CommittedWrite) -> None:
        """Update the partitions that the commit wrote to."""
        metadata = committed.metadata
        if SERVICE_KEY in metadata.extra:
            return
        if not ttl_settings_or_off(self.config, self.options).enabled:
            return
        completed_at = committed.instant.completed_at or ""
        try:
            map_in_threads(partial(_touch, self.storage, completed_at), sorted(metadata.stats))
        except LakewrightError as error:
            warnings.warn(
                f"the time of the last update of partitions was not renewed: {error}",
                RuntimeWarning,
                stacklevel=4,
            )


def ttl_settings_or_off(config: TableConfig, options: Mapping[str, str]) -> TtlSettings:
    """Return the TTL settings for a write: disabled, with a warning, if they are invalid.

    A write does not fail because of TTL settings; running TTL itself does.
    """
    if not config.partition_fields:
        return TtlSettings()
    try:
        return ttl_settings(config.properties, options)
    except InvalidError as error:
        warnings.warn(f"TTL is not carried out: {error}", RuntimeWarning, stacklevel=2)
        return TtlSettings()


def _touch(storage: Storage, completed_at: InstantTime, partition: str) -> bool:
    return touch_last_update_time(storage, partition, completed_at)


@dataclass(frozen=True)
class TtlCheckContributor:
    """Records in the commit which write last triggered TTL, or when to check next."""

    instant: InstantTime
    now_ms: int
    metadata: CommitMetadata
    options: Mapping[str, str]

    @classmethod
    def prepare(
        cls, transaction: Transaction, metadata: CommitMetadata, options: Mapping[str, str]
    ) -> TtlCheckContributor:
        """Read the clock before the lock is acquired."""
        return cls(transaction.instant, transaction.writer.clock.now_ms(), metadata, options)

    def extra_metadata(self, current: Snapshot) -> Mapping[str, str]:
        """Return the entries, computed for the table as it is under the lock."""
        settings = ttl_settings_or_off(current.config, self.options)
        if not settings.enabled:
            return {}
        if not settings.run_inline:
            return self._next_check(current, settings)
        last_check = _last_check(current)
        is_write = self.metadata.operation not in SERVICE_OPERATIONS
        if is_write and _is_triggered(current, settings, last_check, self.now_ms):
            last_check = self.instant
        return {CHECKED_KEY: last_check}

    def _next_check(self, current: Snapshot, settings: TtlSettings) -> Mapping[str, str]:
        """Return until when no write needs to run TTL; an empty time if the next one has to."""
        next_check = self.metadata.extra.get(NEXT_KEY) or next_ttl_check(current)
        until = next_check.partition(" ")[0]
        if not until:
            return {}
        # TTL before this write has not seen what others committed since this write began.
        newer = [i for i in current.timeline.by_completion if (i.completed_at or "") > self.instant]
        is_reset = any(commit.extra.get(NEXT_KEY) == "" for commit in current.commits(newer))
        expires = self._writes_expiring_before(until, current, settings)
        return {NEXT_KEY: "" if is_reset or expires else next_check}

    def _writes_expiring_before(
        self, until: InstantTime, current: Snapshot, settings: TtlSettings
    ) -> bool:
        """Whether the write fills a partition that expires before the next check.

        Only a policy by the time in the path allows that: the path may name a day long past.
        """
        hive_style = current.config.hive_style
        return any(
            path_expiry(active, partition, hive_style=hive_style) < until
            for active in active_policies(settings)
            if active.path_time is not None
            for partition in self.metadata.stats
            if active.covers(partition)
        )


def is_ttl_triggered(metadata: CommitMetadata, requested_at: InstantTime) -> bool:
    """Whether a commit records that it triggered TTL."""
    return metadata.extra.get(CHECKED_KEY) == requested_at


def next_ttl_check(now: Snapshot) -> str:
    """Return when the newest write says to check TTL next; empty if it does not say."""
    newest = now.commits(now.timeline.by_completion[-1:])
    return newest[0].extra.get(NEXT_KEY, "") if newest else ""


def _last_check(current: Snapshot) -> str:
    for instant in reversed(current.timeline.by_completion):
        (commit,) = current.commits([instant])
        if CHECKED_KEY in commit.extra:
            return commit.extra[CHECKED_KEY]
    return ""


def _is_triggered(current: Snapshot, settings: TtlSettings, checked: str, now_ms: int) -> bool:
    if settings.trigger is TtlTrigger.NUM_COMMITS:
        writes_since = [i for i in current.timeline.completed_writes if i.requested_at > checked]
        return len(writes_since) + 1 >= settings.trigger_value
    if not checked:
        return True
    zone = zone_of(current.config.timeline_zone)
    try:
        since_ms = int(parse_time(checked, zone).timestamp() * 1000)
    except InvalidError:
        return True
    return now_ms - since_ms >= settings.trigger_value * _DAY_MS
