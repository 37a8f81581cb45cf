"""What an action intends to do, written to the timeline before it starts; or `Skip`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lakewright.model.instant import InstantTime

# The mark of a plan that others need not wait for and may take back, and the option that asks for
# it: real Hudi reads such a plan as any other.
CANCELLABLE = "hoodie.table.service.plan.cancellable"
# Where a plan keeps the time at which it was made, if its own instant lies before that.
PLANNED_AT = "lakewright.planned.at"
# Where a compaction keeps up to which event time it goes, and whether it leaves newer rows out.
EVENT_TIME_THRESHOLD = "lakewright.event.time.threshold"
EXACT_SPLIT = "lakewright.event.time.exact.split"
# Where a plan that had to take more than it was asked for tells why.
WIDENED = "lakewright.event.time.widened"
# Names the service in a plan, where the action alone does not tell who is to execute it.
SERVICE_KEY = "lakewright.service"
# Where a plan keeps, as JSON, which partitions it left for which reason.
MISSING_REASONS = "lakewright.missing.reasons"


@dataclass(frozen=True, slots=True)
class Skip:
    """The decision to do nothing, and why; false in a condition.

    `kind` is a word for those that count decisions, where somebody knows one.
    """

    reason: str
    kind: str = field(default="", compare=False, repr=False)

    def __bool__(self) -> bool:
        """Nothing is planned."""
        return False

    def __str__(self) -> str:
        """The reason, ready to be shown."""
        return self.reason


@dataclass(frozen=True, slots=True)
class InstantRef:
    """An instant that a plan or its outcome speaks of, by requested time and action."""

    requested_at: InstantTime
    action: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionOperation:
    """One file group to compact: its base file, if any, and the log files to fold in.

    `base_file` and `logs` are bare file names. `next_base_instant` is the instant that the new
    base file will carry when it is not simply that of the plan's own timeline file; None for an
    ordinary compaction.
    """

    partition: str
    file_id: str
    base_instant: InstantTime
    logs: tuple[str, ...] = ()
    base_file: str | None = None
    metrics: Mapping[str, float] = field(default_factory=dict, hash=False)
    bootstrap_file: str | None = None
    next_base_instant: InstantTime | None = None


class _Rewriting:
    """What plans that rewrite file groups have in common; both kinds list `operations`."""

    __slots__ = ()
    operations: Any
    extra: Mapping[str, str]

    @property
    def partitions(self) -> tuple[str, ...]:
        """The partitions that the plan touches, sorted."""
        return tuple(sorted({operation.partition for operation in self.operations}))

    @property
    def file_groups(self) -> frozenset[tuple[str, str]]:
        """The (partition, file id) pairs that the plan rewrites."""
        return frozenset((each.partition, each.file_id) for each in self.operations)

    def planned_at(self, instant: InstantTime) -> str:
        """When the plan of an instant was made: what had completed by then is known to it."""
        return self.extra.get(PLANNED_AT, instant)

    @property
    def cancellable(self) -> bool:
        """Whether others need not wait for the plan: it goes when an execution of it fails."""
        return self.extra.get(CANCELLABLE, "").strip().lower() == "true"

    @property
    def missing_reasons(self) -> dict[str, str]:
        """Why each missing partition was left; plans of other writers do not tell."""
        return parse_reasons(self.extra)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionStrategy:
    """How a compaction is to be executed; log compactions name their executor here."""

    class_name: str | None = None
    params: Mapping[str, str] = field(default_factory=dict, hash=False)
    version: int | None = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionPlan(_Rewriting):
    """The file groups that a compaction or log compaction will rewrite.

    `missing_partitions` are those that incremental planning has to look at again next time;
    None where planning was not incremental.
    """

    operations: tuple[CompactionOperation, ...] = ()
    extra: Mapping[str, str] = field(default_factory=dict, hash=False)
    version: int | None = 2
    strategy: CompactionStrategy | None = None
    preserve_metadata: bool = False
    missing_partitions: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusteringSlice:
    """One file slice to cluster; `base_path` and `log_paths` are absolute, as on the timeline."""

    partition: str
    file_id: str
    base_path: str | None = None
    log_paths: tuple[str, ...] = ()
    bootstrap_path: str | None = None
    version: int | None = 1

    @property
    def base_file(self) -> str | None:
        """The bare name of the base file; None if the slice has only logs."""
        return _file_name(self.base_path) if self.base_path else None

    @property
    def logs(self) -> tuple[str, ...]:
        """The bare names of the log files."""
        return tuple(_file_name(path) for path in self.log_paths)

    @property
    def next_base_instant(self) -> None:
        """Clustering always writes at its own instant."""
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusteringGroup:
    """Slices that are clustered together, into about `output_groups` new file groups."""

    slices: tuple[ClusteringSlice, ...] = ()
    metrics: Mapping[str, float] = field(default_factory=dict, hash=False)
    output_groups: int | None = 1
    extra: Mapping[str, str] = field(default_factory=dict, hash=False)
    version: int | None = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusteringStrategy:
    """How the clustering is to be executed: the class by Hudi's name, and its parameters."""

    class_name: str | None = None
    params: Mapping[str, str] = field(default_factory=dict, hash=False)
    version: int | None = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusteringPlan(_Rewriting):
    """The groups of file slices that a clustering will rewrite; see `CompactionPlan`."""

    groups: tuple[ClusteringGroup, ...] = ()
    strategy: ClusteringStrategy | None = None
    extra: Mapping[str, str] = field(default_factory=dict, hash=False)
    version: int | None = 1
    preserve_metadata: bool = True
    missing_partitions: tuple[str, ...] | None = None

    @property
    def operations(self) -> tuple[ClusteringSlice, ...]:
        """The slices of all groups."""
        return tuple(slice_ for group in self.groups for slice_ in group.slices)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedReplace:
    """What a replacecommit or clustering is about to do; only a clustering has a plan."""

    operation: str | None = None
    plan: ClusteringPlan | None = None
    extra: Mapping[str, str] = field(default_factory=dict, hash=False)
    version: int | None = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RetainedInstant:
    """The earliest instant that a clean keeps readable; `state` is the format's upper-case word."""

    requested_at: InstantTime
    action: str
    state: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanFile:
    """One file to delete, by absolute path."""

    path: str
    is_bootstrap: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanPlan:
    """The files and whole partitions that a clean will delete.

    `bare_files` is where plans before version 2 listed bare file names; it is empty in new plans.
    """

    policy: str
    earliest_to_retain: RetainedInstant | None = None
    last_completed: str = ""
    files: Mapping[str, tuple[CleanFile, ...]] = field(default_factory=dict, hash=False)
    deleted_partitions: tuple[str, ...] = ()
    extra: Mapping[str, str] = field(default_factory=dict, hash=False)
    version: int | None = 2
    bare_files: Mapping[str, tuple[str, ...]] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True)
