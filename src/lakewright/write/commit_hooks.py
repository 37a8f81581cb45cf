"""What every commit records besides its files, and what follows it: contributors and hooks.

A contributor adds extra metadata to a commit, under the table's lock. A post-commit hook runs once
the commit is visible; whatever it does, the commit stands.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

from lakewright.clock import zone_of
from lakewright.errors import ConflictError, InvalidError, LakewrightError
from lakewright.metrics.commit_metrics import commit_figures, record_commit, report
from lakewright.model.commit_metadata import SERVICE_OPERATIONS, CommitMetadata
from lakewright.model.freshness import (
    FRESHNESS_KEY,
    FreshnessRecord,
    Watermarks,
    dropped_partitions,
    format_freshness_record,
)
from lakewright.model.instant import Instant, InstantTime, parse_time
from lakewright.model.partition_time import partition_end
from lakewright.model.plans import SERVICE_KEY
from lakewright.model.table_config import TableConfig
from lakewright.model.ttl import TtlSettings, TtlTrigger, ttl_settings
from lakewright.options import settings_from
from lakewright.storage.base import Storage, join_path, map_in_threads
from lakewright.table.freshness import FreshnessTracker
from lakewright.table.freshness_options import (
    SUCCESS_FILE,
    FreshnessSettings,
    call_user_function,
    load_function,
)
from lakewright.table.properties import touch_last_update_time
from lakewright.table.snapshot import Snapshot
from lakewright.table.transaction import Postponed, Transaction
from lakewright.write.options import write_settings


@dataclass(frozen=True)
class CommittedWrite:
    """A visible commit, as post-commit hooks see it."""

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
        watermarks = freshness.watermarks if freshness is not None else None
        zone = transaction.snapshot.config.timeline_zone
        return cls(
            instant, metadata, freshness, *commit_figures(instant, metadata, watermarks, zone)
        )


class PreWriteHook(Protocol):
    """Decides, before a write begins, whether something else must run first."""

    def before_write(self, snapshot: Snapshot) -> Postponed | None:
        """Return what must run first, or None to begin; called under the table's lock."""
        ...


class PostCommitHook(Protocol):
    """Runs after a commit."""

    def after_commit(self, committed: CommittedWrite) -> None:
        """Do what follows a commit; failures are warnings."""
        ...


def validate_callbacks(options: Mapping[str, str]) -> None:
    """Refuse options that name functions which cannot be loaded, before anything is written."""
    settings = settings_from(FreshnessSettings, options)
    for name in (settings.reporter, settings.done_mark):
        if name is not None and name != SUCCESS_FILE:
            load_function(name)


@dataclass
class FreshnessContributor:
    """Records completion and freshness in the commit, where the table tracks event times.

    If they cannot be computed, the commit has no record of them, and the next one computes them.
    """

    tracker: FreshnessTracker | None
    record: FreshnessRecord | None = None

    @classmethod
    def prepare(
        cls, transaction: Transaction, metadata: CommitMetadata, options: Mapping[str, str]
    ) -> FreshnessContributor:
        """Load what the record is based on, before the lock is taken."""
        if write_settings(transaction.snapshot.config, options).event_time is None:
            return cls(None)
        settings = settings_from(FreshnessSettings, options)
        done = PartitionDoneMarker.for_table(transaction, options)
        try:
            tracker = FreshnessTracker.prepare(
                transaction.snapshot,
                transaction.instant,
                transaction.action,
                metadata,
                future_from_ms=transaction.writer.clock.now_ms() + settings.future_tolerance_ms,
            )
            return cls(_with_open_partitions(tracker, metadata, done) if done.enabled else tracker)
        except LakewrightError as error:
            _warn_without_freshness(error)
            return cls(None)

    def extra_metadata(self, current: Snapshot) -> Mapping[str, str]:
        """The record, on the table as it is under the lock."""
        if self.tracker is None:
            return {}
        try:
            self.record = self.tracker.record(current)
        except LakewrightError as error:
            _warn_without_freshness(error)
            return {}
        return {FRESHNESS_KEY: format_freshness_record(self.record)}


def _with_open_partitions(
    tracker: FreshnessTracker, metadata: CommitMetadata, done: PartitionDoneMarker
) -> FreshnessTracker:
    """Add the written partitions that will be marked as done, remove those that are marked."""
    completed = done.completed_partitions(tracker.state.open, tracker.state.watermarks)
    marked = {path for path in completed if done.is_marked(path)}
    return replace(
        tracker,
        opened=done.partitions_with_time(metadata.stats),
        closed=frozenset((marked - metadata.stats.keys()) | dropped_partitions(metadata)),
    )


def _warn_without_freshness(error: LakewrightError) -> None:
    text = f"the commit does not tell completion and freshness: {error}"
    warnings.warn(text, RuntimeWarning, stacklevel=4)


@dataclass(frozen=True)
class CommitReporter:
    """Reports the figures of a commit to metrics reporters."""

    transaction: Transaction
    options: Mapping[str, str]
    began_ms: int | None

    def after_commit(self, committed: CommittedWrite) -> None:
        """Report the commit."""
        named = settings_from(FreshnessSettings, self.options).reporter
        if committed.figures:
            also = load_function(named) if named is not None else None
            root = self.transaction.writer.storage.root
            report(root, committed.completed_ms, committed.figures, also)
        figures = (committed.completed_ms, committed.figures, self.began_ms)
        record_commit(
            self.transaction, committed.instant, committed.metadata, self.options, figures
        )


_SUCCESS = "_SUCCESS"
# Tells that the function was called: readers of the format pass over such names.
_CALLED = ".lakewright_done"


