"""The freshness record that a write stores in its own commit.

A write lists and reads before it takes the lock, on its base snapshot. Under the lock it adds
only what has completed since.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from lakewright.model.commit_metadata import CommitMetadata
from lakewright.model.freshness import (
    NO_WATERMARKS,
    FreshnessRecord,
    PartitionFreshnessRecord,
    UncompactedLog,
    Watermarks,
    detect_regression,
    most_urgent,
    removable,
    removes_logs,
    watermarks_by_partition,
)
from lakewright.model.instant import Action, Instant, InstantTime
from lakewright.model.watermark import (
    WATERMARK_KEY,
    WatermarkRecord,
    format_watermark_record,
)
from lakewright.table.freshness import (
    FreshnessState,
    Write,
    apply_write,
    apply_writes,
    bounded_partitions,
    commit_watermarks,
    load_state,
    with_log_partitions,
)
from lakewright.table.freshness_options import allowed_lateness
from lakewright.table.snapshot import Snapshot
from lakewright.table.uncompacted_logs import uncompacted_logs

# Sorts after all others: the completion time is chosen when the write commits.
_AFTER_ALL = "9" * 17

ByPartition = Mapping[str, UncompactedLog | None]


@dataclass(frozen=True)
class FreshnessTracker:
    """A write that is about to commit, with the state of the table before it.

    `uncompacted` are the log files that are uncompacted after it, the most urgent of each
    partition; None if it removes no log files. `opened` are partitions to be marked as done later,
    `closed` those that are marked now. `late_rows` are its rows at or before the watermark, by
    partition.
    """

    base: Snapshot
    instant: Instant
    action: Action
    commit: CommitMetadata
    future_from_ms: int
    state: FreshnessState
    uncompacted: ByPartition | None
    opened: tuple[str, ...] = ()
    closed: frozenset[str] = frozenset()
    options: Mapping[str, str] = field(default_factory=dict)
    late_rows: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def prepare(
        cls,
        base: Snapshot,
        instant: InstantTime,
        action: Action,
        commit: CommitMetadata,
        *,
        future_from_ms: int,
        options: Mapping[str, str] | None = None,
        late_rows: Mapping[str, int] | None = None,
    ) -> FreshnessTracker:
        """Compute the state before a write from its base snapshot; the files of the write exist."""
        completed = Instant(instant, action.completed_as, completed_at=_AFTER_ALL)
        state = load_state(base, future_from_ms=future_from_ms)
        tracker = cls(
            base,
            completed,
            action,
            commit,
            future_from_ms,
            state,
            None,
            options=options or {},
            late_rows=late_rows or {},
        )
        if removes_logs(commit) and state.watermarks.uncompacted is not None:
            tracker = replace(tracker, uncompacted=tracker._uncompacted_after(base, state))
        return tracker

    def records(self, now: Snapshot) -> tuple[FreshnessRecord, WatermarkRecord | None]:
        """Return the records for the commit; `now` is the table as it is under the lock.

        The second one is None if the table has no watermark.
        """
        now = now.with_cached_commits(self.base)
        new_writes = self._writes_since(now)
        state = self.state if new_writes == [] else self._state_with(now, new_writes)
        watermark = self._watermark_record(now, state)
        commit = self._with_watermark(watermark)
        parts = commit_watermarks(now, self.instant, commit)
        after = apply_write(state, self.instant, commit, parts, future_from_ms=self.future_from_ms)
        if after.stale:
            after = self._with_log_files_recounted(now, new_writes, state, after, parts)
        touched = {*self.commit.stats, *self.commit.replaced}
        last_write = state.last
        freshness = FreshnessRecord(
            at=self.instant.requested_at,
            after=last_write.requested_at if last_write is not None else "",
            after_completed=(last_write.completed_at or "") if last_write is not None else "",
            over=removable(self.instant.requested_at, now.timeline),
            watermarks=after.watermarks,
            regression=after.regression,
            future=after.future,
            logs_in=after.logs_in,
            open=tuple(sorted({*state.open, *self.opened} - self.closed)),
            partitions={path: entry for path, entry in after.entries.items() if path in touched},
            lateness_ms=after.lateness_ms,
        )
        return freshness, watermark

    def _watermark_record(self, now: Snapshot, state: FreshnessState) -> WatermarkRecord | None:
        lateness = allowed_lateness(now.config, self.options, state.lateness_ms)
        if lateness is None and state.lateness_ms is None:
            return None
        known = state if state.lateness_ms is not None else replace(state, lateness_ms=lateness)
        return WatermarkRecord(
            self.instant.requested_at, lateness, known.reached_before(self.commit), self.late_rows
        )

    def _with_watermark(self, record: WatermarkRecord | None) -> CommitMetadata:
        if record is None:
            return self.commit
        extra = {**self.commit.extra, WATERMARK_KEY: format_watermark_record(record)}
        return replace(self.commit, extra=extra)

    def _writes_since(self, current: Snapshot) -> list[Write] | None:
        """Return the writes that completed since `base`; None if `current` does not extend it."""
        on_timeline = current.timeline.by_time
        missing = [
            i for i in self.base.timeline if i.is_write and i.requested_at not in on_timeline
        ]
        if any(
            not i.is_completed or not current.timeline.is_archived(i.requested_at) for i in missing
        ):
            return None
        base_writes = [i for i in self.base.timeline.by_completion if i not in missing]
        order = list(current.timeline.by_completion)
        if order[: len(base_writes)] != base_writes:
            return None
        new_writes = order[len(base_writes) :]
        return list(zip(new_writes, current.commits(new_writes), strict=True))

    def _state_with(self, current: Snapshot, new_writes: list[Write] | None) -> FreshnessState:
        if new_writes is None:
            return load_state(current, future_from_ms=self.future_from_ms)
        return apply_writes(current, self.state, new_writes, future_from_ms=self.future_from_ms)

    def _with_log_files_recounted(
        self,
        current: Snapshot,
        new_writes: list[Write] | None,
        state: FreshnessState,
        after: FreshnessState,
        parts: Mapping[str, Watermarks],
    ) -> FreshnessState:
        """Return the state after a write that removes log files, with those that are left."""
        can_extend = new_writes is not None and not any(
            removes_logs(commit) for _, commit in new_writes
        )
        if self.uncompacted is not None and can_extend:
            uncompacted = _with_new_writes(self.uncompacted, current, new_writes or ())
        else:
            uncompacted = self._uncompacted_after(current, state)
        watermarks = after.watermarks.with_log_files(
            most_urgent(*uncompacted.values()),
            state.reached_by_base_files(self.commit),
        )
        entries = dict(after.entries)
        for path in self.commit.stats:
            entry = state.entries.get(path) or PartitionFreshnessRecord(
                NO_WATERMARKS, self.instant.requested_at
            )
            partition_watermarks = entry.watermarks.followed_by(parts.get(path, NO_WATERMARKS))
            entries[path] = PartitionFreshnessRecord(
                partition_watermarks.with_log_files(uncompacted.get(path)), entry.since
            )
        return replace(
            after,
            watermarks=watermarks,
            entries=entries,
            regression=detect_regression(state.watermarks, watermarks),
            logs_in=bounded_partitions(
                {path for path, log in uncompacted.items() if log is not None}
            ),
            stale=False,
        )

    def _uncompacted_after(self, snapshot: Snapshot, state: FreshnessState) -> ByPartition:
        """Return the log files of a snapshot that are uncompacted after this write."""
        timeline = snapshot.timeline.with_completed(self.instant, self.action)
        commit = self._with_watermark(self._watermark_record(snapshot, state))
        after = snapshot.with_write(timeline, self.instant.requested_at, commit)
        by_partition: dict[str, UncompactedLog | None] = {}
        partitions = with_log_partitions(
            state.logs_in, watermarks_by_partition(self.instant.requested_at, self.commit)
        )
        for log in uncompacted_logs(after, partitions):
            by_partition[log.partition] = most_urgent(
                by_partition.get(log.partition), log.as_uncompacted_log
            )
        return by_partition


def _with_new_writes(
    uncompacted: ByPartition, current: Snapshot, new_writes: Iterable[Write]
) -> ByPartition:
    by_partition = dict(uncompacted)
    for instant, commit in new_writes:
        for path, watermarks in commit_watermarks(current, instant, commit).items():
            by_partition[path] = most_urgent(by_partition.get(path), watermarks.uncompacted)
    return by_partition
