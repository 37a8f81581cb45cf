"""What a write keeps of completion and freshness in its own commit.

Listing and reading happen before the lock is taken, on the table as the write knows it. Under the
lock only what completed meanwhile is added.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from lakewright.core.commits import CommitMetadata
from lakewright.core.freshness import (
    NO_MARKS,
    Marks,
    Waiting,
    fall_of,
    first,
    marks_by_partition,
    removes_logs,
)
from lakewright.core.instant import COMPLETED_NAME, Instant
from lakewright.core.stored_freshness import Entry, Stored, removable
from lakewright.table.freshness import (
    State,
    Write,
    contribution,
    few_enough,
    fold,
    follow,
    load_state,
    with_logs,
)
from lakewright.table.snapshot import Snapshot
from lakewright.table.waiting_logs import waiting_logs

# After all others: the time is chosen when the write completes.
_LAST = "9" * 17

ByPartition = Mapping[str, Waiting | None]


@dataclass(frozen=True)
class Keeping:
    """A write that is about to complete, and what is known of the table before it.

    `waiting` are the log files that will wait once it has completed, by partition; None where it
    takes none out. `opened` are partitions that are to be marked as done one day, `closed` those
    that are.
    """

    base: Snapshot
    own: Instant
    action: str
    commit: CommitMetadata
    future_from_ms: int
    state: State
    waiting: ByPartition | None
    opened: tuple[str, ...] = ()
    closed: frozenset[str] = frozenset()

    @classmethod
    def prepare(
        cls,
        base: Snapshot,
        instant: str,
        action: str,
        commit: CommitMetadata,
        *,
        future_from_ms: int,
    ) -> Keeping:
        """Look at the table as a write has found it, whose files are all there by now."""
        own = Instant(instant, COMPLETED_NAME.get(action, action), completed_at=_LAST)
        state = load_state(base, future_from_ms=future_from_ms)
        made = cls(base, own, action, commit, future_from_ms, state, None)
        if removes_logs(commit) and state.marks.waiting is not None:
            made = replace(made, waiting=made._count(base, state))
        return made

    def stored(self, now: Snapshot) -> Stored:
        """What the commit keeps, on the table as it is under the lock."""
        now = now.knowing(self.base)
        new = self._since(now)
        state = self.state if new == [] else self._state(now, new)
        parts = contribution(now, self.own, self.commit)
        after = fold(state, self.own, self.commit, parts, future_from_ms=self.future_from_ms)
        if after.stale:
            after = self._recounted(now, new, state, after, parts)
        touched = {*self.commit.stats, *self.commit.replaced}
        last = state.last
        return Stored(
            at=self.own.requested_at,
            after=last.requested_at if last is not None else "",
            after_completed=(last.completed_at or "") if last is not None else "",
            over=removable(self.own.requested_at, now.timeline),
            marks=after.marks,
            fell=after.fell,
            future=after.future,
            logs_in=after.logs_in,
            open=tuple(sorted({*state.open, *self.opened} - self.closed)),
            partitions={path: e for path, e in after.entries.items() if path in touched},
        )

    def _since(self, now: Snapshot) -> list[Write] | None:
        """What completed since the table was looked at; None if it is not simply a continuation."""
        there = now.timeline.by_time
        gone = [i for i in self.base.timeline if i.is_write and i.requested_at not in there]
        if any(not i.is_completed or not now.timeline.is_archived(i.requested_at) for i in gone):
            return None
        known = [i for i in self.base.timeline.by_completion if i not in gone]
        order = list(now.timeline.by_completion)
        if order[: len(known)] != known:
            return None
        new = order[len(known) :]
        return list(zip(new, now.commits(new), strict=True))

    def _state(self, now: Snapshot, new: list[Write] | None) -> State:
        if new is None:
            return load_state(now, future_from_ms=self.future_from_ms)
        return follow(now, self.state, new, future_from_ms=self.future_from_ms)

    def _recounted(
        self,
        now: Snapshot,
        new: list[Write] | None,
        state: State,
        after: State,
        parts: Mapping[str, Marks],
    ) -> State:
        """The state after a write that takes log files out, with those that are left."""
        simple = new is not None and not any(removes_logs(commit) for _, commit in new)
        if self.waiting is not None and simple:
            waiting = _with_new(self.waiting, now, new or ())
        else:
            waiting = self._count(now, state)
        marks = after.marks.counted(first(*waiting.values()))
        entries = dict(after.entries)
        for path in self.commit.stats:
            known = state.entries.get(path) or Entry(NO_MARKS, self.own.requested_at)
            told = known.marks.then(parts.get(path, NO_MARKS))
            entries[path] = Entry(told.counted(waiting.get(path)), known.since)
        return replace(
            after,
            marks=marks,
            entries=entries,
            fell=fall_of(state.marks, marks),
            logs_in=few_enough({path for path, each in waiting.items() if each is not None}),
            stale=False,
        )

    def _count(self, snapshot: Snapshot, state: State) -> ByPartition:
        """The log files that wait once this write has completed, on one look at the table."""
        timeline = snapshot.timeline.with_completed(self.own, self.action)
        after = snapshot.with_write(timeline, self.own.requested_at, self.commit)
        found: dict[str, Waiting | None] = {}
        places = with_logs(state.logs_in, marks_by_partition(self.own.requested_at, self.commit))
        for held in waiting_logs(after, places):
            found[held.partition] = first(found.get(held.partition), held.waiting)
        return found


def _with_new(waiting: ByPartition, now: Snapshot, new: Iterable[Write]) -> ByPartition:
    found = dict(waiting)
    for instant, commit in new:
        for path, marks in contribution(now, instant, commit).items():
            found[path] = first(found.get(path), marks.waiting)
    return found
