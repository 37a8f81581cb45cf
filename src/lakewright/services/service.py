"""What a table service is: a name, a plan, and a run that obeys it.

A service is one class. Scheduling, the timeline, locks and heartbeats, rolling back a failed
attempt, options and results come from `runner.py`, the same for all of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import pyarrow as pa

from lakewright.clock import Clock
from lakewright.core.plans import Skip
from lakewright.errors import ConflictError
from lakewright.read.plan import ReadPlan
from lakewright.storage.base import Storage
from lakewright.table.equipment import Equipment
from lakewright.table.execution import Attempt
from lakewright.table.snapshot import Snapshot
from lakewright.table.transaction import Writer
from lakewright.write.commit import IncomingRows
from lakewright.write.task import Token

Item = TypeVar("Item")
Answer = TypeVar("Answer")
PlanT = TypeVar("PlanT")
ResultT = TypeVar("ResultT")


class WrittenMeanwhileError(ConflictError):
    """An execution has to look at what was written meanwhile: it is to be done once more."""


@dataclass(frozen=True)
class Sight:
    """The table as planning sees it; nothing in here changes, and planning changes nothing.

    `instant` is the time that the plan will have on the timeline: writes that completed before it
    count, and no others. `now_ms` is the same moment by the clock.
    """

    snapshot: Snapshot
    instant: str
    now_ms: int
    options: Mapping[str, str] = field(default_factory=dict)


class Hands(Protocol):
    """Where the work of a service is done: on Spark's workers, or here in a plain loop."""

    def work(
        self,
        do: Callable[[Item, Token], Answer],
        items: Sequence[Item],
        size: Callable[[Item], int],
    ) -> list[Answer]:
        """Let workers do something with each item, large ones apart; answers in any order.

        `do` and the items travel to other processes: a function of a module, or a `partial` of one.
        """
        ...

    def rows(
        self,
        storage: Storage,
        plan: ReadPlan,
        pick: Callable[[pa.RecordBatch], pa.RecordBatch],
        schema: pa.Schema,
    ) -> IncomingRows:
        """What `pick` leaves of the rows of a query, with columns of `schema`, to be written."""
        ...


@dataclass(frozen=True)
class Job:
    """What executing a plan works with; `snapshot` is the table when the execution began.

    `attempt` is set where the result is a commit: the names of its files tell of it.
    """

    snapshot: Snapshot
    instant: str
    options: Mapping[str, str]
    hands: Hands
    equipment: Equipment
    attempt: Attempt | None = None

    @property
    def clock(self) -> Clock:
        """The clock of this process."""
        return self.equipment.clock


class Service(ABC, Generic[PlanT, ResultT]):
    """One kind of maintenance.

    - `name` is what people call it; `keys` are the options it reads.
    - `action` is what its plan is called on the timeline, which decides about the kinds of plan and
      result: `compaction` and `logcompaction` have a `CompactionPlan` and `CommitMetadata`,
      `clustering` a `ClusteringPlan` and `CommitMetadata`, `clean` a `CleanPlan` and
      `CleanMetadata`. Empty for a service that leaves no trace there.
    - `writes` is for a service without an action whose `run` is an ordinary write: it takes the
      table's lock itself, and what it plans is planned anew if somebody else was faster.
    - `prepares` is for a service that has something to do whether a plan is due or not.
    """

    name: ClassVar[str]
    action: ClassVar[str]
    writes: ClassVar[bool] = False
    prepares: ClassVar[bool] = False
    keys: ClassVar[frozenset[str]] = frozenset()

    def prepare(self, writer: Writer, seen: Snapshot) -> Skip | None:
        """Do what comes before a plan, and tell it if that was anything; nobody holds the lock."""
        return None

    def due(self, sight: Sight) -> Skip | None:
        """Why nothing can be due, if timeline and options alone tell that; reads nothing else."""
        return None

    @abstractmethod
    def plan(self, sight: Sight) -> PlanT | Skip:
        """What is to be done, or why nothing is; reads the table and changes nothing."""

    def follows(self, name: str, sight: Sight) -> bool:
        """Whether the service is to run each time that another one has completed."""
        return False

    def place(self, plan: PlanT, instant: str) -> str:
        """The instant at which a plan stands on the timeline; the one it was made for."""
        return instant

    def verify(self, job: Job, result: ResultT, now: Snapshot) -> None:
        """Raise ConflictError if a result must not complete on the table as it is by then."""

    @abstractmethod
    def run(self, job: Job, plan: PlanT) -> ResultT:
        """Do it; may be called again after a failure, on the table as it was before."""


AnyService = Service[Any, Any]
