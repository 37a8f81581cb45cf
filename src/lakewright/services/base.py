"""How plans and results of each action stand on the timeline."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Generic, TypeVar

from lakewright.clock import Clock
from lakewright.engine.base import Engine
from lakewright.errors import ConflictError, CorruptError, InvalidError
from lakewright.format.timeline_metadata import (
    format_clean,
    format_clean_plan,
    format_compaction_plan,
    format_requested_replace,
    parse_clean,
    parse_clean_plan,
    parse_compaction_plan,
    parse_requested_replace,
)
from lakewright.model.instant import Action, InstantTime
from lakewright.model.plans import CANCELLABLE, SERVICE_KEY, ClusteringPlan, RequestedReplace, Skip
from lakewright.table.plan_execution import ExecutionAttempt
from lakewright.table.snapshot import Snapshot
from lakewright.table.transaction import TransactionManager, WriterContext


@dataclass(frozen=True, slots=True)
class PlanCodec:
    """A plan to the bytes of its requested file, and back."""

    format: Callable[[Any], bytes]
    parse: Callable[[bytes], Any]


def _format_clustering(plan: ClusteringPlan) -> bytes:
    return format_requested_replace(RequestedReplace(operation="CLUSTER", plan=plan))


def _parse_clustering(data: bytes) -> ClusteringPlan:
    plan = parse_requested_replace(data).plan
    if plan is None:
        raise CorruptError("a clustering has no plan")
    return plan


_COMPACTION = PlanCodec(format_compaction_plan, parse_compaction_plan)
_PLANS = {
    Action.COMPACTION: _COMPACTION,
    Action.LOG_COMPACTION: _COMPACTION,
    Action.CLUSTERING: PlanCodec(_format_clustering, _parse_clustering),
    Action.CLEAN: PlanCodec(format_clean_plan, parse_clean_plan),
}
METADATA_ONLY_RESULTS = {Action.CLEAN: PlanCodec(format_clean, parse_clean)}


def plan_codec(action: Action) -> PlanCodec:
    """How plans of an action are written."""
    if action not in _PLANS:
        raise InvalidError("no service can have this action", action=action, known=[*_PLANS])
    return _PLANS[action]


def with_service_metadata(
    plan: Any, name: str, action: Action, *, cancellable: bool = False
) -> Any:
    """The plan with the name of its service, where that is another than its action.

    And with the mark of those that others need not wait for, if it is such a plan.
    """
    added = {} if name == action else {SERVICE_KEY: name}
    if cancellable and action.is_rewrite:
        added[CANCELLABLE] = "true"
    return replace(plan, extra={**plan.extra, **added}) if added else plan


# ------------------------------------------------------------------------------------------------
# What a table service is: a name, a plan, and a run that obeys it.
#
# A service is one class. Scheduling, the timeline, locks and heartbeats, rolling back a failed
# attempt, options and results come from `runner.py`, the same for all of them.


PlanT = TypeVar("PlanT")
ResultT = TypeVar("ResultT")


class ConcurrentWriteError(ConflictError):
    """An execution has to look at what was written meanwhile: it is to be done once more."""


@dataclass(frozen=True)
class PlanningContext:
    """The table as planning sees it; nothing in here changes, and planning changes nothing.

    `instant` is the time that the plan will have on the timeline: writes that completed before it
    count, and no others. `now_ms` is the same moment by the clock.
    """

    snapshot: Snapshot
    instant: InstantTime
    now_ms: int
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ExecutionContext:
    """What executing a plan works with; `snapshot` is the table when the execution began.

    `attempt` is set where the result is a commit: the names of its files tell of it.
    """

    snapshot: Snapshot
    instant: InstantTime
    options: Mapping[str, str]
    engine: Engine
    writer: WriterContext
    attempt: ExecutionAttempt | None = None

    @property
    def clock(self) -> Clock:
        """The clock of this process."""
        return self.writer.clock


class TableService(ABC, Generic[PlanT, ResultT]):
    """One kind of maintenance.

    - `name` is what people call it; `keys` are the options it reads.
    - `action` is what its plan is called on the timeline, which decides about the kinds of plan and
      result: `compaction` and `logcompaction` have a `CompactionPlan` and `CommitMetadata`,
      `clustering` a `ClusteringPlan` and `CommitMetadata`, `clean` a `CleanPlan` and
      `CleanMetadata`. Empty for a service that leaves no trace there.
    - `writes` is for a service without an action whose `execute` is an ordinary write: it takes the
      table's lock itself, and what it plans is planned anew if somebody else was faster.
    - `has_pre_plan` is for a service that has something to do whether a plan is due or not.
    """

    name: ClassVar[str]
    action: ClassVar[Action | None]
    writes: ClassVar[bool] = False
    has_pre_plan: ClassVar[bool] = False
    keys: ClassVar[frozenset[str]] = frozenset()

    def pre_plan(self, writer: TransactionManager, seen: Snapshot) -> Skip | None:
        """Do what comes before a plan, and tell it if that was anything; nobody holds the lock."""
        return None

    def check_trigger(self, sight: PlanningContext) -> Skip | None:
        """Why nothing can be due, if timeline and options alone tell that; reads nothing else."""
        return None

    @abstractmethod
    def plan(self, sight: PlanningContext) -> PlanT | Skip:
        """What is to be done, or why nothing is; reads the table and changes nothing."""

    def runs_after(self, name: str, sight: PlanningContext) -> bool:
        """Whether the service is to run each time that another one has completed."""
        return False

    def plan_instant(self, plan: PlanT, instant: InstantTime) -> str:
        """The instant at which a plan stands on the timeline; the one it was made for."""
        return instant

    def verify(self, job: ExecutionContext, result: ResultT, now: Snapshot) -> None:
        """Raise ConflictError if a result must not complete on the table as it is by then."""

    @abstractmethod
    def execute(self, job: ExecutionContext, plan: PlanT) -> ResultT:
        """Do it; may be called again after a failure, on the table as it was before."""


AnyTableService = TableService[Any, Any]