class RollbackCause:
    """By what a cancellable plan is taken back, and why."""

    by: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RollbackRequest:
    """Files to delete in one partition, by absolute path.

    `log_blocks` belongs to tables before version 8, where a rollback appended to log files.
    """

    partition: str
    file_id: str | None = None
    latest_base_instant: str | None = None
    files: tuple[str, ...] = ()
    log_blocks: Mapping[str, int] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class RollbackPlan:
    """The instant to take back, and the files that it left.

    `caused_by` and `reason` tell by what a cancellable plan was taken back, and why.
    """

    instant: InstantRef
    requests: tuple[RollbackRequest, ...] = ()
    version: int | None = 1
    caused_by: str | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RestorePlan:
    """The instants to take back, newest first, and the savepoint that is restored."""

    instants: tuple[InstantRef, ...] = ()
    version: int | None = 2
    savepoint: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexPartition:
    """A partition of the metadata table, and the instant up to which it indexes the table."""

    path: str | None = None
    up_to_instant: str | None = None
    extra: Mapping[str, str] = field(default_factory=dict, hash=False)
    version: int | None = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexPlan:
    """The metadata partitions that an indexing action will build."""

    partitions: tuple[IndexPartition, ...] = ()
    version: int | None = 1


def parse_reasons(extra: Mapping[str, str]) -> dict[str, str]:
    """Why each partition was left, by what is stored with a plan or its outcome."""
    try:
        stored = json.loads(extra.get(MISSING_REASONS, "{}"))
        return {partition: reason for reason, paths in stored.items() for partition in paths}
    except (ValueError, AttributeError, TypeError, RecursionError):
        return {}


def _file_name(path: str) -> str:
    return path.rpartition("/")[2]
