"""Whether a write that is about to complete clashes with what others did meanwhile. Pure.

Two writes clash where they touch the same file group; two inserts into new groups never do, as in
real Hudi: whether they insert the same keys is for the write layer to tell. That also holds for an
overwrite of a partition into which somebody inserted a new group: the rows stay, as if the insert
had come after it.

What others did meanwhile is judged by these rules:
- completed since the transaction began: every commit, delta commit and replace commit;
- pending: a clustering, whose plan will take its groups out of the table; an overwrite that began
  later, by what its inflight file says; a compaction that began later, by its plan. Cancellable
  ones are passed over: they find out when they want to complete, and fail.

A cancellable plan gives way where others would not. It waits for no pending write, but fails if one
that is alive has announced files that would clash with it; an overwrite does so with all groups of
the partitions that it has come to, or of the table. And it compacts no group that was replaced.

A compaction at C meets another write at W without harm, with three exceptions. A log file follows
its completion time onto the new base file, and a replaced group is gone either way; but a base file
of the same group with W < C would be hidden under the compacted one, with its rows; so would a log
file that completed below C and landed too late for the plan to name it; and a log compaction
repeats old versions, which must not end up on top of a new base file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import Enum, auto
from functools import partial

from lakewright.errors import ConflictError, CorruptError, UnsupportedError, found_in
from lakewright.format.timeline_metadata import (
    parse_commit,
    parse_compaction_plan,
    parse_requested_replace,
    parse_rollback,
    parse_rollback_plan,
)
from lakewright.model.commit_metadata import CommitMetadata, WriteStat
from lakewright.model.file_group import LogFile, parse_data_file
from lakewright.model.instant import WRITE_ACTIONS, Action, Instant, InstantTime, State
from lakewright.model.plans import ClusteringPlan, CompactionPlan
from lakewright.model.timeline import Timeline
from lakewright.table.markers import marked_files
from lakewright.table.properties import read_optional
from lakewright.table.snapshot import Snapshot, load_snapshot

Group = tuple[str, str]
Groups = frozenset[Group]

# With a bucket index two writers may create one bucket under two names; the number is what must be
# unique. Random ids that look alike by chance are as rare as equal ones.
_BUCKET = re.compile(r"(\d{8})-")


class OperationKind(Enum):
    """What a footprint was left by."""

    WRITE = auto()
    COMPACTION = auto()
    LOG_COMPACTION = auto()


_WHOLE_TABLE = "INSERT_OVERWRITE_TABLE"
_KINDS = {"COMPACT": OperationKind.COMPACTION, "LOG_COMPACT": OperationKind.LOG_COMPACTION}


@dataclass(frozen=True, slots=True)
class ConcurrentOperation:
    """The file groups that one instant touches, by (partition, file id) or (partition, bucket).

    `base_groups` get a new base file, `log_groups` only log files, `replaced_groups` are removed;
    `written_file_ids` are the full file ids of the first two. `log_files` are the log files, by
    partition and name, that the write created or that the plan compacts. `completed_at` is set once
    the completed file exists. A `cancellable` plan does not block writers. A pending overwrite will
    replace all file groups of `emptied_partitions`, or of the `whole_table`.
    """

    instant: InstantTime
    action: Action
    kind: OperationKind = OperationKind.WRITE
    base_groups: Groups = frozenset()
    log_groups: Groups = frozenset()
    replaced_groups: Groups = frozenset()
    written_file_ids: Groups = frozenset()
    log_files: frozenset[tuple[str, str]] = frozenset()
    completed_at: InstantTime | None = None
    cancellable: bool = False
    emptied_partitions: frozenset[str] = frozenset()
    whole_table: bool = False

    def file_ids_of(self, group: Group) -> frozenset[str]:
        """The file ids under which a group, which may be a bucket, was written."""
        return frozenset(id_ for p, id_ in self.written_file_ids if _group(p, id_) == group)

    @property
    def groups(self) -> Groups:
        """All groups that are touched."""
        return self.base_groups | self.log_groups | self.replaced_groups


@dataclass(frozen=True, slots=True)
class Conflict:
    """The other instant, the groups both touch, and a sentence about it."""

    instant: Instant
    groups: tuple[Group, ...]
    reason: str


Load = Callable[[Sequence[Instant]], Sequence[ConcurrentOperation]]


def operation_of_commit(instant: Instant, metadata: CommitMetadata) -> ConcurrentOperation:
    """What a write has touched, or says in its inflight file that it will touch."""
    bases: set[Group] = set()
    logs: set[Group] = set()
    for partition, stats in metadata.stats.items():
        for stat in stats:
            if stat.file_id:
                (logs if _is_log(stat) else bases).add(_group(partition, stat.file_id))
    replaced = {_group(p, file_id) for p, ids in metadata.replaced.items() for file_id in ids}
    return ConcurrentOperation(
        instant.requested_at,
        instant.completed_action,
        _KINDS.get((metadata.operation or "").upper(), OperationKind.WRITE),
        base_groups=frozenset(bases),
        log_groups=frozenset(logs - bases),
        replaced_groups=frozenset(replaced),
        written_file_ids=metadata.file_groups(),
        log_files=frozenset(
            (partition, _name(stat))
            for partition, stats in metadata.stats.items()
            for stat in stats
            if stat.path and _is_log(stat)
        ),
        completed_at=instant.completed_at,
    )


def operation_of_compaction_plan(instant: Instant, plan: CompactionPlan) -> ConcurrentOperation:
    """What a compaction will touch, or has touched, by its plan."""
    return ConcurrentOperation(
        instant.requested_at,
        instant.completed_action,
        OperationKind.COMPACTION,
        base_groups=frozenset(_group(o.partition, o.file_id) for o in plan.operations),
        log_files=frozenset((o.partition, name) for o in plan.operations for name in o.logs),
        completed_at=instant.completed_at,
        cancellable=plan.cancellable,
    )


def operation_of_clustering_plan(instant: Instant, plan: ClusteringPlan) -> ConcurrentOperation:
    """What a pending clustering will take out of the table."""
    groups = frozenset(_group(o.partition, o.file_id) for o in plan.operations)
    return ConcurrentOperation(
        instant.requested_at,
        instant.completed_action,
        replaced_groups=groups,
        cancellable=plan.cancellable,
    )


def operation_of_plan(
    instant: Instant, plan: CompactionPlan | ClusteringPlan
) -> ConcurrentOperation:
    """What a plan of any kind will touch."""
    if isinstance(plan, ClusteringPlan):
        return operation_of_clustering_plan(instant, plan)
    found = operation_of_compaction_plan(instant, plan)
    if instant.action != "logcompaction":
        return found
    return replace(
        found,
        kind=OperationKind.LOG_COMPACTION,
        base_groups=frozenset(),
        log_groups=found.base_groups,
    )


def with_marker_files(
    known: ConcurrentOperation, files: Iterable[str], operation: str | None = None
) -> ConcurrentOperation:
    """What a pending write has touched, with the data files that its markers name.

    `operation` is what an overwrite says of itself.
    """
    bases, logs, partitions = set(known.base_groups), set(known.log_groups), set()
    for path in files:
        partition, _, name = path.rpartition("/")
        file = parse_data_file(name)
        if file is not None:
            group = _group(partition, file.file_id)
            (logs if isinstance(file, LogFile) else bases).add(group)
            partitions.add(partition)
    overwrites = known.action == "replacecommit"
    return replace(
        known,
        base_groups=frozenset(bases),
        log_groups=frozenset(logs - bases),
        emptied_partitions=frozenset(partitions) if overwrites else frozenset(),
        whole_table=overwrites and operation == _WHOLE_TABLE,
    )


def candidate_instants(
    mine: ConcurrentOperation,
    before: Timeline,
    now: Timeline,
    *,
    yields_to_clustering: bool = True,
    living: frozenset[str] = frozenset(),
) -> tuple[Instant, ...]:
    """The instants that have to be compared with a write that saw `base` and completes `current`.

    A write that does not yield to pending clusterings leaves it to them to find out: their plans
    do not hold what it wrote, so they fail. `living` are the pending ones whose writers are alive.
    """
    known = {i.requested_at for i in before.completed_writes}
    completed = [i for i in now.completed_writes if i.requested_at not in known]
    # Compactions are looked at only where a file of ours could end up below theirs: a base file, or
    # a log file whose completion time was chosen before the plan was made.
    is_below = mine.base_groups or mine.completed_at is not None
    later = ("replacecommit", "compaction") if is_below else ("replacecommit",)
    pending = [i for i in now.pending(*later) if i.requested_at > mine.instant]
    pending += now.pending(Action.CLUSTERING) if yields_to_clustering else ()
    if mine.cancellable and mine.completed_at is None:
        alive = [i for i in now.pending(*WRITE_ACTIONS) if i.requested_at in living]
        pending += [i for i in alive if i not in pending]
    return tuple(i for i in (*completed, *pending) if i.requested_at != mine.instant)


def find_conflict(
    mine: ConcurrentOperation,
    before: Timeline,
    now: Timeline,
    load: Load,
    *,
    non_blocking: bool = False,
    yields_to_clustering: bool = True,
    living: frozenset[str] = frozenset(),
) -> Conflict | None:
    """The first clash of a write that saw `base` and is about to complete `current`.

    `load` gives the footprints of the rivals, and is called only if there are any.
    """
    others: tuple[Instant, ...] = ()
    if mine.groups:
        others = candidate_instants(
            mine, before, now, yields_to_clustering=yields_to_clustering, living=living
        )
    if not others:
        return None
    for instant, other in zip(others, load(others), strict=True):
        if other.cancellable and not instant.is_completed:
            continue
        groups = _conflicting_groups(mine, other, non_blocking=non_blocking)
        if mine.cancellable and not instant.is_completed:
            # What a pending write would find when it completes after this.
            groups |= _conflicting_groups(other, mine, non_blocking=non_blocking)
        if groups:
            return Conflict(instant, tuple(sorted(groups)), _reason(instant, other))
    return None


def _conflicting_groups(
    mine: ConcurrentOperation, other: ConcurrentOperation, *, non_blocking: bool
) -> Groups:
    if mine.cancellable and other.whole_table:
        return mine.groups
    emptied = frozenset(g for g in mine.groups if g[0] in other.emptied_partitions)
    if mine.cancellable and emptied:
        return emptied
    both = mine.groups & other.groups
    if not both:
        return both
    kinds = {mine.kind, other.kind}
    gone = other.replaced_groups if mine.cancellable else frozenset()
    if OperationKind.COMPACTION in kinds:
        return both & (_hidden_by_compaction(mine, other) | gone)
    if mine.kind is OperationKind.LOG_COMPACTION:
        found = (
            other.groups
            if other.kind is mine.kind
            else other.base_groups | _uncompacted_logs(other, mine)
        )
        return both & (found | gone)
    if non_blocking and mine.action == other.action == "deltacommit":
        # Log files of one bucket are merged whoever wrote them; of two base files one is hidden.
        # A bucket under two names would be two file groups.
        other_name = {g for g in both if mine.file_ids_of(g) != other.file_ids_of(g)}
        plain = {g for g in both if not _is_bucket(g)}
        return frozenset(plain | other_name) | (mine.base_groups & other.base_groups)
    return both


def _hidden_by_compaction(mine: ConcurrentOperation, other: ConcurrentOperation) -> Groups:
    compaction, write = (mine, other) if mine.kind is OperationKind.COMPACTION else (other, mine)
    if write.kind is not OperationKind.WRITE:
        return write.groups
    hidden = write.base_groups if write.instant < compaction.instant else frozenset()
    return hidden | _uncompacted_logs(write, compaction)


def _uncompacted_logs(write: ConcurrentOperation, compaction: ConcurrentOperation) -> Groups:
    """The groups of log files that completed below a compaction and are not in its plan.

    An execution knows of no plan here. What it is compared with was not there when it began, when
    the plan was found to name all that there was.
    """
    if write.completed_at is None or write.completed_at > compaction.instant:
        return frozenset()
    late = write.log_files - compaction.log_files
    files = [(partition, parse_data_file(name)) for partition, name in late]
    return frozenset(_group(partition, file.file_id) for partition, file in files if file)


def _reason(instant: Instant, other: ConcurrentOperation) -> str:
    done = "completed" if instant.is_completed else "is pending"
    what = {
        OperationKind.COMPACTION: "a compaction",
        OperationKind.LOG_COMPACTION: "a log compaction",
    }
    name = what.get(other.kind, f"a {instant.action}")
    return f"{name} {done} that touches the same file groups as this write"


def _is_log(stat: WriteStat) -> bool:
    name = _name(stat)
    return isinstance(parse_data_file(name), LogFile) if name else bool(stat.log_files)


def _name(stat: WriteStat) -> str:
    return (stat.path or "").rpartition("/")[2]


def _group(partition: str, file_id: str) -> Group:
    bucket = _BUCKET.match(file_id)
    return partition, bucket[1] if bucket else file_id


def _is_bucket(group: Group) -> bool:
    return len(group[1]) == 8 and group[1].isdecimal()


# ------------------------------------------------------------------------------------------------
# What others did to the table while a write was under way, loaded as far as the verdict needs.


@dataclass(frozen=True, slots=True)
class ConflictChecker:
    """The table as a write found it, and as it is when the write wants to complete."""

    base: Timeline
    current: Snapshot

    def check_not_rolled_back(self, instant: InstantTime) -> None:
        """ConflictError if this write, or one that it builds upon, was rolled back."""
        restores = self._started_since(Action.RESTORE)
        if restores:
            raise ConflictError(
                "the table was restored to an earlier state meanwhile",
                instant=instant,
                restore=restores[0].requested_at,
            )
        seen = {i.requested_at for i in self.base.completed_writes}
        for rollback in self._started_since(Action.ROLLBACK):
            targets = self._targets(rollback)
            if instant in targets:
                message = "this write was rolled back by another writer"
            elif targets & seen:
                message = "a write that this one builds upon was rolled back meanwhile"
            else:
                continue
            raise ConflictError(message, instant=instant, rollback=rollback.requested_at)
        # A writer may take its completed write back itself, where it had no lock in common with us.
        gone = sorted(at for at in seen if not self.current.timeline.is_committed(at))
        if gone:
            raise ConflictError(
                "a write that this one builds upon is not there any more",
                instant=instant,
                gone=gone,
            )

    def rollbacks_of(self, instant: InstantTime) -> tuple[Instant, ...]:
        """The rollbacks of a write that somebody began meanwhile."""
        return tuple(i for i in self._started_since(Action.ROLLBACK) if instant in self._targets(i))

    def check_commit(
        self,
        instant: Instant,
        metadata: CommitMetadata,
        *,
        non_blocking: bool,
        yields_to_clustering: bool = True,
        gives_way_to: frozenset[str] | None = None,
    ) -> None:
        """ConflictError if another write touched the same file groups.

        `instant` is the completed one where the completed file is there already. A cancellable
        plan also gives way to writes under way, as far as they are known to touch them.
        """
        mine = operation_of_commit(instant, metadata)
        self.check_operation(
            instant,
            replace(mine, cancellable=gives_way_to is not None),
            non_blocking=non_blocking,
            yields_to_clustering=yields_to_clustering,
            living=gives_way_to or frozenset(),
        )

    def check_operation(
        self,
        instant: Instant,
        mine: ConcurrentOperation,
        *,
        non_blocking: bool,
        yields_to_clustering: bool = True,
        living: frozenset[str] = frozenset(),
    ) -> None:
        """The same for a write, or a plan, that touches what a footprint tells."""
        now = self._with_archived()
        found = find_conflict(
            mine,
            self.base,
            now,
            self._operations_with_plans
            if mine.completed_at is not None
            else partial(self._operations, living=living),
            non_blocking=non_blocking,
            yields_to_clustering=yields_to_clustering,
            living=living,
        )
        if found is not None:
            raise _error(instant, found)

    def _with_archived(self) -> Timeline:
        """The timeline now, with those that were pending before and are archived already.

        A pending write keeps everything after it on the active timeline, but not what began before
        it: that may have completed and been archived since.
        """
        pending = {i.requested_at for i in self.base.pending() if i.is_write}
        gone = pending - self.current.timeline.by_time.keys()
        if not gone:
            return self.current.timeline
        archived = [i for i in self.current.archived if i.requested_at in gone]
        return Timeline.of([*self.current.timeline, *archived])

    def _started_since(self, action: Action) -> list[Instant]:
        """The instants of an action that are new, or were pending before."""
        done = {i.requested_at for i in self.base.completed(action)}
        found = [i for i in self.current.timeline if i.action == action]
        return [i for i in found if i.requested_at not in done]

    def _targets(self, rollback: Instant) -> frozenset[str]:
        """The requested times of what a rollback takes back."""
        plan = self._read(replace(rollback, state=State.REQUESTED, completed_at=None))
        if plan:
            with found_in(rollback.file_name):
                return frozenset({parse_rollback_plan(plan).instant.requested_at})
        done = self._read(rollback) if rollback.is_completed else None
        if not done:
            return frozenset()
        with found_in(rollback.file_name):
            metadata = parse_rollback(done)
        return frozenset(i.requested_at for i in metadata.instants) or frozenset(metadata.commits)

    def _operations(
        self, instants: Sequence[Instant], *, living: frozenset[str] = frozenset()
    ) -> list[ConcurrentOperation]:
        completed = [i for i in instants if i.is_completed]
        commits = zip(completed, self._commits(completed), strict=True)
        known = {instant: operation_of_commit(instant, commit) for instant, commit in commits}
        return [
            known.get(i)
            or (
                self._marked_operation(i)
                if i.requested_at in living
                else self._planned_operation(i)
            )
            for i in instants
        ]

    def _commits(self, completed: Sequence[Instant]) -> Sequence[CommitMetadata]:
        try:
            return self.current.commits(completed)
        except CorruptError as error:
            latest = load_snapshot(self.current.storage)
            there = {i.requested_at for i in (*latest.timeline, *latest.archived)}
            gone = [i.requested_at for i in completed if i.requested_at not in there]
            if not gone:
                raise
            raise ConflictError(
                "a completed write was rolled back while this one looked at it: write again",
                gone=gone,
            ) from error

    def _operations_with_plans(self, instants: Sequence[Instant]) -> list[ConcurrentOperation]:
        """The same, and completed compactions with the log files that their plans name."""
        found = self._operations(instants)
        for position, instant in enumerate(instants):
            if instant.is_completed and found[position].kind is OperationKind.COMPACTION:
                plan = self.current.plan_of(instant.requested_at, Action.COMPACTION)
                if isinstance(plan, CompactionPlan):
                    found[position] = operation_of_compaction_plan(instant, plan)
        return found

    def _planned_operation(self, instant: Instant) -> ConcurrentOperation:
        """What a pending action will touch; nothing if it was rolled back just now."""
        requested = replace(instant, state=State.REQUESTED)
        data = self._read(requested)
        if not data:
            return self._pending_operation(instant)
        with found_in(requested.file_name):
            if instant.action == "compaction":
                return operation_of_compaction_plan(instant, parse_compaction_plan(data))
            plan = parse_requested_replace(data).plan
        return (
            operation_of_clustering_plan(instant, plan)
            if plan
            else self._pending_operation(instant)
        )

    def _marked_operation(self, instant: Instant) -> ConcurrentOperation:
        """What a pending write is known to touch, which may be less than it will."""
        files: tuple[str, ...] = ()
        operation = None
        # A glance at the work of others: what is wrong there, or half written, is not for us.
        with suppress(CorruptError, UnsupportedError):
            files = marked_files(self.current.storage, instant.requested_at)
            data = self._read(replace(instant, state=State.REQUESTED))
            operation = parse_requested_replace(data).operation if data else None
        return with_marker_files(self._pending_operation(instant), files, operation)

    def _pending_operation(self, instant: Instant) -> ConcurrentOperation:
        data = self._read(instant) if instant.state is State.INFLIGHT else None
        if not data:
            return ConcurrentOperation(instant.requested_at, instant.completed_action)
        with found_in(instant.file_name):
            return operation_of_commit(instant, parse_commit(data))

    def _read(self, instant: Instant) -> bytes | None:
        path = self.current.timeline_path(instant)
        return read_optional(self.current.storage, path)


def max_timeline_time(timeline: Iterable[Instant]) -> str:
    """The greatest time that anybody has put on the timeline; empty if there is none."""
    return max(
        (time for i in timeline for time in (i.requested_at, i.completed_at or "")), default=""
    )


def _error(instant: Instant, conflict: Conflict) -> ConflictError:
    return ConflictError(
        conflict.reason,
        instant=instant.requested_at,
        other=conflict.instant.file_name,
        groups=conflict.groups,
    )
