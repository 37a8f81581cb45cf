"""Plans of actions, which are written to the timeline before execution; and `Skip`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lakewright.model.instant import InstantTime

# Extra metadata of a cancellable plan, which writers may roll back instead of waiting for it; also
# the option that requests such plans. Hudi reads a cancellable plan like any other.
CANCELLABLE = "hoodie.table.service.plan.cancellable"
# Extra metadata: the time at which the plan was made, if its instant is earlier.
PLANNED_AT = "lakewright.planned.at"
# Extra metadata of a compaction: its event-time threshold, and whether it splits exactly there and
# leaves newer rows in log files.
EVENT_TIME_THRESHOLD = "lakewright.event.time.threshold"
# The same in milliseconds, with an exact split, or if the instant is of a local time that daylight
# saving repeats.
EVENT_TIME_THRESHOLD_MS = "lakewright.event.time.threshold.ms"
EXACT_SPLIT = "lakewright.event.time.exact.split"
# Of the commit of an exact split: how many rows it took out of base files.
WITHDRAWN = "lakewright.event.time.withdrawn"
# Extra metadata: why the plan had to include more than was requested.
WIDENED = "lakewright.event.time.widened"
# Extra metadata: the service that executes the plan, if the action alone does not identify it.
SERVICE_KEY = "lakewright.service"
# Extra metadata: the missing partitions by the reason why planning skipped them, as JSON.
MISSING_REASONS = "lakewright.missing.reasons"
# Extra metadata: the latest partitions of the table and the filters that ranked them, as JSON.
LATEST_PARTITIONS = "lakewright.latest.partitions"
# Extra metadata of a clustering: which files were small enough for it, as JSON.
CANDIDATE_LIMITS = "lakewright.clustering.candidates"
# Extra metadata of a commit: the partitions in which writers have preempted cancellable plans, with
# how often in a row, as JSON.
PREEMPTED = "lakewright.preempted"
# Extra metadata: a plan that would be cancellable, but was preempted too often.
ESCALATED = "lakewright.plan.escalated"


@dataclass(frozen=True, slots=True)
class Skip:
    """The decision to plan nothing, and why; false in a boolean context.

    `kind` is a label for metrics; empty if there is none. `skipped` are the partitions that a run
    would have changed and that others hold, with the reason for each.
    """

    reason: str
    kind: str = field(default="", compare=False, repr=False)
    skipped: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)

    def __bool__(self) -> bool:
        """Return False: nothing is planned."""
        return False

    def __str__(self) -> str:
        """Return the reason."""
        return self.reason


@dataclass(frozen=True, slots=True)
class InstantRef:
    """A reference to an instant in a plan or in metadata, by requested time and action."""

    requested_at: InstantTime
    action: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionOperation:
    """One file group to compact: its base file, if any, and its log files.

    `base_file` and `logs` are file names. `next_base_instant` is the instant of the new base file
    if it is not the plan's own instant; None for an ordinary compaction.
    """

    partition: str
    file_id: str
    base_instant: InstantTime
    logs: tuple[str, ...] = ()
    base_file: str | None = None
    metrics: Mapping[str, float] = field(default_factory=dict, hash=False)
    bootstrap_file: str | None = None
    next_base_instant: InstantTime | None = None


class _RewritePlan:
    """Common properties of the plans that rewrite file groups: compaction and clustering."""

    __slots__ = ()
    operations: Any
    extra: Mapping[str, str]

    @property
    def partitions(self) -> tuple[str, ...]:
        """The partitions that the plan rewrites, sorted."""
        return tuple(sorted({operation.partition for operation in self.operations}))

    @property
    def file_groups(self) -> frozenset[tuple[str, str]]:
        """The (partition, file id) pairs that the plan rewrites."""
        return frozenset((operation.partition, operation.file_id) for operation in self.operations)

    def planned_at(self, instant: InstantTime) -> str:
        """Return when the plan of an instant was made; it considers what had completed by then."""
        return self.extra.get(PLANNED_AT, instant)

    @property
    def cancellable(self) -> bool:
        """Whether writers may roll back the plan; a failed execution rolls it back as well."""
        return self.extra.get(CANCELLABLE, "").strip().lower() == "true"

    @property
    def missing_reasons(self) -> dict[str, str]:
        """The reason for each missing partition; empty in plans of other writers."""
        return parse_reasons(self.extra)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionStrategy:
    """How a compaction is executed; plans of log compactions name their executor class here."""

    class_name: str | None = None
    params: Mapping[str, str] = field(default_factory=dict, hash=False)
    version: int | None = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionPlan(_RewritePlan):
    """The file groups that a compaction or log compaction will rewrite.

    `missing_partitions` are those that the next incremental planning must consider again; None if
    planning was not incremental.
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
        """The name of the base file; None if the slice has only log files."""
        return _file_name(self.base_path) if self.base_path else None

    @property
    def logs(self) -> tuple[str, ...]:
        """The names of the log files."""
        return tuple(_file_name(path) for path in self.log_paths)

    @property
    def next_base_instant(self) -> None:
        """None: a clustering always writes files of its own instant."""
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusteringGroup:
    """Slices that are clustered together into about `output_groups` new file groups."""

    slices: tuple[ClusteringSlice, ...] = ()
    metrics: Mapping[str, float] = field(default_factory=dict, hash=False)
    output_groups: int | None = 1
    extra: Mapping[str, str] = field(default_factory=dict, hash=False)
    version: int | None = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusteringStrategy:
    """How a clustering is executed: Hudi's name of the class, and its parameters."""

    class_name: str | None = None
    params: Mapping[str, str] = field(default_factory=dict, hash=False)
    version: int | None = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusteringPlan(_RewritePlan):
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
    """The content of a requested replacecommit or clustering; only a clustering has a plan."""

    operation: str | None = None
    plan: ClusteringPlan | None = None
    extra: Mapping[str, str] = field(default_factory=dict, hash=False)
    version: int | None = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RetainedInstant:
    """The earliest instant that a clean retains; `state` is in upper case, as in the format."""

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

    `bare_files` holds the file names of plans before version 2; it is empty in new plans.
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
    """What causes the rollback of a cancellable plan, and why."""

    by: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RollbackRequest:
    """Files to delete in one partition, by absolute path.

    `log_blocks` is used by tables before version 8, where a rollback appends to log files.
    """

    partition: str
    file_id: str | None = None
    latest_base_instant: str | None = None
    files: tuple[str, ...] = ()
    log_blocks: Mapping[str, int] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class RollbackPlan:
    """The instant to roll back, and its files to delete.

    `caused_by` and `reason` say what caused the rollback of a cancellable plan, and why.
    """

    instant: InstantRef
    requests: tuple[RollbackRequest, ...] = ()
    version: int | None = 1
    caused_by: str | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RestorePlan:
    """The instants to roll back, newest first, and the savepoint that is restored."""

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
    """The partitions of the metadata table that an indexing action will build."""

    partitions: tuple[IndexPartition, ...] = ()
    version: int | None = 1


def parse_reasons(extra: Mapping[str, str]) -> dict[str, str]:
    """Return the reason for each skipped partition, from the extra metadata of a plan or commit."""
    try:
        partitions_by_reason = json.loads(extra.get(MISSING_REASONS, "{}"))
        return {
            partition: reason
            for reason, paths in partitions_by_reason.items()
            for partition in paths
        }
    except (ValueError, AttributeError, TypeError, RecursionError):
        return {}


def _file_name(path: str) -> str:
    return path.rpartition("/")[2]
