"""Conflict detection: whether a write that is about to complete clashes with concurrent operations.

Two operations conflict where they touch the same file group. Two inserts into new file groups never
conflict, as in real Hudi: whether they insert the same keys is for the write layer to check. That
also holds for an overwrite of a partition into which another writer inserted a new file group: its
rows stay, as if the insert had come after the overwrite.

A write is compared with these concurrent operations:
- completed since the transaction began: every commit, delta commit and replace commit;
- pending: a clustering, whose plan will remove its file groups from the table; an overwrite that
  started later, by what its inflight file says; a compaction that started later, by its plan.
  Cancellable plans are skipped: they find the conflict when they try to complete, and fail.

A cancellable plan yields where other operations would not. It does not wait for a pending write,
but leaves to one with a live heartbeat the file groups in which that has announced files that would
conflict; a pending overwrite conflicts with all file groups of the partitions that it has written
to so far or names in its inflight file, or of the whole table. A pending upsert that has announced
no file in a partition yet is expected in the partitions that its inflight file names, or, if it
names none, in those of the last writes: a clustering that wants to complete leaves these to it. And
a cancellable plan compacts no file group that was replaced. Its conflicts are found for each file
group (`PreemptedError`), so that it can complete without those.

A compaction at C and another write at W of the same file group do not conflict, with three
exceptions. A log file follows its completion time onto the new base file, and a replaced file group
is removed either way; but a base file of the same file group with W < C would be hidden under the
compacted one, with its rows; so would a log file that completed below C and was written too late
for the plan to name it; and a log compaction repeats old row versions, which must not end up on top
of a new base file.

The first section is pure: it compares descriptions of operations. The second one loads them from
the table.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import Enum, auto
from functools import partial

from lakewright.errors import ConflictError, CorruptError, UnsupportedError, errors_in_file
from lakewright.format.timeline_metadata import (
    parse_commit,
    parse_compaction_plan,
    parse_requested_replace,
    parse_rollback,
    parse_rollback_plan,
)
from lakewright.model.commit_metadata import (
    NO_PROFILE,
    SERVICE_OPERATIONS,
    CommitMetadata,
    WorkloadProfile,
    WriteStat,
    changes_no_group,
    is_log,
    workload_profile,
)
from lakewright.model.file_group import LogFile, parse_data_file
from lakewright.model.instant import WRITE_ACTIONS, Action, Instant, InstantTime, State
from lakewright.model.path_patterns import matches_any
from lakewright.model.plans import ClusteringPlan, CompactionPlan
from lakewright.model.timeline import Timeline
from lakewright.table.markers import marked_files
from lakewright.table.properties import read_optional
from lakewright.table.snapshot import Snapshot, load_snapshot

Plan = CompactionPlan | ClusteringPlan
Group = tuple[str, str]
Groups = frozenset[Group]

# With a bucket index two writers may create one bucket under two file ids; the bucket number is
# what must be unique. Random file ids that look like the same bucket by chance are as rare as equal
# ones.
_BUCKET = re.compile(r"(\d{8})-")


class OperationKind(Enum):
    """What kind of instant a concurrent operation is."""

    WRITE = auto()
    COMPACTION = auto()
    LOG_COMPACTION = auto()


_ROW_WRITES = (Action.COMMIT, Action.DELTA_COMMIT)
_RECENT_WRITES = 5
_OVERWRITE_TABLE = "INSERT_OVERWRITE_TABLE"
_KIND_BY_OPERATION = {
    "COMPACT": OperationKind.COMPACTION,
    "LOG_COMPACT": OperationKind.LOG_COMPACTION,
}


@dataclass(frozen=True, slots=True)
class ConcurrentOperation:
    """The file groups that one instant touches, by (partition, file id) or (partition, bucket).

    `base_groups` get a new base file, `log_groups` only log files, `replaced_groups` are removed;
    `written_file_ids` are the full file ids of the first two. `log_files` are the log files, by
    partition and name, that the write created or that the plan compacts. `completed_at` is set once
    the completed file exists. A `cancellable` plan does not block writers; an operation that
    `yields` fails for pending writes. A pending overwrite will replace all file groups of
    `emptied_partitions`, of partitions that match `emptied_patterns`, or of the `whole_table`; a
    pending upsert may change any file group of `expected_partitions`. One that `only_inserts`
    changes none that exists.
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
    yields: bool = False
    emptied_partitions: frozenset[str] = frozenset()
    emptied_patterns: tuple[str, ...] = ()
    expected_partitions: frozenset[str] = frozenset()
    whole_table: bool = False
    only_inserts: bool = False

    def file_ids_of(self, group: Group) -> frozenset[str]:
        """Return the file ids under which a group, which may be a bucket, was written."""
        return frozenset(id_ for p, id_ in self.written_file_ids if _group_key(p, id_) == group)

    @property
    def groups(self) -> Groups:
        """All file groups that the operation touches."""
        return self.base_groups | self.log_groups | self.replaced_groups


