"""Which partitions planning has to look at: the one place that finds them for all services.

The window is [requested time of the last completed service of the kind, instant of this plan), over
the completion times of writes. The partitions written in it, together with those that the last plan
could not schedule, are all that may have become due since.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from lakewright.core.commits import CommitMetadata
from lakewright.core.instant import Instant
from lakewright.core.plans import ClusteringPlan, CompactionPlan
from lakewright.core.table_config import TableType
from lakewright.services.codecs import SERVICE_KEY
from lakewright.services.service import Sight
from lakewright.table.snapshot import Snapshot
from lakewright.write.task import Operation

Plan = CompactionPlan | ClusteringPlan

_WRITES = {
    TableType.MERGE_ON_READ: ("deltacommit", "replacecommit"),
    TableType.COPY_ON_WRITE: ("commit", "replacecommit"),
}


@runtime_checkable
class IncrementalPartitionAwareStrategy(Protocol):
    """A strategy that can be asked about some partitions without seeing all of the table."""

    def filter_partition_paths(
        self, settings: Any, partitions: Sequence[str]
    ) -> tuple[list[str], list[str]]:
        """Those to process, and those left out, which the next plan looks at again.

        What a strategy leaves out is recorded in the plan whether it is in the second list or not.
        """
        ...


@dataclass(frozen=True, slots=True)
class Window:
    """The partitions that planning looks at, sorted.

    `partitions` is None where all of the table are to be listed, `reason` tells why. `is_recorded`
    tells whether the plan records what it leaves out: not where incremental planning is off.
    """

    partitions: tuple[str, ...] | None
    reason: str = ""
    is_recorded: bool = True

    @property
    def is_empty(self) -> bool:
        """Whether nothing can have become due."""
        return self.partitions == ()

    def missing(self, looked_at: Iterable[str], done: Iterable[str]) -> tuple[str, ...] | None:
        """The partitions that a plan must name as not scheduled completely; None if it names none.

        `looked_at` are all that were considered (those of the window, or of the whole table), and
        `done` those in which nothing is left.
        """
        return tuple(sorted(set(looked_at) - set(done))) if self.is_recorded else None


def find_window(
    sight: Sight,
    action: str,
    *,
    enabled: bool = True,
    aware: bool = True,
    service: str | None = None,
) -> Window:
    """The window of a plan of `action`; all partitions where there is nothing to begin it with.

    `aware` tells whether the strategy can do with some of the partitions. `service` is the name of
    a service that shares the action of another: each has its own last plan.
    """
    if not enabled:
        return Window(None, "incremental planning is switched off", is_recorded=False)
    if not aware:
        return Window(None, "the strategy wants to see all partitions")
    snapshot = sight.snapshot
    last, plan = _last(snapshot, action, service or action)
    if last is None:
        return Window(None, f"no {action} has completed on the active timeline")
    if plan is None:
        return Window(None, f"the plan of the last {action} is not there any more")
    if plan.missing_partitions is None:
        return Window(None, f"the plan of the last {action} does not tell what it left")
    writes = _writes(snapshot, last.requested_at, sight.instant)
    commits = list(zip(writes, snapshot.commits(writes), strict=True))
    return Window(window_partitions(commits, plan.missing_partitions, last.requested_at))


def _last(snapshot: Snapshot, action: str, service: str) -> tuple[Instant | None, Plan | None]:
    """The completed execution with the greatest instant among those of a service; its plan."""
    for instant in sorted(snapshot.timeline.completed_services(action), reverse=True):
        plan = snapshot.plan_of(instant.requested_at, action)
        if plan is None or plan.extra.get(SERVICE_KEY, action) == service:
            return instant, plan
    return None, None


def window_partitions(
    commits: Iterable[tuple[Instant, CommitMetadata]], carried: Iterable[str], last: str
) -> tuple[str, ...]:
    """The partitions of a window: written in it, or carried over from the plan at `last`. Pure.

    `commits` completed in the window. A partition that was deleted is out, unless something wrote
    it that completed after the delete was requested: the delete need not have seen that.
    """
    written = dict.fromkeys(carried, last)
    deleted: dict[str, str] = {}
    for instant, commit in sorted(commits, key=lambda item: item[0].completed_at or ""):
        if instant.requested_at == last:
            continue
        if commit.operation == Operation.DELETE_PARTITION.value:
            for partition in commit.replaced:
                deleted[partition] = max(deleted.get(partition, ""), instant.requested_at)
        written.update(dict.fromkeys(commit.stats, instant.completed_at or ""))
    return tuple(sorted(p for p, when in written.items() if when > deleted.get(p, "")))


def _writes(snapshot: Snapshot, since: str, until: str) -> list[Instant]:
    actions = _WRITES[snapshot.config.table_type]
    known = snapshot.timeline.completed(*actions)
    # A write that began before the last service and completed after it may be archived already.
    late = [i for i in snapshot.archived_after(since) if i.action in actions]
    return [i for i in (*late, *known) if since <= (i.completed_at or "") < until]
