"""The text in which a commit keeps completion and freshness, for whoever comes after it. Pure.

It is JSON under `lakewright.freshness`. It tells whose it is and on which write it builds: other
writers may copy the extra metadata of older commits, and writes may be rolled back.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from lakewright.core.freshness import NO_MARKS, Fall, FutureTime, Marks, Waiting
from lakewright.core.instant import Instant
from lakewright.core.timeline import Timeline

FRESHNESS_KEY = "lakewright.freshness"


# Whether a completed write is still on the timeline, or in history.
IsThere = Callable[[str], bool]


@dataclass(frozen=True, slots=True)
class Entry:
    """The marks of a partition, of the commits from `since` on; all there are if it is empty."""

    marks: Marks
    since: str = ""


@dataclass(frozen=True, slots=True)
class Stored:
    """What a commit keeps: the table's values, and those of the partitions that it touched.

    - `at` is the commit's own requested time, `after` that of the write that completed before it,
      `after_completed` when that was; both empty for the first one;
    - `over` are the writes that may be rolled back from under it: those requested after it that had
      completed, and the compactions;
    - `logs_in` are the partitions in which log files wait; None if they are too many to tell;
    - `open` are partitions that wait to be marked as done.
    """

    at: str
    after: str = ""
    after_completed: str = ""
    over: tuple[str, ...] = ()
    marks: Marks = NO_MARKS
    fell: Fall | None = None
    future: tuple[FutureTime, ...] = ()
    logs_in: frozenset[str] | None = frozenset()
    open: tuple[str, ...] = ()
    partitions: Mapping[str, Entry] = field(default_factory=dict)

    def holds(self, instant: Instant, timeline: Timeline, is_there: IsThere) -> bool:
        """Whether it is the word of this commit, on the table as the timeline has it.

        The write that it builds on may be archived; then nothing may have come between them.
        """
        before = _before(instant, timeline)
        if self.follows(before, instant, is_there):
            return True
        if before is not None and (before.completed_at or "") > self.after_completed:
            return False
        gone = bool(self.after) and timeline.is_archived(self.after)
        return gone and self.is_of(instant, is_there)

    def follows(self, before: Instant | None, instant: Instant, is_there: IsThere) -> bool:
        """Whether it is the word of this commit, if `before` is the one that completed before."""
        known = ("", "") if before is None else (before.requested_at, before.completed_at)
        return known == (self.after, self.after_completed) and self.is_of(instant, is_there)

    def is_of(self, instant: Instant, is_there: IsThere) -> bool:
        """Whether it is the word of this commit, and nothing was taken from under it since."""
        return self.at == instant.requested_at and all(map(is_there, self.over))


def _before(instant: Instant, timeline: Timeline) -> Instant | None:
    """The write that completed last before another."""
    order = timeline.by_completion
    place = order.index(instant) if instant in order else 0
    return order[place - 1] if place else None


def removable(at: str, timeline: Timeline) -> tuple[str, ...]:
    """The completed writes that may be rolled back though a write at `at` completes after them.

    They were requested after it, or are compactions, which later log files do not keep in place.
    """
    later = (i for i in timeline.completed_writes if i.requested_at > at)
    found = {i.requested_at for i in (*later, *timeline.completed_services("compaction"))}
    return tuple(sorted(found - {at}))


def format_stored(stored: Stored) -> str:
    """The text that a commit keeps; the inverse of `parse_stored`."""
    tree = {
        "at": stored.at,
        "after": stored.after,
        "after_completed": stored.after_completed,
        "over": list(stored.over),
        "table": {
            **_marks_tree(stored.marks),
            "fell": _fall_tree(stored.fell),
            "future": [list(pair) for pair in stored.future],
            "logs_in": None if stored.logs_in is None else sorted(stored.logs_in),
            "open": list(stored.open),
        },
        "partitions": {
            path: {**_marks_tree(entry.marks), "since": entry.since}
            for path, entry in sorted(stored.partitions.items())
        },
    }
    return json.dumps(tree, separators=(",", ":"))


def parse_stored(extra: Mapping[str, str]) -> Stored | None:
    """What a commit keeps among its extra metadata; None if it keeps nothing that can be read."""
    text = extra.get(FRESHNESS_KEY)
    if not text:
        return None
    try:
        tree = json.loads(text)
        table = tree["table"]
        return Stored(
            at=str(tree["at"]),
            after=str(tree["after"]),
            after_completed=str(tree["after_completed"]),
            over=tuple(map(str, tree["over"])),
            marks=_marks(table),
            fell=_fall(table["fell"]),
            future=tuple((str(path), int(time)) for path, time in table["future"]),
            logs_in=None if (paths := table["logs_in"]) is None else frozenset(map(str, paths)),
            open=tuple(map(str, table["open"])),
            partitions={
                str(path): Entry(_marks(item), str(item["since"]))
                for path, item in tree["partitions"].items()
            },
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _marks_tree(marks: Marks) -> dict[str, Any]:
    return {
        "snapshot_completion": marks.rt_completion,
        "snapshot_freshness": marks.rt_freshness,
        "read_optimized_completion": marks.ro_completion,
        "read_optimized_freshness": marks.ro_freshness,
        "ingested": marks.ingested,
        "recounted": marks.recounted,
        "waiting": _waiting_tree(marks.waiting),
    }


def _marks(tree: Mapping[str, Any]) -> Marks:
    return Marks(
        ingested=bool(tree["ingested"]),
        rt_completion=_time(tree["snapshot_completion"]),
        rt_freshness=_time(tree["snapshot_freshness"]),
        ro_freshness=_time(tree["read_optimized_freshness"]),
        waiting=_waiting(tree["waiting"]),
        recounted=bool(tree["recounted"]),
    )


def _waiting_tree(waiting: Waiting | None) -> dict[str, Any] | None:
    if waiting is None:
        return None
    return {"log": waiting.path, "instant": waiting.instant, "event_time": waiting.event_time}


def _waiting(tree: Mapping[str, Any] | None) -> Waiting | None:
    if tree is None:
        return None
    return Waiting(str(tree["log"]), str(tree["instant"]), _time(tree["event_time"]))


def _fall_tree(fell: Fall | None) -> dict[str, Any] | None:
    return None if fell is None else {"before": fell.before, "cause": _waiting_tree(fell.cause)}


def _fall(tree: Mapping[str, Any] | None) -> Fall | None:
    return None if tree is None else Fall(int(tree["before"]), _waiting(tree["cause"]))


def _time(value: Any) -> int | None:
    return None if value is None else int(value)
