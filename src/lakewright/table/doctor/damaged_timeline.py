"""Timeline files that are empty or truncated: what each means, and how to repair the table.

A plan is on the timeline before anything is done, and the completed file is created last. So an
unreadable plan that was not started has done nothing, and a completed action is done even if its
completed file is unreadable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import Any

from lakewright.errors import CorruptError, InvalidError, UnsupportedError
from lakewright.format.timeline_metadata import (
    parse_clean_plan,
    parse_compaction_plan,
    parse_index_plan,
    parse_requested_replace,
    parse_restore_plan,
    parse_rollback_plan,
)
from lakewright.model.instant import REWRITES, Action, Instant, State
from lakewright.table.damaged_commits import parse_completed, with_commits_from_file_names
from lakewright.table.doctor.findings import Finding
from lakewright.table.instant_files import action_key, revert_to_pending, timeline_files
from lakewright.table.properties import read_optional
from lakewright.table.rollback import check_can_rollback, resume_rollbacks
from lakewright.table.savepoint import locked_table, rollback_instant
from lakewright.table.snapshot import Snapshot, load_snapshot
from lakewright.table.transaction import WriterContext

_PLAN_PARSERS: Mapping[str, Callable[[bytes], Any]] = {
    Action.COMPACTION: parse_compaction_plan,
    Action.LOG_COMPACTION: parse_compaction_plan,
    Action.CLUSTERING: parse_requested_replace,
    Action.CLEAN: parse_clean_plan,
    Action.ROLLBACK: parse_rollback_plan,
    Action.RESTORE: parse_restore_plan,
    Action.INDEXING: parse_index_plan,
}
# An empty plan of any other action counts as one that was never made.
_NEED_A_PLAN = frozenset(REWRITES)


class Remedy(Enum):
    """How a table with a damaged timeline file is repaired."""

    FORCE = auto()  # roll back a write, whose rows are lost: a person decides
    ROLL_BACK = auto()  # roll back a table service or its plan: no row is lost
    REPEAT = auto()  # execute it again by its plan
    REMOVE = auto()  # delete it from the timeline: what it did is done, or it did nothing
    NONE = auto()

    @property
    def is_safe(self) -> bool:
        """Whether the repair loses no row."""
        return self in (Remedy.ROLL_BACK, Remedy.REPEAT, Remedy.REMOVE)


@dataclass(frozen=True, slots=True)
class DamagedFile:
    """A damaged timeline file, and how to repair it.

    `begun` is false for a plan whose execution has not started. A `harmless` one has no effect on
    the table.
    """

    instant: Instant
    reason: str
    remedy: Remedy
    advice: str
    begun: bool = True
    harmless: bool = False
    facts: Mapping[str, object] = field(default_factory=dict, hash=False)


def find_damaged(snapshot: Snapshot) -> tuple[DamagedFile, ...]:
    """Return the damaged completed files, plans of pending instants, and executed plans."""
    damaged = []
    for instant in snapshot.timeline:
        parsed = instant if instant.is_completed else replace(instant, state=State.REQUESTED)
        reason = _damage(snapshot, parsed)
        if reason is not None:
            classify = _damaged_completed if instant.is_completed else _damaged_pending
            damaged.append(classify(snapshot, instant, reason))
    return (*damaged, *_executed_plans(snapshot))


def _executed_plans(snapshot: Snapshot) -> Iterator[DamagedFile]:
    for instant in snapshot.timeline.completed_writes:
        action = snapshot.timeline.plans.get(instant.requested_at)
        if action is None:
            continue
        plan = Instant(instant.requested_at, action, State.REQUESTED)
        reason = _damage(snapshot, plan)
        if reason is not None:
            advice = f"none: it was executed, and the next {action} lists all partitions instead"
            yield DamagedFile(plan, reason, Remedy.NONE, advice, harmless=True)


def repair_damaged_file(writer: WriterContext, finding: Finding) -> None:
    """Repair a damaged file, if it is still damaged on the table as it is now."""
    name = finding.target.rpartition("/")[2]
    damaged = _find_by_name(load_snapshot(writer.storage), name)
    if damaged is not None and damaged.remedy in (Remedy.ROLL_BACK, Remedy.FORCE):
        rollback_instant(writer, damaged.instant.requested_at, force=True)
    elif damaged is not None:
        with locked_table(writer) as (snapshot, _):
            damaged = _find_by_name(snapshot, name)
            if damaged is not None and damaged.remedy is Remedy.REMOVE:
                _remove(snapshot, damaged.instant)
            elif damaged is not None and damaged.remedy is Remedy.REPEAT:
                revert_to_pending(snapshot, timeline_files(snapshot)[action_key(damaged.instant)])
        if damaged is not None and damaged.remedy is Remedy.REPEAT:
            _resume_rollback(writer, damaged.instant)


def _resume_rollback(writer: WriterContext, instant: Instant) -> None:
    """Finish a rollback that is pending again; a pending clean is left to the next clean."""
    if instant.action == Action.ROLLBACK:
        with locked_table(writer) as (snapshot, times):
            live = writer.live_instants(i.requested_at for i in snapshot.timeline.pending())
            by_markers = writer.transaction.rollback_by_markers
            resume_rollbacks(snapshot, times, writer.clock, by_markers=by_markers, alive=live)


def _remove(snapshot: Snapshot, instant: Instant) -> None:
    # The plan is deleted first: else a completed action would seem to be pending.
    pending = [replace(instant, state=s, completed_at=None) for s in State if s != State.COMPLETED]
    for state_instant in (*pending, instant):
        snapshot.storage.delete(snapshot.timeline_path(state_instant))


def _find_by_name(snapshot: Snapshot, name: str) -> DamagedFile | None:
    return next((d for d in find_damaged(snapshot) if d.instant.file_name == name), None)


def _damage(snapshot: Snapshot, instant: Instant) -> str | None:
    if not instant.is_completed and instant.action not in _PLAN_PARSERS:
        return None
    data = read_optional(snapshot.storage, snapshot.timeline_path(instant))
    if data is None:
        return None  # archived or rolled back since
    if not data and not instant.is_completed and instant.action not in _NEED_A_PLAN:
        return None
    try:
        if instant.is_completed:
            parse_completed(instant.action, data)
        elif not data:
            raise CorruptError("the file is empty")
        else:
            _PLAN_PARSERS[instant.action](data)
    except (CorruptError, UnsupportedError) as error:
        return error.message
    return None


def _damaged_completed(snapshot: Snapshot, instant: Instant, reason: str) -> DamagedFile:
    at = instant.requested_at
    if instant.is_write:
        return _damaged_write(snapshot, instant, reason)
    if instant.action == Action.SAVEPOINT:
        advice = (
            "bring it back from a copy; or delete the savepoint and make it again, with no clean "
            f"in between: `lakewright savepoint TABLE {at} --delete`, then without --delete"
        )
        return DamagedFile(instant, reason, Remedy.NONE, advice)
    planned = _has_plan(snapshot, instant)
    if instant.action == Action.CLEAN and planned:
        advice = "have it executed again by its plan: `lakewright services run` finishes it then"
        return DamagedFile(instant, reason, Remedy.REPEAT, advice)
    if instant.action == Action.CLEAN:
        advice = (
            "bring it, or its plan, back from a copy. Without both the files that it deleted are "
            "unknown: if there is none, delete its files from the timeline, and roll back no write "
            "from before it"
        )
        return DamagedFile(instant, reason, Remedy.NONE, advice)
    if instant.action == Action.ROLLBACK and planned and _target_is_gone(snapshot, instant):
        advice = "execute it again by its plan, which has nothing left to delete"
        return DamagedFile(instant, reason, Remedy.REPEAT, advice)
    advice = f"remove the {instant.action} from the timeline: what it did is done"
    return DamagedFile(instant, reason, Remedy.REMOVE, advice)


def _damaged_write(snapshot: Snapshot, instant: Instant, reason: str) -> DamagedFile:
    at = instant.requested_at
    service = snapshot.timeline.plans.get(at)
    try:
        check_can_rollback(with_commits_from_file_names(snapshot, instant), instant)
    except (InvalidError, CorruptError, UnsupportedError) as error:
        advice = (
            "bring it back from a copy, or restore the table to a savepoint before it. It cannot "
            f"be rolled back as the table is now: {error.message}"
        )
        return DamagedFile(instant, reason, Remedy.NONE, advice, facts=dict(error.facts))
    if service is not None:
        advice = f"roll the {service} back: no row is lost, and the next one repeats its work"
        return DamagedFile(instant, reason, Remedy.ROLL_BACK, advice)
    advice = (
        "bring it back from a copy; or roll the write back, whose rows are lost then: "
        f"`lakewright rollback TABLE {at} --force`"
    )
    return DamagedFile(instant, reason, Remedy.FORCE, advice)


def _damaged_pending(snapshot: Snapshot, instant: Instant, reason: str) -> DamagedFile:
    action, started = instant.action, instant.state is State.INFLIGHT
    remedy = Remedy.REMOVE
    advice = f"remove the {action} from the timeline: nothing was done by this plan"
    if action in _NEED_A_PLAN:
        remedy = Remedy.ROLL_BACK
        advice = f"roll the {action} back: it cannot be executed without its plan. No row is lost"
    elif action == Action.ROLLBACK and started:
        advice = (
            "remove it from the timeline: a write that it has made pending again is rolled back as "
            "a failed one, one that is still completed stays"
        )
    elif action == Action.CLEAN and started:
        remedy = Remedy.NONE
        advice = (
            "bring the plan back from a copy. Without it the files that the clean may have deleted "
            "are unknown: if there is none, delete its files from the timeline, and roll back no "
            "write from before it"
        )
    elif action == Action.RESTORE and started:
        remedy = Remedy.NONE
        advice = (
            "delete the files of this restore from the timeline, and run `lakewright restore` "
            "again before anything is written: the table is between two states"
        )
    return DamagedFile(instant, reason, remedy, advice, started)


def _has_plan(snapshot: Snapshot, completed: Instant) -> bool:
    plan = replace(completed, state=State.REQUESTED, completed_at=None)
    data = read_optional(snapshot.storage, snapshot.timeline_path(plan))
    return bool(data) and _damage(snapshot, plan) is None


def _target_is_gone(snapshot: Snapshot, rollback: Instant) -> bool:
    """Whether the instant that was rolled back is gone; a plan that stayed may be executed."""
    plan = replace(rollback, state=State.REQUESTED, completed_at=None)
    target = parse_rollback_plan(snapshot.storage.read(snapshot.timeline_path(plan))).instant
    return target.requested_at not in snapshot.timeline.by_time
