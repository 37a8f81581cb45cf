"""The uncompacted log files of a table, with their event times from commit metadata."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from lakewright.errors import CorruptError
from lakewright.model.commit_metadata import CommitMetadata, is_log
from lakewright.model.file_group import FileSlice, GroupKey, LogFile
from lakewright.model.freshness import UncompactedLog, most_urgent, uncompacted_log_of
from lakewright.model.instant import Action, Instant, InstantTime
from lakewright.model.plans import CompactionPlan
from lakewright.model.watermark import parse_watermark_record
from lakewright.table.partition_changes import partitions_with_logs
from lakewright.table.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class BlockingLogFile:
    """A log file that holds back read-optimized completion; `instant` is the write that created it.

    `event_time` is its least event time, None if unknown: then nothing is known to be complete.
    `held_at` is the watermark that the read-optimized view had reached before it, if that is later.
    """

    partition: str
    file_id: str
    log: str
    instant: InstantTime
    event_time: int | None
    size: int
    held_at: int | None = None

    @property
    def as_uncompacted_log(self) -> UncompactedLog:
        """The log file in the form that commits record."""
        path = f"{self.partition}/{self.log}" if self.partition else self.log
        return UncompactedLog(path, self.instant, self.event_time, self.held_at)


def uncompacted_logs(
    snapshot: Snapshot, partitions: Iterable[str] | None
) -> tuple[BlockingLogFile, ...]:
    """Return the uncompacted log files of partitions, those of unknown event time first, sorted.

    With None, of the partitions that can have such files according to the last compaction.
    """
    searched = partitions_with_logs(snapshot) if partitions is None else tuple(sorted(partitions))
    if searched == ():
        return ()
    groups = snapshot.groups(snapshot.view(), snapshot.files(searched))
    slices = [group.latest_merged_slice() for group in groups]
    commits = load_existing_commits(
        snapshot, {log.instant for file_slice in slices for log in file_slice.logs}
    )
    logs_by_path = {at: _logs_by_path(at, commit) for at, commit in commits.items()}
    compacted = _log_compaction_sources(snapshot, commits)
    blocking = []
    for file_slice in slices:
        for log in _effective_logs(file_slice, compacted):
            log_file = _blocking_log(
                file_slice, log, commits.get(log.instant), logs_by_path.get(log.instant, {})
            )
            blocking += [] if log_file is None else [log_file]
    return tuple(sorted(blocking, key=_urgency))


def _log_compaction_sources(
    snapshot: Snapshot, commits: Mapping[str, CommitMetadata]
) -> dict[str, dict[GroupKey, frozenset[str]]]:
    """Return the log files that each log compaction among `commits` has compacted.

    Those of a log compaction whose plan no longer exists are unknown, and not in the result.
    """
    sources = {}
    for at, commit in commits.items():
        if commit.operation == "LOG_COMPACT":
            plan = snapshot.plan_of(at, Action.LOG_COMPACTION)
            if isinstance(plan, CompactionPlan):
                sources[at] = {(o.partition, o.file_id): frozenset(o.logs) for o in plan.operations}
    return sources


def _effective_logs(
    file_slice: FileSlice, compacted: Mapping[str, Mapping[GroupKey, frozenset[str]]]
) -> list[LogFile]:
    """Return the log files of a slice, without those that a log compaction has compacted."""
    key = file_slice.partition, file_slice.file_id
    superseded: set[str] = set()
    for at in {log.instant for log in file_slice.logs} & compacted.keys():
        superseded |= compacted[at].get(key, frozenset())
    return [log for log in file_slice.logs if log.name not in superseded]


def _urgency(log: BlockingLogFile) -> tuple[bool, int, str, str]:
    is_known = log.event_time is not None
    return is_known, log.event_time or 0, log.partition, log.log


def _logs_by_path(at: str, commit: CommitMetadata) -> dict[str, UncompactedLog | None]:
    record = parse_watermark_record(commit.extra, at)
    before = None if record is None else record.before
    return {
        stat.path or "": uncompacted_log_of(at, commit.operation, stat, before)
        for stat in commit.write_stats()
        if is_log(stat)
    }


def _blocking_log(
    file_slice: FileSlice,
    log: LogFile,
    commit: CommitMetadata | None,
    logs_by_path: dict[str, UncompactedLog | None],
) -> BlockingLogFile | None:
    """Return a log file with its event time from the commit; None if it needs no compaction."""
    path = file_slice.path(log)
    if path in logs_by_path:
        recorded = logs_by_path[path]
        if recorded is None:
            return None
        times = recorded.event_time, log.size, recorded.held_at
    else:
        times = _min_event_time_of_group(file_slice, log, commit), log.size, None
    return BlockingLogFile(file_slice.partition, file_slice.file_id, log.name, log.instant, *times)


def _min_event_time_of_group(
    file_slice: FileSlice, log: LogFile, commit: CommitMetadata | None
) -> int | None:
    """Return the least event time of the file group in a commit that does not name the file."""
    stats = commit.stats.get(file_slice.partition, ()) if commit is not None else ()
    logs = [
        uncompacted_log_of(log.instant, commit.operation if commit else None, stat)
        for stat in stats
        if stat.file_id == file_slice.file_id and is_log(stat)
    ]
    log_file = most_urgent(*logs)
    return log_file.event_time if log_file is not None else None


def load_existing_commits(snapshot: Snapshot, times: Iterable[str]) -> dict[str, CommitMetadata]:
    """Return the metadata of writes by instant.

    A write that is on neither the active nor the archived timeline is left out.
    """
    instants = [
        snapshot.timeline.by_time.get(at) or Instant(at, Action.DELTA_COMMIT) for at in times
    ]
    try:
        commits = snapshot.commits(instants)
    except CorruptError:
        return _commits_one_by_one(snapshot, instants)
    return {i.requested_at: commit for i, commit in zip(instants, commits, strict=True)}


def _commits_one_by_one(
    snapshot: Snapshot, instants: Iterable[Instant]
) -> dict[str, CommitMetadata]:
    commits = {}
    for instant in instants:
        try:
            (commits[instant.requested_at],) = snapshot.commits([instant])
        except CorruptError:
            continue
    return commits