@dataclass(frozen=True, slots=True)
class PartitionDoneMarker:
    """Which partitions of a table are done, and how they are marked.

    A mark is made after the commit that lets completion pass the end of a partition. Whoever dies
    in between leaves it to the next commit. A function is called until it has returned once.
    """

    storage: Storage
    settings: FreshnessSettings
    zone: str

    @classmethod
    def for_table(cls, transaction: Transaction, options: Mapping[str, str]) -> PartitionDoneMarker:
        """The marker of the table of a transaction."""
        settings = settings_from(FreshnessSettings, options)
        zone = transaction.snapshot.config.timeline_zone
        return cls(transaction.writer.storage, settings, zone)

    def after_commit(self, committed: CommittedWrite) -> None:
        """Mark the partitions that completion has passed with a commit."""
        record = committed.freshness
        if record is not None and self.enabled:
            completed = self.completed_partitions(record.open, record.watermarks)
            self.mark(completed, record.watermarks)

    @property
    def enabled(self) -> bool:
        """Whether partitions are marked at all."""
        return self.settings.done_mark is not None

    def partitions_with_time(self, partitions: Iterable[str]) -> tuple[str, ...]:
        """Of these partitions the ones whose path names a time."""
        return tuple(path for path in partitions if self._end(path) is not None)

    def completed_partitions(self, partitions: Iterable[str], marks: Watermarks) -> tuple[str, ...]:
        """Of these partitions the ones that completion has passed."""
        completion = self.completion(marks)
        if completion is None:
            return ()
        ends = {path: self._end(path) for path in partitions}
        return tuple(path for path, end in ends.items() if end is not None and end <= completion)

    def completion(self, marks: Watermarks) -> int | None:
        """The completion that counts."""
        optimized = self.settings.done_view == "read_optimized"
        return marks.ro_completion if optimized else marks.rt_completion

    def is_marked(self, partition: str) -> bool:
        """Whether a partition was marked before."""
        return self.storage.exists(join_path(partition, self._file))

    def mark(self, partitions: Iterable[str], marks: Watermarks) -> None:
        """Mark partitions as done; a failure is a warning, and the next commit tries again."""
        for path in partitions:
            try:
                if not self.is_marked(path):
                    self._mark(path, self.completion(marks))
            except LakewrightError as error:
                self._warn(path, str(error))

    def _mark(self, partition: str, completion: int | None) -> None:
        named = self.settings.done_mark
        if named is not None and named != SUCCESS_FILE:
            failure = call_user_function(
                load_function(named), self.storage.root, partition, completion
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


# ------------------------------------------------------------------------------------------------
# What a write does for TTL: it renews its partitions, and tells when the trigger was met.
#
# Nothing of this decides about rows. A line that was not renewed is made up for by the timeline,
# and
# a run that fails after a trigger was met comes with the next trigger.


# Carried on from commit to commit: the requested time of the write after which TTL was last due,
# and the time before which no partition can expire, with the settings that this was found for.
CHECKED_KEY = "lakewright.ttl.checked"
NEXT_KEY = "lakewright.ttl.next"
_DAY_MS = 86_400_000


@dataclass(frozen=True)
class TouchPartitions:
    """Updates the last update time of the partitions of a write, where TTL is enabled.

    TTL decides by the timeline where that is newer: a partition that was not updated loses no rows.
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
    """The settings as writes go by them: off where they make no sense, which is no writer's fault.

    Who runs TTL by hand is told what is wrong with them.
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
    """Records in the commit after which write TTL was last triggered, or when to check next."""

    instant: InstantTime
    now_ms: int
    metadata: CommitMetadata
    options: Mapping[str, str]

    @classmethod
    def prepare(
        cls, transaction: Transaction, metadata: CommitMetadata, options: Mapping[str, str]
    ) -> TtlCheckContributor:
        """Take the time before the lock is taken."""
        return cls(transaction.instant, transaction.writer.clock.now_ms(), metadata, options)

    def extra_metadata(self, current: Snapshot) -> Mapping[str, str]:
        """The entries of the commit, on the table as it is under the lock."""
        settings = ttl_settings_or_off(current.config, self.options)
        if not settings.enabled:
            return {}
        if not settings.run_inline:
            next_check = self.metadata.extra.get(NEXT_KEY) or next_ttl_check(current)
            return {NEXT_KEY: next_check} if next_check else {}
        checked = _last_check(current)
        counts = self.metadata.operation not in SERVICE_OPERATIONS
        if counts and _is_due(current, settings, checked, self.now_ms):
            checked = self.instant
        return {CHECKED_KEY: checked}


def is_ttl_triggered(metadata: CommitMetadata, requested_at: InstantTime) -> bool:
    """Whether TTL is to run after a commit, as it says itself."""
    return metadata.extra.get(CHECKED_KEY) == requested_at


def next_ttl_check(now: Snapshot) -> str:
    """What the newest write says about when to look next; empty if it does not."""
    newest = now.commits(now.timeline.by_completion[-1:])
    return newest[0].extra.get(NEXT_KEY, "") if newest else ""


def _last_check(now: Snapshot) -> str:
    for instant in reversed(now.timeline.by_completion):
        (commit,) = now.commits([instant])
        if CHECKED_KEY in commit.extra:
            return commit.extra[CHECKED_KEY]
    return ""


def _is_due(now: Snapshot, settings: TtlSettings, checked: str, now_ms: int) -> bool:
    if settings.trigger is TtlTrigger.NUM_COMMITS:
        done = [i for i in now.timeline.completed_writes if i.requested_at > checked]
        return len(done) + 1 >= settings.trigger_value
    if not checked:
        return True
    zone = zone_of(now.config.timeline_zone)
    try:
        since_ms = int(parse_time(checked, zone).timestamp() * 1000)
    except InvalidError:
        return True
    return now_ms - since_ms >= settings.trigger_value * _DAY_MS
