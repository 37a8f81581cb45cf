"""Which partitions planning has to look at: the one place that finds them for all services.

The window is [requested time of the last completed service of the kind, instant of this plan), over
the completion times of writes. The partitions written in it, together with those that the last plan
could not schedule, are all that may have become due since.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from lakewright.services.service import Sight
from lakewright.table.written_since import last_service, partitions_since


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
    last, plan = last_service(snapshot, action, service or action)
    if last is None:
        return Window(None, f"no {action} has completed on the active timeline")
    if plan is None:
        return Window(None, f"the plan of the last {action} is not there any more")
    if plan.missing_partitions is None:
        return Window(None, f"the plan of the last {action} does not tell what it left")
    return Window(partitions_since(snapshot, last, plan, until=sight.instant))
