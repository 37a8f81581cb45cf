"""What planning reads of a table: the slices of some partitions, and who holds them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from lakewright.core.instant import Instant
from lakewright.core.plans import Skip
from lakewright.core.slices import FileSlice, GroupKey
from lakewright.core.table_config import TableType
from lakewright.errors import InvalidError
from lakewright.services.overtaken import Plan, why_void
from lakewright.services.service import Sight
from lakewright.services.window import Window
from lakewright.settings import settings_from
from lakewright.table.heartbeat import alive
from lakewright.table.settings import HeartbeatSettings, plan_settings
from lakewright.table.snapshot import FilesByPartition, Snapshot

KeepPartitions = Callable[[Sequence[str]], Sequence[str]]


@dataclass(frozen=True, slots=True)
class Sighted:
    """The newest slice of each file group, by partition and file id; groups that are spoken for."""

    slices: list[FileSlice]
    held: dict[GroupKey, str]


def look_into(sight: Sight, window: Window, keep: KeepPartitions) -> Sighted:
    """List the partitions of a window that `keep` leaves in, and no others if it names any."""
    if window.partitions is not None:
        files = sight.snapshot.files(keep(window.partitions))
    else:
        listed = sight.snapshot.files()
        files = {path: listed[path] for path in keep(list(listed))}
    return Sighted(newest_slices(sight, files), groups_to_leave(sight))


def newest_slices(sight: Sight, files: FilesByPartition) -> list[FileSlice]:
    """The slices as they are at the instant of the plan: what completes later is not in them."""
    snapshot = sight.snapshot
    late = any((i.completed_at or "") >= sight.instant for i in snapshot.timeline.completed_writes)
    # The bound needs the completion times of archived writes, which cost a look into history.
    view = snapshot.view(completed_until=sight.instant) if late else snapshot.view()
    return [group.merged() for group in snapshot.groups(view, files)]


@dataclass(frozen=True)
class Cancellable:
    """The pending plans that others need not wait for, and which of them are being executed."""

    plans: Mapping[Instant, Plan]
    living: frozenset[Instant]

    @classmethod
    def of(cls, sight: Sight, plans: Iterable[tuple[Instant, Plan]]) -> Cancellable:
        """Those among some plans; asks for heartbeats only if there are any."""
        found = {instant: plan for instant, plan in plans if plan.cancellable}
        if not found:
            return cls({}, frozenset())
        settings = settings_from(HeartbeatSettings, sight.options)
        times = {instant.requested_at for instant in found}
        living = alive(sight.snapshot.storage, times, settings, sight.now_ms)
        return cls(found, frozenset(i for i in found if i.requested_at in living))

    def with_groups_of(self, plan: Plan) -> list[Instant]:
        """Those that have file groups in common with a plan."""
        mine = plan.file_groups
        return [i for i, other in self.plans.items() if not mine.isdisjoint(other.file_groups)]


def groups_to_leave(sight: Sight) -> dict[GroupKey, str]:
    """The file groups that a plan must leave to others, each with what it waits for.

    A plan that is not cancellable goes over those that are, unless they are being executed.
    """
    plans = sight.snapshot.pending_plans()
    held = _held(sight.snapshot, plans)
    if plan_settings(sight.snapshot.config, sight.options).cancellable:
        return held
    passed = Cancellable.of(sight, plans)
    over = {_named(instant) for instant in passed.plans if instant not in passed.living}
    busy = {_named(i): f"{_named(i)}, which is being executed" for i in passed.living}
    return {key: busy.get(holder, holder) for key, holder in held.items() if holder not in over}


def plans_below(sight: Sight, plan: Plan) -> tuple[Instant, ...] | Skip:
    """The cancellable plans that have to go before a plan appears; Skip if one is being executed.

    Whoever made the plan may not have asked for the groups to leave.
    """
    found = Cancellable.of(sight, sight.snapshot.pending_plans())
    below = found.with_groups_of(plan)
    firm = [i for i in below if why_void(sight.snapshot, i, found.plans[i]) is None]
    if plan.cancellable and firm:
        return Skip(f"{_named(firm[0])} has some of its file groups already")
    busy = [instant for instant in below if instant in found.living]
    if busy:
        return Skip(f"{_named(busy[0])} has some of its file groups, and is being executed")
    return tuple(below)


def held_groups(snapshot: Snapshot) -> dict[GroupKey, str]:
    """The file groups that pending plans are going to rewrite, each with what it waits for.

    A plan that can never be executed holds nothing.
    """
    return _held(snapshot, snapshot.pending_plans())


def _held(snapshot: Snapshot, plans: Iterable[tuple[Instant, Plan]]) -> dict[GroupKey, str]:
    return {
        key: _named(instant)
        for instant, plan in plans
        if why_void(snapshot, instant, plan) is None
        for key in plan.file_groups
    }


def _named(instant: Instant) -> str:
    return f"{instant.action} {instant.requested_at}"


def need_log_files(snapshot: Snapshot, service: str) -> None:
    """Raise InvalidError for a table that never has log files."""
    if snapshot.config.table_type is not TableType.MERGE_ON_READ:
        raise InvalidError(
            "a copy-on-write table has no log files", service=service, table=snapshot.config.name
        )