@dataclass(frozen=True, slots=True)
class Conflict:
    """The other instant, the file groups that both touch, and a sentence about the conflict."""

    instant: Instant
    groups: tuple[Group, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class PendingWrites:
    """How a plan that is about to complete treats pending writes that have announced nothing.

    They are `expected` where the last writes were, or it `fails_on_unknown`.
    """

    expected: bool = False
    fails_on_unknown: bool = False


class PreemptedError(ConflictError):
    """Other writes have file groups of a cancellable plan."""

    @property
    def groups(self) -> Groups:
        """The file groups in conflict."""
        groups = self.facts.get("groups", ())
        return frozenset(groups) if isinstance(groups, tuple) else frozenset()


Load = Callable[[Sequence[Instant]], Sequence[ConcurrentOperation]]


def operation_of_commit(instant: Instant, metadata: CommitMetadata) -> ConcurrentOperation:
    """Return what a write has touched, or will touch according to its inflight file."""
    bases: set[Group] = set()
    logs: set[Group] = set()
    for partition, stats in metadata.stats.items():
        for stat in stats:
            if stat.file_id:
                (logs if is_log(stat) else bases).add(_group_key(partition, stat.file_id))
    replaced = {_group_key(p, file_id) for p, ids in metadata.replaced.items() for file_id in ids}
    return ConcurrentOperation(
        instant.requested_at,
        instant.completed_action,
        _KIND_BY_OPERATION.get((metadata.operation or "").upper(), OperationKind.WRITE),
        base_groups=frozenset(bases),
        log_groups=frozenset(logs - bases),
        replaced_groups=frozenset(replaced),
        written_file_ids=metadata.file_groups(),
        log_files=frozenset(
            (partition, _file_name(stat))
            for partition, stats in metadata.stats.items()
            for stat in stats
            if stat.path and is_log(stat)
        ),
        completed_at=instant.completed_at,
    )


def operation_of_compaction_plan(instant: Instant, plan: CompactionPlan) -> ConcurrentOperation:
    """Return what a compaction will touch, or has touched, according to its plan."""
    return ConcurrentOperation(
        instant.requested_at,
        instant.completed_action,
        OperationKind.COMPACTION,
        base_groups=frozenset(_group_key(o.partition, o.file_id) for o in plan.operations),
        log_files=frozenset((o.partition, name) for o in plan.operations for name in o.logs),
        completed_at=instant.completed_at,
        cancellable=plan.cancellable,
        yields=plan.cancellable,
    )


def operation_of_clustering_plan(instant: Instant, plan: ClusteringPlan) -> ConcurrentOperation:
    """Return the file groups that a pending clustering will remove from the table."""
    groups = frozenset(_group_key(o.partition, o.file_id) for o in plan.operations)
    return ConcurrentOperation(
        instant.requested_at,
        instant.completed_action,
        replaced_groups=groups,
        cancellable=plan.cancellable,
        yields=plan.cancellable,
    )


def operation_of_plan(
    instant: Instant, plan: CompactionPlan | ClusteringPlan
) -> ConcurrentOperation:
    """Return what a plan of any kind will touch."""
    if isinstance(plan, ClusteringPlan):
        return operation_of_clustering_plan(instant, plan)
    compaction = operation_of_compaction_plan(instant, plan)
    if instant.action != Action.LOG_COMPACTION:
        return compaction
    return replace(
        compaction,
        kind=OperationKind.LOG_COMPACTION,
        base_groups=frozenset(),
        log_groups=compaction.base_groups,
    )


def with_marker_files(
    pending: ConcurrentOperation,
    files: Iterable[str],
    operation: str | None = None,
    profile: WorkloadProfile = NO_PROFILE,
) -> ConcurrentOperation:
    """Return what a pending write has touched, including the data files that its markers name.

    `operation` is the operation type that an overwrite has recorded, `profile` what the inflight
    file of the write says of its partitions.
    """
    bases, logs, partitions = set(pending.base_groups), set(pending.log_groups), set()
    for path in files:
        partition, _, name = path.rpartition("/")
        file = parse_data_file(name)
        if file is not None:
            group = _group_key(partition, file.file_id)
            (logs if isinstance(file, LogFile) else bases).add(group)
            partitions.add(partition)
    overwrites = pending.action == Action.REPLACE_COMMIT
    return replace(
        pending,
        base_groups=frozenset(bases),
        log_groups=frozenset(logs - bases),
        emptied_partitions=profile.partitions.union(partitions) if overwrites else frozenset(),
        emptied_patterns=profile.patterns if overwrites else (),
        expected_partitions=pending.expected_partitions | (profile.open_partitions - partitions),
        whole_table=overwrites and operation == _OVERWRITE_TABLE,
    )


def candidate_instants(
    operation: ConcurrentOperation,
    base: Timeline,
    now: Timeline,
    *,
    yields_to_clustering: bool = True,
    live: frozenset[str] = frozenset(),
) -> tuple[Instant, ...]:
    """Return the instants to compare with a write that began on `base` and completes on `now`.

    A write that does not yield to pending clusterings leaves the check to them: their plans do not
    contain what it wrote, so they fail. `live` are the pending instants with a live heartbeat.
    """
    base_writes = {i.requested_at for i in base.completed_writes}
    completed = [i for i in now.completed_writes if i.requested_at not in base_writes]
    # Compactions are compared only where a file of this write could end up below theirs: a base
    # file, or a log file whose completion time was chosen before the plan was made.
    is_below = operation.base_groups or operation.completed_at is not None
    later_actions = (
        (Action.REPLACE_COMMIT, Action.COMPACTION) if is_below else (Action.REPLACE_COMMIT,)
    )
    pending = [i for i in now.pending(*later_actions) if i.requested_at > operation.instant]
    pending += now.pending(Action.CLUSTERING) if yields_to_clustering else ()
    if operation.yields and operation.completed_at is None:
        live_writes = [i for i in now.pending(*WRITE_ACTIONS) if i.requested_at in live]
        pending += [i for i in live_writes if i not in pending]
    return tuple(i for i in (*completed, *pending) if i.requested_at != operation.instant)


def find_conflicts(
    operation: ConcurrentOperation,
    base: Timeline,
    now: Timeline,
    load: Load,
    *,
    non_blocking: bool = False,
    yields_to_clustering: bool = True,
    live: frozenset[str] = frozenset(),
) -> Iterator[Conflict]:
    """Yield the conflicts of a write that began on timeline `base` and completes on `now`.

    `load` returns the operations of the candidate instants; it is called only if there are any.
    """
    others: tuple[Instant, ...] = ()
    if operation.groups:
        others = candidate_instants(
            operation, base, now, yields_to_clustering=yields_to_clustering, live=live
        )
    if not others:
        return
    for instant, other in zip(others, load(others), strict=True):
        if other.cancellable and not instant.is_completed:
            continue
        groups = _conflicting_groups(operation, other, non_blocking=non_blocking)
        if operation.yields and not instant.is_completed:
            # The conflict that the pending write would find if it completed after this one.
            groups |= _conflicting_groups(other, operation, non_blocking=non_blocking)
            groups |= _expected_groups(operation, other)
        if groups:
            yield Conflict(instant, tuple(sorted(groups)), _reason(instant, other))


def _expected_groups(operation: ConcurrentOperation, other: ConcurrentOperation) -> Groups:
    """Return the replaced file groups that a pending write may be about to change."""
    return frozenset(g for g in operation.replaced_groups if g[0] in other.expected_partitions)


def _is_emptied(partition: str, other: ConcurrentOperation) -> bool:
    return partition in other.emptied_partitions or matches_any(partition, other.emptied_patterns)


def _conflicting_groups(
    operation: ConcurrentOperation, other: ConcurrentOperation, *, non_blocking: bool
) -> Groups:
    if operation.yields and other.whole_table:
        return operation.groups
    emptied = frozenset(g for g in operation.groups if _is_emptied(g[0], other))
    if operation.yields and emptied:
        return emptied
    common = operation.groups & other.groups
    if not common:
        return common
    kinds = {operation.kind, other.kind}
    replaced = other.replaced_groups if operation.cancellable else frozenset()
    if OperationKind.COMPACTION in kinds:
        return common & (_hidden_by_compaction(operation, other) | replaced)
    if operation.kind is OperationKind.LOG_COMPACTION:
        touched = (
            other.groups
            if other.kind is operation.kind
            else other.base_groups | _uncompacted_logs(other, operation)
        )
        return common & (touched | replaced)
    if non_blocking and operation.action == other.action == Action.DELTA_COMMIT:
        # Log files of one bucket are merged whichever writer wrote them; of two base files one is
        # hidden. A bucket under two file ids would be two file groups.
        differently_named = {g for g in common if operation.file_ids_of(g) != other.file_ids_of(g)}
        not_buckets = {g for g in common if not _is_bucket(g)}
        return frozenset(not_buckets | differently_named) | (
            operation.base_groups & other.base_groups
        )
    return common


def _hidden_by_compaction(operation: ConcurrentOperation, other: ConcurrentOperation) -> Groups:
    compaction, write = (
        (operation, other) if operation.kind is OperationKind.COMPACTION else (other, operation)
    )
    if write.kind is not OperationKind.WRITE:
        return write.groups
    hidden = write.base_groups if write.instant < compaction.instant else frozenset()
    return hidden | _uncompacted_logs(write, compaction)


def _uncompacted_logs(write: ConcurrentOperation, compaction: ConcurrentOperation) -> Groups:
    """Return the file groups with log files that completed below a compaction and missed its plan.

    The operation of an execution does not know its plan. That is safe: an execution is compared
    only with writes that did not exist when it started, and at that time the plan was verified to
    name every log file that existed.
    """
    if write.completed_at is None or write.completed_at > compaction.instant:
        return frozenset()
    late_logs = write.log_files - compaction.log_files
    files = [(partition, parse_data_file(name)) for partition, name in late_logs]
    return frozenset(_group_key(partition, file.file_id) for partition, file in files if file)


def _reason(instant: Instant, other: ConcurrentOperation) -> str:
    state = "completed" if instant.is_completed else "is pending"
    names = {
        OperationKind.COMPACTION: "a compaction",
        OperationKind.LOG_COMPACTION: "a log compaction",
    }
    name = names.get(other.kind, f"a {instant.action}")
    return f"{name} {state} that touches the same file groups as this write"


def _file_name(stat: WriteStat) -> str:
    return (stat.path or "").rpartition("/")[2]


def _group_key(partition: str, file_id: str) -> Group:
    bucket = _BUCKET.match(file_id)
    return partition, bucket[1] if bucket else file_id


def _is_bucket(group: Group) -> bool:
    return len(group[1]) == 8 and group[1].isdecimal()


# Loading the operations that completed or started while a write was running, as far as the decision
# needs them.


@dataclass(frozen=True, slots=True)
class ConflictChecker:
    """The timeline when a write began, and the table now that the write is about to complete."""

    base: Timeline
    current: Snapshot

    def check_not_rolled_back(self, instant: InstantTime) -> None:
        """Raise ConflictError if this write, or one that it builds upon, was rolled back."""
        restores = self._started_since(Action.RESTORE)
        if restores:
            raise ConflictError(
                "the table was restored to an earlier state during this write",
                instant=instant,
                restore=restores[0].requested_at,
            )
        base_writes = {i.requested_at for i in self.base.completed_writes}
        for rollback in self._started_since(Action.ROLLBACK):
            targets = self._targets(rollback)
            if instant in targets:
                message = "this write was rolled back by another writer"
            elif targets & base_writes:
                message = "a write that this one builds upon was rolled back concurrently"
            else:
                continue
            raise ConflictError(message, instant=instant, rollback=rollback.requested_at)

    def check_base_exists(self, instant: InstantTime) -> None:
        """Raise ConflictError if a write that this one builds upon is no longer committed.

        A writer may roll back its completed write itself, if it had no lock in common with this
        one. Needs the whole timeline: an archived write is older than the first active one.
        """
        base_writes = {i.requested_at for i in self.base.completed_writes}
        missing = sorted(at for at in base_writes if not self.current.timeline.is_committed(at))
        if missing:
            raise ConflictError(
                "a write that this one builds upon no longer exists",
                instant=instant,
                gone=missing,
            )

    def rollbacks_of(self, instant: InstantTime) -> tuple[Instant, ...]:
        """Return the rollbacks of a write that other processes have started since it began."""
        return tuple(i for i in self._started_since(Action.ROLLBACK) if instant in self._targets(i))

    def check_commit(
        self,
        instant: Instant,
        metadata: CommitMetadata,
        *,
        non_blocking: bool,
        yields_to_clustering: bool = True,
        yields_to: frozenset[str] | None = None,
        cancellable: bool = False,
        fails_on_pending: bool = False,
    ) -> None:
        """Raise ConflictError if another write touched the same file groups.

        `instant` is the completed instant if the completed file exists already. A plan also yields
        to the pending writes in `yields_to`, as far as they are known to touch its file groups;
        with `fails_on_pending` it fails for one that has announced none.
        """
        operation = operation_of_commit(instant, metadata)
        self.check_operation(
            instant,
            replace(operation, cancellable=cancellable, yields=yields_to is not None),
            non_blocking=non_blocking,
            yields_to_clustering=yields_to_clustering,
            live=yields_to or frozenset(),
            pending=PendingWrites(expected=cancellable, fails_on_unknown=fails_on_pending),
        )

    def check_operation(
        self,
        instant: Instant,
        operation: ConcurrentOperation,
        *,
        non_blocking: bool,
        yields_to_clustering: bool = True,
        live: frozenset[str] = frozenset(),
        pending: PendingWrites | None = None,
    ) -> None:
        """Raise ConflictError if a concurrent operation conflicts with this write or plan.

        What `pending` writes may change counts if the plan is about to complete: until then they
        may have announced what they change.
        """
        current = self._with_archived()
        conflicts = find_conflicts(
            operation,
            self.base,
            current,
            self._operations_with_plans
            if operation.completed_at is not None
            else partial(self._operations, live=live, pending=pending or PendingWrites()),
            non_blocking=non_blocking,
            yields_to_clustering=yields_to_clustering,
            live=live,
        )
        for conflict in conflicts:
            if not operation.cancellable:
                raise _conflict_error(instant, conflict)
            raise _preempted_error(instant, [conflict, *conflicts])

    def _with_archived(self) -> Timeline:
        """Return the current timeline plus writes pending in `base` that are archived by now.

        A pending write keeps all later instants on the active timeline, but not those that started
        before it: they may have completed and been archived since.
        """
        pending = {i.requested_at for i in self.base.pending() if i.is_write}
        inactive = pending - self.current.timeline.by_time.keys()
        if not inactive:
            return self.current.timeline
        archived = [i for i in self.current.archived if i.requested_at in inactive]
        return Timeline.from_instants([*self.current.timeline, *archived])

    def _started_since(self, action: Action) -> list[Instant]:
        """Return the instants of an action that are new since `base`, or were pending then."""
        completed_before = {i.requested_at for i in self.base.completed(action)}
        instants = [i for i in self.current.timeline if i.action == action]
        return [i for i in instants if i.requested_at not in completed_before]

    def _targets(self, rollback: Instant) -> frozenset[str]:
        """Return the requested times of the instants that a rollback rolls back."""
        plan = self._read(replace(rollback, state=State.REQUESTED, completed_at=None))
        if plan:
            with errors_in_file(rollback.file_name):
                return frozenset({parse_rollback_plan(plan).instant.requested_at})
        content = self._read(rollback) if rollback.is_completed else None
        if not content:
            return frozenset()
        with errors_in_file(rollback.file_name):
            metadata = parse_rollback(content)
        return frozenset(i.requested_at for i in metadata.instants) or frozenset(metadata.commits)

    def _operations(
        self,
        instants: Sequence[Instant],
        *,
        live: frozenset[str] = frozenset(),
        pending: PendingWrites | None = None,
    ) -> list[ConcurrentOperation]:
        completed = [i for i in instants if i.is_completed]
        commits = zip(completed, self._commits(completed), strict=True)
        completed_operations = {
            instant: operation_of_commit(instant, commit) for instant, commit in commits
        }
        return [
            completed_operations.get(i)
            or (
                self._marked_operation(i, pending or PendingWrites())
                if i.requested_at in live
                else self._planned_operation(i)
            )
            for i in instants
        ]

    def _commits(self, completed: Sequence[Instant]) -> Sequence[CommitMetadata]:
        try:
            return self.current.commits(completed)
        except CorruptError as error:
            latest = load_snapshot(self.current.storage)
            existing = {i.requested_at for i in (*latest.timeline, *latest.archived)}
            missing = [i.requested_at for i in completed if i.requested_at not in existing]
            if not missing:
                raise
            raise ConflictError(
                "a completed write was rolled back while this one read it: write again",
                gone=missing,
            ) from error

    def _operations_with_plans(self, instants: Sequence[Instant]) -> list[ConcurrentOperation]:
        """Return the operations; completed compactions with the log files their plans name."""
        operations = self._operations(instants)
        for position, instant in enumerate(instants):
            if instant.is_completed and operations[position].kind is OperationKind.COMPACTION:
                plan = self.current.plan_of(instant.requested_at, Action.COMPACTION)
                if isinstance(plan, CompactionPlan):
                    operations[position] = operation_of_compaction_plan(instant, plan)
        return operations

    def _planned_operation(self, instant: Instant) -> ConcurrentOperation:
        """Return what a pending instant will touch; nothing if it was rolled back just now."""
        requested = replace(instant, state=State.REQUESTED)
        data = self._read(requested)
        if not data:
            return self._pending_operation(instant)
        with errors_in_file(requested.file_name):
            if instant.action == Action.COMPACTION:
                return operation_of_compaction_plan(instant, parse_compaction_plan(data))
            plan = parse_requested_replace(data).plan
        return (
            operation_of_clustering_plan(instant, plan)
            if plan
            else self._pending_operation(instant)
        )

    def _marked_operation(self, instant: Instant, writes: PendingWrites) -> ConcurrentOperation:
        """Return what a pending write is known to touch, which may be less than it will touch."""
        files: tuple[str, ...] = ()
        operation = None
        # Best effort: a damaged or half-written file of another writer is no error of this one.
        with suppress(CorruptError, UnsupportedError):
            files = marked_files(self.current.storage, instant.requested_at)
            data = self._read(replace(instant, state=State.REQUESTED))
            operation = parse_requested_replace(data).operation if data else None
        metadata = self._inflight_metadata(instant)
        pending = _pending_operation(instant, metadata)
        profile = workload_profile(metadata) if writes.expected else NO_PROFILE
        announced = files or pending.groups or pending.only_inserts
        if not announced and writes.fails_on_unknown:
            pending = replace(pending, whole_table=True)
        elif not announced and writes.expected and not profile.is_known:
            pending = replace(pending, expected_partitions=self._recent_partitions())
        marked = with_marker_files(pending, files, operation, profile)
        return replace(marked, whole_table=marked.whole_table or pending.whole_table)

    def _recent_partitions(self) -> frozenset[str]:
        """Return the partitions of the last writes: where the next one is expected."""
        writes = sorted(
            self.current.timeline.completed(*_ROW_WRITES), key=lambda i: i.completed_at or ""
        )
        commits = self._commits(writes[-_RECENT_WRITES:])
        written = [c for c in commits if (c.operation or "").upper() not in SERVICE_OPERATIONS]
        return frozenset(partition for commit in written for partition in commit.stats)

    def _pending_operation(self, instant: Instant) -> ConcurrentOperation:
        return _pending_operation(instant, self._inflight_metadata(instant))

    def _inflight_metadata(self, instant: Instant) -> CommitMetadata | None:
        data = self._read(instant) if instant.state is State.INFLIGHT else None
        if not data:
            return None
        with errors_in_file(instant.file_name):
            return parse_commit(data)

    def _read(self, instant: Instant) -> bytes | None:
        path = self.current.timeline_path(instant)
        return read_optional(self.current.storage, path)


def _pending_operation(instant: Instant, metadata: CommitMetadata | None) -> ConcurrentOperation:
    if metadata is None:
        return ConcurrentOperation(instant.requested_at, instant.completed_action)
    only_inserts = changes_no_group(metadata)
    return replace(operation_of_commit(instant, metadata), only_inserts=only_inserts)


def max_timeline_time(timeline: Iterable[Instant]) -> str:
    """Return the greatest requested or completion time on the timeline; empty if there is none."""
    return max(
        (time for i in timeline for time in (i.requested_at, i.completed_at or "")), default=""
    )


def _preempted_error(instant: Instant, conflicts: Sequence[Conflict]) -> PreemptedError:
    groups = {group for conflict in conflicts for group in conflict.groups}
    return PreemptedError(
        conflicts[0].reason,
        instant=instant.requested_at,
        other=conflicts[0].instant.file_name,
        groups=tuple(sorted(groups)),
    )


def without_groups(plan: Plan, groups: Groups) -> Plan | None:
    """Return a plan without some file groups; None if nothing worth executing is left of it.

    One file slice of several that were to be clustered together is left as it is.
    """
    if isinstance(plan, CompactionPlan):
        operations = tuple(
            o for o in plan.operations if _group_key(o.partition, o.file_id) not in groups
        )
        return replace(plan, operations=operations) if operations else None
    kept = []
    for group in plan.groups:
        slices = tuple(s for s in group.slices if _group_key(s.partition, s.file_id) not in groups)
        if len(slices) == len(group.slices) or len(slices) > 1:
            kept.append(replace(group, slices=slices))
    return replace(plan, groups=tuple(kept)) if kept else None


def touches_groups(metadata: CommitMetadata, groups: Groups) -> bool:
    """Whether a commit, or a part of one, writes or replaces one of some file groups."""
    return any(_group_key(*group) in groups for group in metadata.file_groups())


def _conflict_error(instant: Instant, conflict: Conflict) -> ConflictError:
    return ConflictError(
        conflict.reason,
        instant=instant.requested_at,
        other=conflict.instant.file_name,
        groups=conflict.groups,
    )
