"""Whether a compaction is due, by the timeline alone."""

from __future__ import annotations

from datetime import UTC, tzinfo

from lakewright.core.instant import parse_time
from lakewright.core.plans import Skip
from lakewright.core.timeline import Timeline
from lakewright.errors import InvalidError
from lakewright.services.compaction.settings import CompactionSettings, Trigger


def not_due(
    timeline: Timeline, settings: CompactionSettings, instant: str, zone: tzinfo = UTC
) -> Skip | None:
    """Why a compaction at `instant` is too early; None if it is due.

    Only completed delta commits count: replace commits leave no log files behind, and a pending
    write may yet be rolled back. They count from the moment they completed: the log files of a
    write that the last compaction overlapped are on top of it.
    """
    few = _few_commits(timeline, settings)
    early = _early(timeline, settings, instant, zone)
    match settings.trigger:
        case Trigger.NUM_COMMITS | Trigger.NUM_COMMITS_AFTER_LAST_REQUEST:
            return few
        case Trigger.TIME_ELAPSED:
            return early
        case Trigger.NUM_AND_TIME:
            return few if few is not None else early
        case Trigger.NUM_OR_TIME:
            return Skip(f"{few}, and {early}") if few is not None and early is not None else None


def last_compaction(timeline: Timeline, *, requested: bool = False) -> str | None:
    """The requested time of the last completed compaction, or of the last requested one."""
    # A commit of a merge-on-read table is a compaction.
    times = [i.requested_at for i in timeline.completed("commit")]
    if requested:
        times += [i.requested_at for i in timeline.pending("compaction")]
    return max(times, default=None)


def delta_commits(timeline: Timeline, since: str | None) -> int:
    """How many delta commits have completed, all in all or after a time."""
    done = timeline.completed("deltacommit")
    return sum(1 for i in done if since is None or (i.completed_at or "") > since)


def _few_commits(timeline: Timeline, settings: CompactionSettings) -> Skip | None:
    requested = settings.trigger is Trigger.NUM_COMMITS_AFTER_LAST_REQUEST
    since = last_compaction(timeline, requested=requested)
    count = delta_commits(timeline, since)
    if count >= settings.max_delta_commits:
        return None
    beginning = f"since compaction {since}" if since else "and no compaction yet"
    return Skip(f"{count} of {settings.max_delta_commits} delta commits {beginning}")


def _early(
    timeline: Timeline, settings: CompactionSettings, instant: str, zone: tzinfo
) -> Skip | None:
    since = last_compaction(timeline)
    first = min((i.requested_at for i in timeline if i.action == "deltacommit"), default=None)
    start = since or first
    if start is None:
        return Skip("nothing was written yet")
    seconds = _seconds(instant, zone) - _seconds(start, zone)
    if seconds >= settings.max_delta_seconds:
        return None
    begun = "compaction" if since else "the first delta commit"
    return Skip(f"{seconds} of {settings.max_delta_seconds} seconds since {begun} {start}")


def _seconds(time: str, zone: tzinfo) -> int:
    try:
        return int(parse_time(time, zone).timestamp())
    except InvalidError:
        # The first instants of bootstrapped tables are no times; they are long past.
        return 0
