"""The log files that no base file holds yet, with their event times; no data file is read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from lakewright.core.commits import CommitMetadata, is_log
from lakewright.core.files import LogFile
from lakewright.core.freshness import Waiting, first, waiting_of
from lakewright.core.instant import Instant
from lakewright.core.plans import CompactionPlan
from lakewright.core.slices import FileSlice, GroupKey
from lakewright.errors import CorruptError
from lakewright.table.snapshot import Snapshot
from lakewright.table.written_since import partitions_with_logs


@dataclass(frozen=True, slots=True)
class HeldBack:
    """A log file that holds read-optimized completion back; `instant` is the write that made it.

    Its least event time is None where it is unknown: nothing is known to be complete then.
    """

    partition: str
    file_id: str
    log: str
    instant: str
    event_time: int | None
    size: int

    @property
    def waiting(self) -> Waiting:
        """The log file as commits keep it."""
        path = f"{self.partition}/{self.log}" if self.partition else self.log
        return Waiting(path, self.instant, self.event_time)


def waiting_logs(snapshot: Snapshot, partitions: Iterable[str] | None) -> tuple[HeldBack, ...]:
    """The log files that wait in partitions, of an unknown event time first, then by event time.

    None: in those that can have such files, by what the last compaction has left.
    """
    looked_at = partitions_with_logs(snapshot) if partitions is None else tuple(sorted(partitions))
    if looked_at == ():
        return ()
    groups = snapshot.groups(snapshot.view(), snapshot.files(looked_at))
    slices = [group.merged() for group in groups]
    commits = known_commits(snapshot, {log.instant for item in slices for log in item.logs})
    by_path = {at: _by_path(at, commit) for at, commit in commits.items()}
    joined = _joined_logs(snapshot, commits)
    found = []
    for item in slices:
        for log in _in_force(item, joined):
            held = _held(item, log, commits.get(log.instant), by_path.get(log.instant, {}))
            found += [] if held is None else [held]
    return tuple(sorted(found, key=_urgency))


def _joined_logs(
    snapshot: Snapshot, commits: Mapping[str, CommitMetadata]
) -> dict[str, dict[GroupKey, frozenset[str]]]:
    """By the log compactions among some writes: the log files that each of them stands for.

    One whose plan is not there any more stands for none that is known.
    """
    found = {}
    for at, commit in commits.items():
        if commit.operation == "LOG_COMPACT":
            plan = snapshot.plan_of(at, "logcompaction")
            if isinstance(plan, CompactionPlan):
                found[at] = {(o.partition, o.file_id): frozenset(o.logs) for o in plan.operations}
    return found


def _in_force(
    item: FileSlice, joined: Mapping[str, Mapping[GroupKey, frozenset[str]]]
) -> list[LogFile]:
    """The log files of a slice, without those that were written once more in another one."""
    key = item.partition, item.file_id
    gone: set[str] = set()
    for at in {log.instant for log in item.logs} & joined.keys():
        gone |= joined[at].get(key, frozenset())
    return [log for log in item.logs if log.name not in gone]


def _urgency(held: HeldBack) -> tuple[bool, int, str, str]:
    known = held.event_time is not None
    return known, held.event_time or 0, held.partition, held.log


def _by_path(at: str, commit: CommitMetadata) -> dict[str, Waiting | None]:
    return {
        stat.path or "": waiting_of(at, commit.operation, stat)
        for stat in commit.write_stats()
        if is_log(stat)
    }


def _held(
    item: FileSlice,
    log: LogFile,
    commit: CommitMetadata | None,
    by_path: dict[str, Waiting | None],
) -> HeldBack | None:
    """A log file as its commit tells of it; None if nothing in it waits."""
    path = item.path(log)
    if path in by_path:
        told = by_path[path]
        if told is None:
            return None
        time = told.event_time
    else:
        time = _least_of_group(item, log, commit)
    return HeldBack(item.partition, item.file_id, log.name, log.instant, time, log.size)


def _least_of_group(item: FileSlice, log: LogFile, commit: CommitMetadata | None) -> int | None:
    """The least time of what a commit says of the file group, where it does not name the file."""
    stats = commit.stats.get(item.partition, ()) if commit is not None else ()
    told = [
        waiting_of(log.instant, commit.operation if commit else None, stat)
        for stat in stats
        if stat.file_id == item.file_id and is_log(stat)
    ]
    held = first(*told)
    return held.event_time if held is not None else None


def known_commits(snapshot: Snapshot, times: Iterable[str]) -> dict[str, CommitMetadata]:
    """What writes did; one that neither timeline nor history tells of is left out: unknown."""
    instants = [snapshot.timeline.by_time.get(at) or Instant(at, "deltacommit") for at in times]
    try:
        found = snapshot.commits(instants)
    except CorruptError:
        return _commits_one_by_one(snapshot, instants)
    return {i.requested_at: commit for i, commit in zip(instants, found, strict=True)}


def _commits_one_by_one(
    snapshot: Snapshot, instants: Iterable[Instant]
) -> dict[str, CommitMetadata]:
    found = {}
    for instant in instants:
        try:
            (found[instant.requested_at],) = snapshot.commits([instant])
        except CorruptError:
            continue
    return found
