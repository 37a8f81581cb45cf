"""Completion and freshness of partitions, looked up commit by commit when they are accessed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from lakewright.model.commit_metadata import CommitMetadata
from lakewright.model.freshness import (
    NO_WATERMARKS,
    PartitionFreshness,
    PartitionFreshnessRecord,
    UncompactedLog,
    Watermarks,
    dropped_partitions,
    most_urgent,
    parse_freshness_record,
    removes_logs,
    watermarks_by_partition,
)
from lakewright.model.instant import Instant, InstantTime
from lakewright.table.commit_search import search_commits
from lakewright.table.snapshot import Snapshot
from lakewright.table.uncompacted_logs import uncompacted_logs

# Returns completion and freshness of both views from the watermarks of a partition.
ViewsOf = Callable[[Watermarks], PartitionFreshness]


class LazyPartitionFreshness(Mapping[str, PartitionFreshness]):
    """The partitions of a table that have data, each with its completion and freshness.

    A lookup reads the commits from the newest back to where the values of the partition are
    complete. Iterating reads every commit, also those on the archived timeline.
    """

    def __init__(self, snapshot: Snapshot, views: ViewsOf = Watermarks.views) -> None:
        self._snapshot = snapshot
        self._views = views
        self._cache: dict[str, PartitionFreshness | None] = {}
        self._paths: tuple[str, ...] | None = None

    def __getitem__(self, partition: str) -> PartitionFreshness:
        """Return the values of a partition; KeyError if it was never written, or was deleted."""
        if partition not in self._cache and self._paths is None:
            values_by_path = _search_backwards(self._snapshot, {partition})
            found = values_by_path.get(partition)
            self._cache[partition] = None if found is None else self._views(found)
        values = self._cache.get(partition)
        if values is None:
            raise KeyError(partition)
        return values

    def __iter__(self) -> Iterator[str]:
        """Iterate over the partitions, sorted."""
        return iter(self._load_paths())

    def __len__(self) -> int:
        """Return the number of partitions."""
        return len(self._load_paths())

    def _load_paths(self) -> tuple[str, ...]:
        if self._paths is None:
            values_by_path = _search_backwards(self._snapshot, None)
            self._cache = {path: self._views(found) for path, found in values_by_path.items()}
            self._paths = tuple(sorted(values_by_path))
        return self._paths


@dataclass
class _PartitionSearch:
    """The state of one partition while commits are read from the newest back.

    `watermarks` includes all commits that completed at `covered_from` or later. Rows of commits
    that completed up to `deleted_at` were deleted since.
    """

    watermarks: Watermarks = NO_WATERMARKS
    has_data: bool = False
    complete: bool = False
    recount_logs: bool = False
    covered_from: str = ""
    deleted_at: str = ""

    def prepend(self, watermarks: Watermarks) -> None:
        """Add the watermarks of an older commit."""
        self.watermarks = watermarks.followed_by(self.watermarks)
        self.has_data = True

    def needs(self, instant: Instant) -> bool:
        """Whether the next older commit has anything to add."""
        at = instant.completed_at or ""
        if at <= self.deleted_at:
            self.complete = True
        return not self.complete and (not self.covered_from or at < self.covered_from)


def _search_backwards(snapshot: Snapshot, partitions: set[str] | None) -> dict[str, Watermarks]:
    """Read commits from the newest back, until all wanted partitions are complete."""
    searches: dict[str, _PartitionSearch] = {path: _PartitionSearch() for path in partitions or ()}
    for instant, commit in _writes_newest_first(snapshot):
        touched = {*commit.stats, *commit.replaced}
        matching = {
            path: search
            for path in (touched if partitions is None else touched & partitions)
            if (search := searches.setdefault(path, _PartitionSearch())).needs(instant)
        }
        if matching:
            _visit_commit(snapshot, matching, instant, commit)
        if partitions is not None and all(search.complete for search in searches.values()):
            break
    return _resolve(snapshot, searches)


def _visit_commit(
    snapshot: Snapshot,
    searches: Mapping[str, _PartitionSearch],
    instant: Instant,
    commit: CommitMetadata,
) -> None:
    """Add what a commit says about partitions to their searches."""
    records = _stored_record(snapshot, instant, commit)
    dropped = dropped_partitions(commit)
    watermarks = watermarks_by_partition(instant.requested_at, commit)
    for path, search in searches.items():
        entry = records.get(path)
        if entry is not None:
            search.prepend(entry.watermarks)
            search.complete = not entry.since
            if entry.since:
                search.covered_from = _completed_at(snapshot, entry.since) or ""
        elif path in dropped:
            # The delete need not have seen what completed after it was requested.
            search.deleted_at = instant.requested_at
            search.recount_logs = True
        else:
            search.recount_logs |= removes_logs(commit)
            search.prepend(watermarks.get(path, NO_WATERMARKS))


def _stored_record(
    snapshot: Snapshot, instant: Instant, commit: CommitMetadata
) -> Mapping[str, PartitionFreshnessRecord]:
    """Return the partitions in the record of a commit; empty if the record is not valid for it."""
    record = parse_freshness_record(commit.extra)
    if record is None:
        return {}
    if instant.requested_at in snapshot.timeline.by_time:
        is_valid = record.is_valid(instant, snapshot.timeline, snapshot.has_write)
    else:
        is_valid = record.is_written_by(instant, snapshot.has_write)
    return record.partitions if is_valid else {}


def _resolve(snapshot: Snapshot, searches: Mapping[str, _PartitionSearch]) -> dict[str, Watermarks]:
    """Return the values of partitions with data; list log files again where some were removed."""
    with_data = {path: search for path, search in searches.items() if search.has_data}
    to_list = sorted(path for path, search in with_data.items() if search.recount_logs)
    logs = uncompacted_logs(snapshot, to_list) if to_list else ()
    most_urgent_logs: dict[str, UncompactedLog | None] = {}
    for log in logs:
        most_urgent_logs[log.partition] = most_urgent(
            most_urgent_logs.get(log.partition), log.as_uncompacted_log
        )
    return {
        path: (
            s.watermarks.with_log_files(most_urgent_logs.get(path))
            if s.recount_logs
            else s.watermarks
        )
        for path, s in with_data.items()
    }


def _writes_newest_first(snapshot: Snapshot) -> Iterator[tuple[Instant, CommitMetadata]]:
    """Iterate over completed writes, the last completed first; load archived ones if needed."""
    active = snapshot.timeline.by_completion
    oldest = active[0].completed_at or "" if active else ""
    # A write that began early and completed late may be archived before others that completed
    # earlier.
    late = snapshot.archived_after(oldest) if active else []
    yield from search_commits(snapshot, _by_completion_descending([*active, *late]))
    yielded = {instant.requested_at for instant in late}
    rest = [i for i in snapshot.archived if i.requested_at not in yielded]
    yield from zip(
        _by_completion_descending(rest),
        snapshot.commits(_by_completion_descending(rest)),
        strict=True,
    )


def _by_completion_descending(instants: Iterable[Instant]) -> list[Instant]:
    return sorted(instants, key=lambda i: i.completed_at or "", reverse=True)


def _completed_at(snapshot: Snapshot, requested_at: InstantTime) -> str | None:
    completed_at = snapshot.view().completion(requested_at)
    return completed_at or snapshot.archived_completions({requested_at}).get(requested_at)
