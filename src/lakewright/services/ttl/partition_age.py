"""Finds out when rows were last written to each partition, and evaluates the TTL policies.

Reads the writes of the active timeline once, and lists only partitions that these do not cover.
Reads the metadata file only of partitions that a policy covers. Not every writer updates
`lastUpdateTime`, so the archived timeline is read as well, but only if it may have a later write to
a partition that would expire otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from lakewright.format.partition_metadata import PartitionMetadata
from lakewright.model.commit_metadata import SERVICE_OPERATIONS, CommitMetadata
from lakewright.model.file_group import GroupKey, LogFile
from lakewright.model.instant import (
    WRITE_ACTIONS,
    Instant,
    format_time,
    full_time,
    is_time,
)
from lakewright.model.plans import SERVICE_KEY
from lakewright.model.ttl import LONG_AGO, ActivePolicy, ConflictRule, RetentionBasis, TtlLevel
from lakewright.services.ttl.planner import (
    PartitionTimes,
    ReferenceSource,
    TimeReference,
    TtlDecision,
    evaluate_partition,
    is_doubtful,
)
from lakewright.table.heartbeat import is_expired, live_heartbeats
from lakewright.table.options import HeartbeatSettings
from lakewright.table.properties import last_update_time, load_partition_metadata
from lakewright.table.snapshot import DataFile, Snapshot

_DELETE_PARTITION = "DELETE_PARTITION"


# The last write to each partition, from commits.


@dataclass(frozen=True, slots=True)
class CommittedWrite:
    """A completed write, and the source that it was read from."""

    instant: Instant
    commit: CommitMetadata
    source: ReferenceSource

    @property
    def reference(self) -> TimeReference:
        """Its completion time: readers see the rows from then on."""
        time = self.instant.completed_at or self.instant.requested_at
        return TimeReference(full_time(time), self.source)


def writes_rows(commit: CommitMetadata) -> bool:
    """Whether a commit adds, changes or deletes rows; table services only rewrite them.

    A commit that does not name its operation counts as one that does.
    """
    operation = (commit.operation or "").upper()
    if operation == _DELETE_PARTITION:
        return True
    is_service = operation in SERVICE_OPERATIONS or SERVICE_KEY in commit.extra
    return not is_service and not commit.compacted


@dataclass(frozen=True, slots=True)
class LastWrites:
    """The times of writes to each partition.

    `updated` is the last write, `first` the first one. `born` is the first write since the
    partition was last emptied, or the commit that emptied it; missing if it never was.
    """

    updated: Mapping[str, TimeReference] = field(default_factory=dict)
    born: Mapping[str, TimeReference] = field(default_factory=dict)
    first: Mapping[str, TimeReference] = field(default_factory=dict)


def writes_of(recorded: Iterable[CommittedWrite]) -> LastWrites:
    """The times of writes to each partition; the order of `recorded` does not matter."""
    updated: dict[str, TimeReference] = {}
    first_since_emptied: dict[str, TimeReference] = {}
    first: dict[str, TimeReference] = {}
    emptied: set[str] = set()
    for write in sorted(recorded, key=lambda w: (w.reference.at, w.instant.requested_at)):
        reference = write.reference
        # An overwrite of the table also empties the partitions that it does not write to.
        now_empty = write.commit.replaced.keys() - write.commit.stats.keys()
        emptied |= now_empty
        first_since_emptied |= dict.fromkeys(now_empty, reference)
        for partition in write.commit.stats:
            updated[partition] = reference
            first.setdefault(partition, reference)
            if partition in emptied:
                emptied.discard(partition)
                first_since_emptied[partition] = reference
    return LastWrites(updated, first_since_emptied, first)


# The times of each partition, from commits, partition metadata and file names.


# Sorts after every instant time.
_MAX_TIME = "9"
_UNKNOWN = PartitionTimes(), TtlDecision(partition="")


@dataclass(frozen=True, slots=True)
class PartitionActivity:
    """A partition that has rows, judging by its file names.

    `archived` are the archived instants of its files, oldest first: writes, or table services.
    `moved` is the newest table service of the active timeline. `writer` is a pending write to the
    partition, if there is one.

    Every write of rows leaves a file with its instant in the name, until a table service replaces
    it by a file with a later instant. So no archived write is later than these instants.
    """

    archived: tuple[str, ...] = ()
    moved: str = ""
    writer: str = ""

    @property
    def bound(self) -> str:
        """The latest time of a write that the archived timeline may have."""
        return max((*map(full_time, self.archived[-1:]), full_time(self.moved)))


@dataclass(frozen=True)
class PartitionAges:
    """The times of partitions, from the sources that were read so far.

    `archived_instants` are the instants read from the archived timeline; None if it was not read.
    """

    snapshot: Snapshot
    activity: Mapping[str, PartitionActivity]
    metadata: Mapping[str, PartitionMetadata] = field(default_factory=dict)
    active: Sequence[CommittedWrite] = ()
    writes: LastWrites = field(default_factory=LastWrites)
    archived_instants: frozenset[str] | None = None

    @classmethod
    def load(
        cls,
        snapshot: Snapshot,
        activity: Mapping[str, PartitionActivity],
        is_settled: Callable[[str, PartitionTimes], bool] = lambda partition, times: False,
    ) -> PartitionAges:
        """Read the writes of the active timeline, and then the metadata of partitions.

        The metadata of a partition is not read if `is_settled` says so, given its times according
        to the timeline.
        """
        if not activity:
            return cls(snapshot, activity)
        active = active_writes(snapshot)
        ages = cls(snapshot, activity, {}, active, writes_of(active))
        unsettled = [p for p in activity if not is_settled(p, ages.times_of(p))]
        return replace(ages, metadata=load_partition_metadata(snapshot.storage, unsettled))

    def times_of(self, partition: str) -> PartitionTimes:
        """The times of a partition.

        If the archived timeline was read and lacks the instant of a file, the file name counts as
        a write.
        """
        metadata, activity = self.metadata.get(partition), self.activity[partition]
        updates = [self.writes.updated[partition]] if partition in self.writes.updated else []
        recorded = last_update_time(metadata)
        updates += [TimeReference(recorded, ReferenceSource.LINE)] if recorded else []
        if self.archived_instants is not None:
            missing = [
                full_time(at) for at in activity.archived if at not in self.archived_instants
            ]
            updates += [TimeReference(missing[-1], ReferenceSource.FILES)] if missing else []
        return PartitionTimes(
            updated=max(updates, key=lambda reference: reference.at, default=None),
            created=self._created(partition, metadata),
            bound=activity.bound,
        )

    def _created(self, partition: str, metadata: PartitionMetadata | None) -> TimeReference | None:
        """The time of the first write, which may be later than that in the metadata file.

        The file stays when the partition is deleted, and when the write that created it is rolled
        back.
        """
        if metadata is None or not is_time(metadata.commit_time):
            return None
        recorded = TimeReference(full_time(metadata.commit_time), ReferenceSource.CREATED)
        first_write = self.writes.born.get(partition)
        if first_write is None and self._was_rolled_back(metadata.commit_time):
            first_write = self.writes.first.get(partition)
        return (
            recorded
            if first_write is None or first_write.at <= recorded.at
            else replace(first_write, source=ReferenceSource.CREATED)
        )

    def _was_rolled_back(self, at: str) -> bool:
        """Whether neither timeline has a write.

        False if the write may be archived and the archived timeline was not read.
        """
        timeline = self.snapshot.timeline
        if not timeline.is_archived(at):
            return not timeline.is_committed(at)
        return self.archived_instants is not None and at not in self.archived_instants

    def with_history(
        self, partitions: Iterable[str], *, since_creation: bool = False
    ) -> PartitionAges:
        """Add the archived writes to partitions, all since their creation if `since_creation`."""
        first, last = self._range(partitions, since_creation=since_creation)
        archived = list(archived_writes(self.snapshot, first, last))
        of_rows = [write for write in archived if writes_rows(write.commit)]
        instants = frozenset(write.instant.requested_at for write in archived)
        return replace(self, writes=writes_of([*of_rows, *self.active]), archived_instants=instants)

    def _range(self, partitions: Iterable[str], *, since_creation: bool) -> tuple[str, str]:
        """The range of instant times to read from the archived timeline."""
        firsts, lasts = [], []
        for times in map(self.times_of, partitions):
            references = [times.updated, *([times.created] if since_creation else [])]
            firsts.append(min(item.at if item is not None else "" for item in references))
            lasts.append(_MAX_TIME if since_creation else times.bound or _MAX_TIME)
        return min(firsts), max(lasts)


def evaluate_partitions(
    snapshot: Snapshot,
    activity: Mapping[str, PartitionActivity],
    rules: Sequence[ActivePolicy],
    *,
    by: ConflictRule,
    now: datetime,
) -> dict[str, TtlDecision]:
    """The decision on each partition, without what may block it."""
    covering = {p: [policy for policy in rules if policy.covers(p)] for p in activity}
    hive_style = snapshot.config.hive_style

    def evaluate(partition: str, times: PartitionTimes) -> TtlDecision:
        path_time = path_reference(partition, covering[partition], hive_style=hive_style)
        times = replace(times, path=path_time) if path_time is not None else times
        return evaluate_partition(partition, covering[partition], times, by=by, now=now)

    first: dict[str, tuple[PartitionTimes, TtlDecision]] = {}

    def is_not_expired(partition: str, times: PartitionTimes) -> bool:
        """Whether the writes on the timeline are enough to know that a partition is not expired.

        A later write could only make it expire later. Policies that count from the first write, or
        are for rows, need the metadata.
        """
        if times.updated is None or not all(_is_by_last_write(r) for r in covering[partition]):
            return False
        decision = evaluate(partition, times)
        first[partition] = times, decision
        return not decision.expired

    ages = PartitionAges.load(
        snapshot, {p: activity[p] for p in activity if covering[p]}, is_not_expired
    )
    start = snapshot.timeline.start or ""
    decisions, doubtful = {p: TtlDecision(partition=p) for p in activity}, []
    for p in ages.activity:
        times, decision = first.get(p, _UNKNOWN)
        if times.updated is None or last_update_time(ages.metadata.get(p)) > times.updated.at:
            times = ages.times_of(p)
            decision = evaluate(p, times)
        decisions[p] = decision
        if is_doubtful(decision, times, start):
            doubtful.append(p)
    if doubtful:
        since_creation = any(policy.basis is RetentionBasis.BY_CREATION_TIME for policy in rules)
        ages = ages.with_history(doubtful, since_creation=since_creation)
        decisions |= {p: evaluate(p, ages.times_of(p)) for p in doubtful}
    return decisions


def _is_by_last_write(active: ActivePolicy) -> bool:
    return active.basis is RetentionBasis.BY_TIME and active.policy.level is TtlLevel.PARTITION


def path_reference(
    partition: str, rules: Iterable[ActivePolicy], *, hive_style: bool
) -> TimeReference | None:
    """The time that the path of a partition names, if a policy counts from that.

    The Hive default partition has no time: depending on the policy it is expired, or never expires.
    """
    for active in rules:
        if active.path_time is not None:
            time = active.path_time.parse(partition, hive_style=hive_style)
            if time is not None:
                return TimeReference(format_time(time), ReferenceSource.PATH)
            return (
                TimeReference(format_time(LONG_AGO), ReferenceSource.PATH)
                if active.default_expires
                else None
            )
    return None


# The partitions that have rows, and the writes to them.


def dead_writers(snapshot: Snapshot, settings: HeartbeatSettings, now_ms: int) -> frozenset[str]:
    """The pending writes of crashed processes, by requested time.

    A write without a live heartbeat may be that of a single writer, which has none: it counts as
    dead when it began longer ago than a heartbeat lives. It holds no partition then: if its process
    does live, its commit is checked for conflicts with the deletion as that of every writer.
    """
    pending = snapshot.timeline.pending(*WRITE_ACTIONS)
    if not pending:
        return frozenset()
    times = [i.requested_at for i in pending]
    live = live_heartbeats(snapshot.storage, times, settings, now_ms)
    dead = set()
    for instant in pending:
        began = snapshot.storage.status(snapshot.timeline_path(instant))
        is_old = began is None or is_expired(began.modified_ms, settings, now_ms)
        if instant.requested_at not in live and is_old:
            dead.add(instant.requested_at)
    return frozenset(dead)


def partitions_with_rows(
    snapshot: Snapshot, dead: frozenset[str] = frozenset()
) -> dict[str, PartitionActivity]:
    """The partitions that have rows; lists only those that the active timeline does not cover.

    A deleted partition keeps its folder until a clean removes it. The pending writes in `dead` are
    no activity.
    """
    # Loads all commits in one call; the snapshot caches them.
    snapshot.commits(snapshot.timeline.completed_writes)
    states: dict[str, _InstantState] = {}
    replaced = snapshot.replaced(snapshot.view())
    states |= dict.fromkeys(dead, _InstantState())
    on_timeline = _partitions_on_timeline(snapshot, replaced, dead)
    partitions = dict.fromkeys(on_timeline, PartitionActivity())
    for partition, files in snapshot.files(exclude={"", *partitions}).items():
        activity = _partition_activity(
            partition, files, replaced, lambda at: _state(snapshot, states, at)
        )
        if activity is not None:
            partitions[partition] = activity
    return {partition: partitions[partition] for partition in sorted(partitions)}


def _partitions_on_timeline(
    snapshot: Snapshot, replaced: set[GroupKey], dead: frozenset[str]
) -> set[str]:
    """The partitions with rows whose last write is on the active timeline.

    Commits before its start do not count: a savepoint kept these, and later ones may be archived.
    Empty if a write is pending and not in `dead`, as only file names show which partitions it
    writes to.
    """
    timeline = snapshot.timeline
    if any(i.is_write and i.requested_at not in dead for i in timeline.pending()):
        return set()
    start = timeline.start or ""
    return {
        partition
        for write in active_writes(snapshot)
        if write.instant.requested_at >= start
        for partition, stats in write.commit.stats.items()
        if partition and any(s.path and (partition, s.file_id) not in replaced for s in stats)
    }


@dataclass(frozen=True, slots=True)
class _InstantState:
    """The state of an instant in a file name; `rewrites` is set for a completed table service."""

    completed: bool = False
    archived: bool = False
    rewrites: bool = False
    writer: str = ""


def _state(snapshot: Snapshot, states: dict[str, _InstantState], at: str) -> _InstantState:
    """The state of the instant at a time; `states` caches those that were determined before."""
    if at not in states:
        instant = snapshot.timeline.by_time.get(at)
        if instant is None:
            archived = snapshot.timeline.is_archived(at)
            states[at] = _InstantState(completed=archived, archived=archived)
        elif instant.is_completed:
            (commit,) = snapshot.commits([instant])
            states[at] = _InstantState(completed=True, rewrites=not writes_rows(commit))
        elif _is_cancellable(snapshot, instant):
            states[at] = _InstantState()
        else:
            states[at] = _InstantState(writer=f"{instant.action} {at}")
    return states[at]


def _is_cancellable(snapshot: Snapshot, pending: Instant) -> bool:
    if not pending.action.is_rewrite:
        return False
    plan = snapshot.plan_of(pending.requested_at, pending.action)
    return plan is not None and plan.cancellable


def _partition_activity(
    partition: str,
    files: Iterable[DataFile],
    replaced: set[GroupKey],
    state_of: Callable[[str], _InstantState],
) -> PartitionActivity | None:
    """The activity of a partition according to its files; None if it has no rows."""
    archived: set[str] = set()
    rewritten, writer, has_rows = "", "", False
    for file in files:
        state = state_of(file.instant)
        writer = writer or state.writer
        if not state.completed or (partition, file.file_id) in replaced:
            continue
        if isinstance(file, LogFile) and file.cdc:
            continue
        has_rows = True
        if state.archived:
            archived.add(file.instant)
        elif state.rewrites:
            rewritten = max(rewritten, file.instant)
    return PartitionActivity(tuple(sorted(archived)), rewritten, writer) if has_rows else None


def active_writes(snapshot: Snapshot) -> list[CommittedWrite]:
    """The writes of rows on the active timeline."""
    instants = snapshot.timeline.completed_writes
    commits = zip(instants, snapshot.commits(instants), strict=True)
    writes = (
        CommittedWrite(instant, commit, ReferenceSource.TIMELINE) for instant, commit in commits
    )
    return [write for write in writes if writes_rows(write.commit)]


def archived_writes(snapshot: Snapshot, first: str, last: str) -> Iterable[CommittedWrite]:
    """The archived writes and table services requested between `first` and `last`."""
    active = snapshot.timeline.by_time
    for instant, commit in snapshot.archived_commits(first=first, last=last):
        if instant.requested_at not in active:
            yield CommittedWrite(instant, commit, ReferenceSource.HISTORY)


def partitions_in_pending_plans(snapshot: Snapshot) -> dict[str, str]:
    """The pending plan of each partition that TTL must wait for; cancellable plans do not count."""
    return {
        partition: f"{instant.action} {instant.requested_at}"
        for instant, plan in snapshot.pending_plans()
        if not plan.cancellable
        for partition in plan.partitions
    }
