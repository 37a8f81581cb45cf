"""Files of the timeline that are empty or cut off: what each means, and how the table gets well.

A plan is on the timeline before anything is done, and a completed file comes last. So a plan that
cannot be read and was not begun has done nothing, and what completed is done even if its file does
not say so any more.
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
from lakewright.model.instant import REWRITES, Instant, State
from lakewright.table.damaged_commits import parse_completed, with_commits_from_file_names
from lakewright.table.doctor.findings import Finding
from lakewright.table.instant_files import action_key, revert_to_pending, timeline_files
from lakewright.table.properties import read_optional
from lakewright.table.rollback import check_can_rollback, resume_rollbacks
from lakewright.table.savepoint import locked_table, rollback_instant
from lakewright.table.snapshot import Snapshot, load_snapshot
from lakewright.table.transaction import WriterContext

_PLANS: Mapping[str, Callable[[bytes], Any]] = {
    "compaction": parse_compaction_plan,
    "logcompaction": parse_compaction_plan,
    "clustering": parse_requested_replace,
    "clean": parse_clean_plan,
    "rollback": parse_rollback_plan,
    "restore": parse_restore_plan,
    "indexing": parse_index_plan,
}
# Others take an empty plan of these for one that was never made.
_NEED_A_PLAN = frozenset(REWRITES)


class Remedy(Enum):
    """How a table with a damaged file of the timeline gets well again."""

    FORCE = auto()  # roll a write back, whose rows are gone then: a person decides
    ROLL_BACK = auto()  # roll a service or its plan back: no row is lost
    REPEAT = auto()  # carry it out again by its plan
    REMOVE = auto()  # take it off the timeline: what it did is done, or it did nothing
    NONE = auto()

    @property
    def is_safe(self) -> bool:
        """Whether no row is lost by it."""
        return self in (Remedy.ROLL_BACK, Remedy.REPEAT, Remedy.REMOVE)


@dataclass(frozen=True, slots=True)
class DamagedFile:
    """A file of the timeline that does not say what it should, and what can be done about it.

    `begun` is false of a plan that nobody has begun to execute. Nothing is wrong with the table for
    one that is `harmless`.
    """

    instant: Instant
    reason: str
    remedy: Remedy
    advice: str
    begun: bool = True
    harmless: bool = False
    facts: Mapping[str, object] = field(default_factory=dict, hash=False)


def find_damaged(snapshot: Snapshot) -> tuple[DamagedFile, ...]:
    """The completed files, and the plans of services and of what is pending, that are damaged."""
    found = []
    for instant in snapshot.timeline:
        named = instant if instant.is_completed else replace(instant, state=State.REQUESTED)
        reason = _damage(snapshot, named)
        if reason is not None:
            judge = _completed if instant.is_completed else _pending
            found.append(judge(snapshot, instant, reason))
    return (*found, *_executed_plans(snapshot))


def _executed_plans(snapshot: Snapshot) -> Iterator[DamagedFile]:
    for instant in snapshot.timeline.completed_writes:
        action = snapshot.timeline.plans.get(instant.requested_at)
        if action is None:
            continue
        plan = Instant(instant.requested_at, action, State.REQUESTED)
        reason = _damage(snapshot, plan)
        if reason is not None:
            advice = f"none: it was executed, and the next {action} looks at all partitions instead"
            yield DamagedFile(plan, reason, Remedy.NONE, advice, harmless=True)


def repair_damaged_file(writer: WriterContext, finding: Finding) -> None:
    """Put a damaged file right, on the table as it is now."""
    name = finding.target.rpartition("/")[2]
    found = _found(load_snapshot(writer.storage), name)
    if found is not None and found.remedy in (Remedy.ROLL_BACK, Remedy.FORCE):
        rollback_instant(writer, found.instant.requested_at, force=True)
    elif found is not None:
        with locked_table(writer) as (snapshot, _):
            found = _found(snapshot, name)
            if found is not None and found.remedy is Remedy.REMOVE:
                _remove(snapshot, found.instant)
            elif found is not None and found.remedy is Remedy.REPEAT:
                revert_to_pending(snapshot, timeline_files(snapshot)[action_key(found.instant)])
        if found is not None and found.remedy is Remedy.REPEAT:
            _rerun(writer, found.instant)


def _rerun(writer: WriterContext, instant: Instant) -> None:
    """End a rollback that is pending again; a clean is left to who cleans the table next."""
    if instant.action == "rollback":
        with locked_table(writer) as (snapshot, times):
            living = writer.live_instants(i.requested_at for i in snapshot.timeline.pending())
            by_markers = writer.transaction.rollback_by_markers
            resume_rollbacks(snapshot, times, writer.clock, by_markers=by_markers, alive=living)


def _remove(snapshot: Snapshot, instant: Instant) -> None:
    # The plan goes first: else one that has completed would seem to be pending.
    pending = [replace(instant, state=s, completed_at=None) for s in State if s != State.COMPLETED]
    for each in (*pending, instant):
        snapshot.storage.delete(snapshot.timeline_path(each))


def _found(snapshot: Snapshot, name: str) -> DamagedFile | None:
    return next((d for d in find_damaged(snapshot) if d.instant.file_name == name), None)


def _damage(snapshot: Snapshot, instant: Instant) -> str | None:
    if not instant.is_completed and instant.action not in _PLANS:
        return None
    data = read_optional(snapshot.storage, snapshot.timeline_path(instant))
    if data is None:
        return None  # archived since, or rolled back
    if not data and not instant.is_completed and instant.action not in _NEED_A_PLAN:
        return None
    try:
        if instant.is_completed:
            parse_completed(instant.action, data)
        elif not data:
            raise CorruptError("the file is empty")
        else:
            _PLANS[instant.action](data)
    except (CorruptError, UnsupportedError) as error:
        return error.message
    return None


def _completed(snapshot: Snapshot, instant: Instant, reason: str) -> DamagedFile:
    at = instant.requested_at
    if instant.is_write:
        return _write(snapshot, instant, reason)
    if instant.action == "savepoint":
        advice = (
            "bring it back from a copy; or delete the savepoint and make it again, with no clean "
            f"in between: `lakewright savepoint TABLE {at} --delete`, then without --delete"
        )
        return DamagedFile(instant, reason, Remedy.NONE, advice)
    planned = _has_plan(snapshot, instant)
    if instant.action == "clean" and planned:
        advice = "have it executed again by its plan: `lakewright services run` ends it then"
        return DamagedFile(instant, reason, Remedy.REPEAT, advice)
    if instant.action == "clean":
        advice = (
            "bring it, or its plan, back from a copy. Without both nobody knows which files it "
            "deleted: if there is none, delete its files from the timeline, and roll back no write "
            "from before it"
        )
        return DamagedFile(instant, reason, Remedy.NONE, advice)
    if instant.action == "rollback" and planned and _target_is_gone(snapshot, instant):
        advice = "end it again by its plan, which has nothing left to delete"
        return DamagedFile(instant, reason, Remedy.REPEAT, advice)
    advice = f"take the {instant.action} off the timeline: what it did is done"
    return DamagedFile(instant, reason, Remedy.REMOVE, advice)


def _write(snapshot: Snapshot, instant: Instant, reason: str) -> DamagedFile:
    at = instant.requested_at
    service = snapshot.timeline.plans.get(at)
    try:
        check_can_rollback(with_commits_from_file_names(snapshot, instant), instant)
    except (InvalidError, CorruptError, UnsupportedError) as error:
        advice = (
            "bring it back from a copy, or take the table back to a savepoint before it. It cannot "
            f"be rolled back as the table is now: {error.message}"
        )
        return DamagedFile(instant, reason, Remedy.NONE, advice, facts=dict(error.facts))
    if service is not None:
        advice = f"roll the {service} back: no row is lost, and the next one does its work"
        return DamagedFile(instant, reason, Remedy.ROLL_BACK, advice)
    advice = (
        "bring it back from a copy; or roll the write back, whose rows are gone then: "
        f"`lakewright rollback TABLE {at} --force`"
    )
    return DamagedFile(instant, reason, Remedy.FORCE, advice)


def _pending(snapshot: Snapshot, instant: Instant, reason: str) -> DamagedFile:
    action, begun = instant.action, instant.state is State.INFLIGHT
    remedy = Remedy.REMOVE
    advice = f"take the {action} off the timeline: nothing was done by this plan"
    if action in _NEED_A_PLAN:
        remedy = Remedy.ROLL_BACK
        advice = f"roll the {action} back: without its plan nobody can execute it. No row is lost"
    elif action == "rollback" and begun:
        advice = (
            "take it off the timeline: a write that it has made pending again is rolled back as a "
            "failed one, one that is still completed stays"
        )
    elif action == "clean" and begun:
        remedy = Remedy.NONE
        advice = (
            "bring the plan back from a copy. Without it nobody knows which files the clean may "
            "have deleted: if there is none, delete its files from the timeline, and roll back no "
            "write from before it"
        )
    elif action == "restore" and begun:
        remedy = Remedy.NONE
        advice = (
            "delete the files of this restore from the timeline, and run `lakewright restore` "
            "again before anything is written: the table is between two states"
        )
    return DamagedFile(instant, reason, remedy, advice, begun)


def _has_plan(snapshot: Snapshot, completed: Instant) -> bool:
    plan = replace(completed, state=State.REQUESTED, completed_at=None)
    data = read_optional(snapshot.storage, snapshot.timeline_path(plan))
    return bool(data) and _damage(snapshot, plan) is None


def _target_is_gone(snapshot: Snapshot, rollback: Instant) -> bool:
    """Whether nothing has the instant that was rolled back: a plan that stayed may run again."""
    plan = replace(rollback, state=State.REQUESTED, completed_at=None)
    target = parse_rollback_plan(snapshot.storage.read(snapshot.timeline_path(plan))).instant
    return target.requested_at not in snapshot.timeline.by_time
