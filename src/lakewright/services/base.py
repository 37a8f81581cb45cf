"""The interface of table services, and how their plans are stored on the timeline.

A table service is one subclass of `TableService`: a name, a method that plans and a method that
executes a plan. `runner.py` does the rest for all services: scheduling, locks and heartbeats,
execution attempts and their rollback, options and results.
"""

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
    """Serializes the plans, or the results, of an action to bytes and parses them back."""

    format: Callable[[Any], bytes]
    parse: Callable[[bytes], Any]


def _format_clustering(plan: ClusteringPlan) -> bytes:
    return format_requested_replace(RequestedReplace(operation="CLUSTER", plan=plan))


def _parse_clustering(data: bytes) -> ClusteringPlan:
    plan = parse_requested_replace(data).plan
    if plan is None:
        raise CorruptError("a clustering has no plan")
    return plan


_COMPACTION_CODEC = PlanCodec(format_compaction_plan, parse_compaction_plan)
_PLAN_CODECS = {
    Action.COMPACTION: _COMPACTION_CODEC,
    Action.LOG_COMPACTION: _COMPACTION_CODEC,
    Action.CLUSTERING: PlanCodec(_format_clustering, _parse_clustering),
    Action.CLEAN: PlanCodec(format_clean_plan, parse_clean_plan),
}
METADATA_ONLY_RESULTS = {Action.CLEAN: PlanCodec(format_clean, parse_clean)}


def plan_codec(action: Action) -> PlanCodec:
    """Return the codec for plans of an action; InvalidError if no service can have the action."""
    if action not in _PLAN_CODECS:
        raise InvalidError("no service can have this action", action=action, known=[*_PLAN_CODECS])
    return _PLAN_CODECS[action]


def with_service_metadata(
    plan: Any, name: str, action: Action, *, cancellable: bool = False
) -> Any:
    """Return the plan with the name of its service, unless that is the name of the action.

    A cancellable plan that rewrites file groups is marked as cancellable as well.
    """
    added = {} if name == action else {SERVICE_KEY: name}
    if cancellable and action.is_rewrite:
        added[CANCELLABLE] = "true"
    return replace(plan, extra={**plan.extra, **added}) if added else plan


PlanT = TypeVar("PlanT")
ResultT = TypeVar("ResultT")


class ConcurrentWriteError(ConflictError):
    """A concurrent write affects an execution: the plan has to be executed again."""


@dataclass(frozen=True)
class PlanningContext:
    """What planning reads; planning changes neither this nor the table.

    Attributes:
        snapshot: The table that the plan is made for.
        instant: The time that the plan will have on the timeline. Only writes that completed before
            it count.
        now_ms: The same moment by the clock, in milliseconds since 1970.
        options: The options of the run.
    """

    snapshot: Snapshot
    instant: InstantTime
    now_ms: int
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ExecutionContext:
    """What the execution of a plan works with.

    Attributes:
        snapshot: The table when the execution started.
        instant: The instant of the plan.
        options: The options of the run.
        engine: Reads, transforms and writes rows.
        writer: The storage, the clock and the concurrency settings of this process.
        attempt: The execution attempt, where the result is a commit: its number is part of the
            names of the data files. None otherwise.
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
    """One kind of table maintenance; subclass it to add a service, and `register` an instance.

    Attributes:
        name: The name of the service, as in `table.run(name)`.
        action: The timeline action of its plans, or None for a service without plans on the
            timeline. It determines the types of plan and result: `CompactionPlan` and
            `CommitMetadata` for `COMPACTION` and `LOG_COMPACTION`, `ClusteringPlan` and
            `CommitMetadata` for `CLUSTERING`, `CleanPlan` and `CleanMetadata` for `CLEAN`.
        writes: For a service without an action: whether `execute` is an ordinary write, which
            acquires the table's lock itself. The runner plans again if it meets a conflict. A
            service without an action that does not write is planned and executed under one lock,
            and then does without the lock what remains (`finish`).
        has_pre_plan: Whether the service implements `pre_plan`.
        keys: The keys of the options that the service reads.
    """

    name: ClassVar[str]
    action: ClassVar[Action | None]
    writes: ClassVar[bool] = False
    has_pre_plan: ClassVar[bool] = False
    keys: ClassVar[frozenset[str]] = frozenset()

    def pre_plan(self, writer: TransactionManager, snapshot: Snapshot) -> Skip | None:
        """Do what has to precede planning, whether a plan is due or not.

        The caller does not hold the table's lock.

        Args:
            writer: Acquires locks and begins transactions.
            snapshot: The table; it may have changed since.

        Returns:
            A description of what was done, or None if nothing was.
        """
        return None

    def check_trigger(self, context: PlanningContext) -> Skip | None:
        """Check whether a plan is due, by the timeline and the options alone.

        It runs after every write, so it should not read anything else from storage. A service that
        rewrites file groups is planned without it if a user asks for that: a trigger is for the
        services that follow writes, and for loops.

        Args:
            context: The table and the options.

        Returns:
            Why no plan is due, or None if `plan` is to be called.

        Raises:
            InvalidError: The service cannot run with these options, or on this table.
        """
        return None

    @abstractmethod
    def plan(self, context: PlanningContext) -> PlanT | Skip:
        """Plan what to do; reads the table and changes nothing.

        The caller usually holds the table's lock.

        Args:
            context: The table and the options.

        Returns:
            The plan, or why there is nothing to do.

        Raises:
            InvalidError: The service cannot run with these options, or on this table.
        """

    def runs_after(self, name: str, context: PlanningContext) -> bool:
        """Whether to run this service each time that another one has completed.

        Args:
            name: The name of the service that has completed.
            context: The table and the options.

        Returns:
            Whether the runner runs this service now.
        """
        return False

    def plan_instant(self, plan: PlanT, instant: InstantTime) -> str:
        """Return the instant at which to schedule a plan, by default the one it was made for.

        Args:
            plan: The plan.
            instant: The instant of the planning context.

        Returns:
            The requested time of the plan.
        """
        return instant

    def verify(self, context: ExecutionContext, result: ResultT, current: Snapshot) -> None:
        """Check, under the table's lock, that a result may still be committed.

        Args:
            context: What the plan was executed with.
            result: What `execute` returned.
            current: The table now.

        Raises:
            ConflictError: A concurrent operation has made the result invalid.
            ConcurrentWriteError: The same, and the plan can be executed again at once.
        """

    def finish(self, context: ExecutionContext) -> None:
        """Do what remains after `execute`, without the table's lock.

        Only for a service without an action that does not write. A process may crash before this
        is done: the next run of the service does it then.

        Args:
            context: What the plan was executed with.
        """

    @abstractmethod
    def execute(self, context: ExecutionContext, plan: PlanT) -> ResultT:
        """Execute a plan, possibly one that another process has scheduled.

        It may be called again for the same plan after a failed attempt, whose files have been
        rolled back by then.

        Args:
            context: The table, the options and the engine.
            plan: What `plan` returned, or what was read from the timeline.

        Returns:
            The result to store when the instant completes. For a service without an action:
            the commit, or a Skip.

        Raises:
            ConflictError: The table no longer matches the plan.
        """


AnyTableService = TableService[Any, Any]
