"""When rows were last written to each partition, by what writes have recorded. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from lakewright.errors import found_in
from lakewright.format.partition_metadata import PartitionMetadata
from lakewright.format.timeline_metadata import parse_commit
from lakewright.model.commit_metadata import SERVICE_OPERATIONS, CommitMetadata
from lakewright.model.file_group import GroupKey, LogFile
from lakewright.model.instant import (
    WRITE_ACTIONS,
    Action,
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
from lakewright.table.archived_timeline import load_entries
from lakewright.table.properties import last_update_time, load_partition_metadata
from lakewright.table.snapshot import DataFile, Snapshot

_DELETE_PARTITION = "DELETE_PARTITION"


@dataclass(frozen=True, slots=True)
class CommittedWrite:
    """A completed write of rows, and where it was found."""

    instant: Instant
    commit: CommitMetadata
    source: ReferenceSource

    @property
    def reference(self) -> TimeReference:
        """Its completion: readers see the rows from then on."""
        time = self.instant.completed_at or self.instant.requested_at
        return TimeReference(full_time(time), self.source)


def writes_rows(commit: CommitMetadata) -> bool:
    """Whether a write brings or deletes rows; services only move them.

    A write that does not tell what it was is taken for one that does.
    """
    operation = (commit.operation or "").upper()
    if operation == _DELETE_PARTITION:
        return True
    service = operation in SERVICE_OPERATIONS or SERVICE_KEY in commit.extra
    return not service and not commit.compacted


@dataclass(frozen=True, slots=True)
class LastWrites:
    """The last write to each partition, and the first one since it was last emptied, if it was.

    `first` is the first write to each, whether it was ever emptied or not.
    """

    updated: Mapping[str, TimeReference] = field(default_factory=dict)
    born: Mapping[str, TimeReference] = field(default_factory=dict)
    first: Mapping[str, TimeReference] = field(default_factory=dict)


def writes_of(recorded: Iterable[CommittedWrite]) -> LastWrites:
    """What writes of rows tell together, in whatever order they are given."""
    updated: dict[str, TimeReference] = {}
    born: dict[str, TimeReference] = {}
    first: dict[str, TimeReference] = {}
    emptied: set[str] = set()
    for each in sorted(recorded, key=lambda r: (r.reference.at, r.instant.requested_at)):
        reference = each.reference
        # An overwrite of the table also leaves nothing in those that it does not write to.
        left = each.commit.replaced.keys() - each.commit.stats.keys()
        emptied |= left
        born |= dict.fromkeys(left, reference)
        for partition in each.commit.stats:
            updated[partition] = reference
            first.setdefault(partition, reference)
            if partition in emptied:
                emptied.discard(partition)
                born[partition] = reference
    return LastWrites(updated, born, first)


# ------------------------------------------------------------------------------------------------
# What TTL has to know of the table: how old its partitions are, and who is at work in them.
#
# The writes of the active timeline are read once, and partitions listed that they do not tell of.
# The
# metadata file is read of partitions that a policy is for. History is read only if it may know of
# a
# later write to a partition that would else be taken out: then it must be asked, as not every
# writer
# renews the line.


_END = "9"
_UNKNOWN = PartitionTimes(), TtlDecision(partition="")


@dataclass(frozen=True, slots=True)
class PartitionActivity:
    """A partition that has rows, by the names of its files.

    `archived` are instants before the active timeline, oldest first: writes, or services. `moved`
    is the newest service of the active timeline. `writer` is somebody who is at work there.

    Every write of rows leaves a file that carries its instant, until a service puts a file with a
    later one in its place. So no write that is not on the active timeline is later than these.
    """

    archived: tuple[str, ...] = ()
    moved: str = ""
    writer: str = ""

    @property
    def bound(self) -> str:
        """The latest time at which history may have recorded a write."""
        return max((*map(full_time, self.archived[-1:]), full_time(self.moved)))


@dataclass(frozen=True)
class PartitionAges:
    """How old partitions are, as far as it was asked; `told` are the instants of history."""

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
        lives: Mapping[str, PartitionActivity],
        is_settled: Callable[[str, PartitionTimes], bool] = lambda partition, known: False,
    ) -> PartitionAges:
        """Read what the active timeline tells of partitions, and then their metadata.

        That of a partition is left unread if it cannot change what the timeline has settled.
        """
        if not lives:
            return cls(snapshot, lives)
        active = active_writes(snapshot)
        told = cls(snapshot, lives, {}, active, writes_of(active))
        unsettled = [p for p in lives if not is_settled(p, told.times_of(p))]
        return replace(told, metadata=load_partition_metadata(snapshot.storage, unsettled))

    def times_of(self, partition: str) -> PartitionTimes:
        """What is known of a partition.

        A file of an archived instant that history was asked for, and does not know, is believed.
        """
        metadata, lives = self.metadata.get(partition), self.activity[partition]
        found = [self.writes.updated[partition]] if partition in self.writes.updated else []
        line = last_update_time(metadata)
        found += [TimeReference(line, ReferenceSource.LINE)] if line else []
        if self.archived_instants is not None:
            lost = [full_time(at) for at in lives.archived if at not in self.archived_instants]
            found += [TimeReference(lost[-1], ReferenceSource.FILES)] if lost else []
        return PartitionTimes(
            updated=max(found, key=lambda each: each.at, default=None),
            created=self._created(partition, metadata),
            bound=lives.bound,
        )

    def _created(self, partition: str, metadata: PartitionMetadata | None) -> TimeReference | None:
        """The first write; the file of a partition may be older than that.

        It stays when a partition is deleted, and when the write that made it is rolled back.
        """
        if metadata is None or not is_time(metadata.commit_time):
            return None
        told = TimeReference(full_time(metadata.commit_time), ReferenceSource.CREATED)
        born = self.writes.born.get(partition)
        if born is None and self._was_rolled_back(metadata.commit_time):
            born = self.writes.first.get(partition)
        return (
            told
            if born is None or born.at <= told.at
            else replace(born, source=ReferenceSource.CREATED)
        )

    def _was_rolled_back(self, at: str) -> bool:
        """Whether nothing tells of a write any more, where all that would tell was asked."""
        timeline = self.snapshot.timeline
        if not timeline.is_archived(at):
            return not timeline.is_committed(at)
        return self.archived_instants is not None and at not in self.archived_instants

    def with_history(self, partitions: Iterable[str], *, births: bool = False) -> PartitionAges:
        """The same with what history knows of partitions; of their beginnings only if asked."""
        first, last = self._range(partitions, births=births)
        known = list(archived_writes(self.snapshot, first, last))
        rows = [each for each in known if writes_rows(each.commit)]
        told = frozenset(each.instant.requested_at for each in known)
        return replace(self, writes=writes_of([*rows, *self.active]), archived_instants=told)

    def _range(self, partitions: Iterable[str], *, births: bool) -> tuple[str, str]:
        firsts, lasts = [], []
        for known in map(self.times_of, partitions):
            references = [known.updated, *([known.created] if births else [])]
            firsts.append(min(each.at if each is not None else "" for each in references))
            lasts.append(_END if births else known.bound or _END)
        return min(firsts), max(lasts)


def evaluate_partitions(
    snapshot: Snapshot,
    lives: Mapping[str, PartitionActivity],
    rules: Sequence[ActivePolicy],
    *,
    by: ConflictRule,
    now: datetime,
) -> dict[str, TtlDecision]:
    """The verdict on each partition, without what may block it."""
    covering = {p: [rule for rule in rules if rule.covers(p)] for p in lives}
    hive_style = snapshot.config.hive_style

    def judged(partition: str, known: PartitionTimes) -> TtlDecision:
        told = path_reference(partition, covering[partition], hive_style=hive_style)
        known = replace(known, path=told) if told is not None else known
        return evaluate_partition(partition, covering[partition], known, by=by, now=now)

    first: dict[str, tuple[PartitionTimes, TtlDecision]] = {}

    def lives_on(partition: str, known: PartitionTimes) -> bool:
        """Whether a write on the timeline is reason enough; a later one only makes it live longer.

        Rules that count from the first write, or are for rows, need the metadata.
        """
        if known.updated is None or not all(_is_by_last_write(r) for r in covering[partition]):
            return False
        verdict = judged(partition, known)
        first[partition] = known, verdict
        return not verdict.expired

    ages = PartitionAges.load(snapshot, {p: lives[p] for p in lives if covering[p]}, lives_on)
    start = snapshot.timeline.start or ""
    verdicts, doubtful = {p: TtlDecision(partition=p) for p in lives}, []
    for p in ages.activity:
        known, verdict = first.get(p, _UNKNOWN)
        if known.updated is None or last_update_time(ages.metadata.get(p)) > known.updated.at:
            known = ages.times_of(p)
            verdict = judged(p, known)
        verdicts[p] = verdict
        if is_doubtful(verdict, known, start):
            doubtful.append(p)
    if doubtful:
        births = any(rule.basis is RetentionBasis.BY_CREATION_TIME for rule in rules)
        ages = ages.with_history(doubtful, births=births)
        verdicts |= {p: judged(p, ages.times_of(p)) for p in doubtful}
    return verdicts


def _is_by_last_write(rule: ActivePolicy) -> bool:
    return rule.basis is RetentionBasis.BY_TIME and rule.policy.level is TtlLevel.PARTITION


def path_reference(
    partition: str, rules: Iterable[ActivePolicy], *, hive_style: bool
) -> TimeReference | None:
    """What the path of a partition tells of its time, where a rule goes by that.

    The partition without a value is as old as can be, or never expires.
    """
    for rule in rules:
        if rule.path_time is not None:
            found = rule.path_time.of(partition, hive_style=hive_style)
            if found is not None:
                return TimeReference(format_time(found), ReferenceSource.PATH)
            return (
                TimeReference(format_time(LONG_AGO), ReferenceSource.PATH)
                if rule.default_expires
                else None
            )
    return None


def partitions_with_rows(snapshot: Snapshot) -> dict[str, PartitionActivity]:
    """The partitions that have rows; only those are listed that the timeline does not tell of.

    One that was deleted keeps its folder until it is cleaned.
    """
    snapshot.commits(snapshot.timeline.completed_writes)  # all in one call, for all that follows
    states: dict[str, _State] = {}
    replaced = snapshot.replaced(snapshot.view())
    found = dict.fromkeys(_partitions_on_timeline(snapshot, replaced), PartitionActivity())
    for partition, files in snapshot.files(exclude={"", *found}).items():
        lives = _partition_activity(
            partition, files, replaced, lambda at: _state(snapshot, states, at)
        )
        if lives is not None:
            found[partition] = lives
    return {partition: found[partition] for partition in sorted(found)}


def _partitions_on_timeline(snapshot: Snapshot, replaced: set[GroupKey]) -> set[str]:
    """The partitions of which the active timeline tells the last write, and that have rows.

    History knows of no later one, but for a commit that a savepoint has kept on the timeline. Who
    is at work in them only their files can tell.
    """
    timeline = snapshot.timeline
    if any(i.is_write for i in timeline.pending()):
        return set()
    start = timeline.start or ""
    return {
        partition
        for each in active_writes(snapshot)
        if each.instant.requested_at >= start
        for partition, stats in each.commit.stats.items()
        if partition and any(s.path and (partition, s.file_id) not in replaced for s in stats)
    }


@dataclass(frozen=True, slots=True)
class _State:
    """What an instant in the name of a file is."""

    completed: bool = False
    archived: bool = False
    moves: bool = False
    writer: str = ""


def _state(snapshot: Snapshot, states: dict[str, _State], at: str) -> _State:
    if at not in states:
        instant = snapshot.timeline.by_time.get(at)
        if instant is None:
            archived = snapshot.timeline.is_archived(at)
            states[at] = _State(completed=archived, archived=archived)
        elif instant.is_completed:
            (commit,) = snapshot.commits([instant])
            states[at] = _State(completed=True, moves=not writes_rows(commit))
        elif _is_cancellable(snapshot, instant):
            states[at] = _State()
        else:
            states[at] = _State(writer=f"{instant.action} {at}")
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
    state: Callable[[str], _State],
) -> PartitionActivity | None:
    archived: set[str] = set()
    moved, writer, has_rows = "", "", False
    for file in files:
        found = state(file.instant)
        writer = writer or found.writer
        if not found.completed or (partition, file.file_id) in replaced:
            continue
        if isinstance(file, LogFile) and file.cdc:
            continue
        has_rows = True
        if found.archived:
            archived.add(file.instant)
        elif found.moves:
            moved = max(moved, file.instant)
    return PartitionActivity(tuple(sorted(archived)), moved, writer) if has_rows else None


def active_writes(snapshot: Snapshot) -> list[CommittedWrite]:
    """The writes of rows on the active timeline."""
    writes = snapshot.timeline.completed_writes
    commits = zip(writes, snapshot.commits(writes), strict=True)
    found = (
        CommittedWrite(instant, commit, ReferenceSource.TIMELINE) for instant, commit in commits
    )
    return [each for each in found if writes_rows(each.commit)]


def archived_writes(snapshot: Snapshot, first: str, last: str) -> Iterable[CommittedWrite]:
    """What history has recorded of all writes, services as well, requested from `first` on."""
    folder = snapshot.config.history_folder
    active = snapshot.timeline.by_time
    entries = load_entries(snapshot.storage, folder, first=first, last=last, with_content=True)
    for entry in entries:
        if entry.action not in WRITE_ACTIONS or entry.requested_at in active or not entry.metadata:
            continue
        instant = Instant(entry.requested_at, Action(entry.action), completed_at=entry.completed_at)
        with found_in(f"{folder}: {entry.requested_at}"):
            yield CommittedWrite(instant, parse_commit(entry.metadata), ReferenceSource.HISTORY)


def partitions_in_pending_plans(snapshot: Snapshot) -> dict[str, str]:
    """Who must be done with partitions first: the plans that wait to be executed.

    Cancellable ones need not be waited for.
    """
    return {
        partition: f"{instant.action} {instant.requested_at}"
        for instant, plan in snapshot.pending_plans()
        if not plan.cancellable
        for partition in plan.partitions
    }
