"""How far back a table can be read, and where in the table that can have changed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import tzinfo

from lakewright.core.instant import Instant
from lakewright.core.plans import Skip, parse_reasons
from lakewright.core.timeline import Timeline
from lakewright.services.cleaning.settings import CleaningSettings, Policy
from lakewright.table.times import time_of

_HOUR_MS = 3_600_000

# What a clean tells the next one, as real Hudi does: the savepoints that held files.
SAVEPOINTS = "savepointed_timestamps"
# Partitions were left out on purpose, so that nobody may rely on the rest being clean.
FILTERED = "lakewright.clean.filtered"
# The number of versions that were kept, where that was the policy.
VERSIONS = "lakewright.clean.versions"


@dataclass(frozen=True, slots=True)
class LastClean:
    """What the last completed clean has left behind: up to where it went, and what it recorded."""

    requested_at: str
    earliest: str = ""
    extra: Mapping[str, str] = field(default_factory=dict, hash=False)

    @property
    def savepoints(self) -> frozenset[str]:
        """The savepoints whose files it left."""
        return frozenset(at for at in self.extra.get(SAVEPOINTS, "").split(",") if at)

    @property
    def left(self) -> frozenset[str]:
        """The partitions in which something was due and could not go."""
        return frozenset(parse_reasons(self.extra))


@dataclass(frozen=True, slots=True)
class Scope:
    """Where a clean looks: at what some writes touched and at some partitions, or everywhere.

    `everything` tells why all of the table is listed, and is empty where it is not.
    """

    writes: tuple[Instant, ...] = ()
    partitions: frozenset[str] = frozenset()
    everything: str = ""

    @property
    def is_empty(self) -> bool:
        """Whether nothing can have become due."""
        return not (self.writes or self.partitions or self.everything)


def not_due(timeline: Timeline, settings: CleaningSettings) -> Skip | None:
    """Why it is too early for a clean; None if it is due."""
    pending = timeline.pending("clean")
    if pending and not settings.allow_multiple:
        return Skip(f"clean {pending[0].requested_at} is pending")
    since = max((i.requested_at for i in timeline.completed("clean")), default="")
    count = sum(1 for i in timeline.completed_writes if (i.completed_at or "") > since)
    if count < settings.trigger_commits:
        return Skip(f"{count} of {settings.trigger_commits} commits since the last clean")
    return None


def earliest_to_retain(
    timeline: Timeline,
    settings: CleaningSettings,
    now_ms: int,
    zone: tzinfo,
    last: LastClean | None = None,
) -> Instant | None:
    """The earliest commit as of which the table stays readable; None if all of it stays.

    It is never later than the earliest pending write, which may build on any state since then.
    """
    done = timeline.completed_writes
    index = _wanted(done, settings, now_ms, zone)
    if index is None:
        return None
    pending = min((i.requested_at for i in timeline.pending() if i.is_write), default=None)
    if pending is not None and done[index].requested_at > pending:
        index = sum(1 for i in done if i.requested_at < pending) - 1
    begin = sum(1 for i in done if last is not None and i.requested_at < last.earliest)
    index = min(index, begin + settings.max_commits_to_clean)
    return done[index] if index >= 0 else None


def _wanted(
    done: tuple[Instant, ...], settings: CleaningSettings, now_ms: int, zone: tzinfo
) -> int | None:
    if settings.policy is Policy.COMMITS:
        count = len(done) - settings.commits_retained
        return count if count > 0 else None
    if settings.policy is Policy.HOURS:
        since = time_of(now_ms - settings.hours_retained * _HOUR_MS, zone)
        return next((n for n, i in enumerate(done) if i.requested_at >= since), None)
    return None


def is_settled(requested_at: str, completed_at: str | None, retained: Instant) -> bool:
    """Whether every reader within the retained time sees a write.

    Time travel goes by requested times and incremental queries by completion times, so both must
    lie before those of the earliest retained commit. What was archived completed long ago.
    """
    limit = retained.completed_at or ""
    return requested_at < retained.requested_at and (completed_at is None or completed_at <= limit)


def scope_of(
    timeline: Timeline,
    settings: CleaningSettings,
    retained: Instant | None,
    last: LastClean | None,
    *,
    has_history: bool,
) -> Scope:
    """Where something can have become due since the last clean. Pure.

    A slice becomes due when a newer one of its group settles, or, where versions are counted, when
    a newer one appears: so only what was written by such instants needs a look, and what the last
    clean had to leave.
    """
    reason = _why_everything(timeline, settings, last, has_history=has_history)
    if reason:
        return Scope(everything=reason)
    left = last.left if last is not None else frozenset()
    return Scope(_changed(timeline, retained, last), left)


def _why_everything(
    timeline: Timeline,
    settings: CleaningSettings,
    last: LastClean | None,
    *,
    has_history: bool,
) -> str:
    if not settings.incremental:
        return "incremental cleaning is off"
    if last is None:
        return "there was no clean since writes were archived" if has_history else ""
    if last.savepoints - timeline.saved:
        return "a savepoint was deleted since the last clean"
    if FILTERED in last.extra:
        return "the last clean left out partitions"
    if settings.policy is Policy.VERSIONS:
        same = last.extra.get(VERSIONS) == str(settings.versions_retained)
        begin = last.requested_at
    else:
        same, begin = True, last.earliest
    if not same or not begin:
        return "the last clean went by another policy"
    # Real Hudi may have archived writes that completed since, if they began before.
    if timeline.start is None or begin < timeline.start:
        return "the last clean is from before the active timeline"
    return ""


def _changed(
    timeline: Timeline, retained: Instant | None, last: LastClean | None
) -> tuple[Instant, ...]:
    done = timeline.completed_writes
    if retained is None:
        since = last.requested_at if last is not None else ""
        return tuple(i for i in done if (i.completed_at or "") > since)
    settled = [i for i in done if is_settled(i.requested_at, i.completed_at, retained)]
    before = timeline.by_time.get(last.earliest) if last is not None else None
    if before is None or not before.is_completed:
        return tuple(settled)
    return tuple(i for i in settled if not is_settled(i.requested_at, i.completed_at, before))
