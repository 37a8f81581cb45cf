"""The options of archiving, with Hudi's own keys and defaults."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from lakewright.errors import InvalidError
from lakewright.format.archived_timeline import MERGE_BYTES
from lakewright.model.instant import REWRITES, Action, Instant
from lakewright.model.plans import Skip
from lakewright.model.timeline import Timeline
from lakewright.options import at_least, option, parse_bool
from lakewright.services.cleaning.planner import visible_to_all_readers

_MIN, _MAX = "hoodie.keep.min.commits", "hoodie.keep.max.commits"


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchivingSettings:
    """How long the active timeline may grow, and how history is kept."""

    keep_min: int = option(
        _MIN,
        20,
        parse=at_least(1),
        doc="So many commits stay on the active timeline. More do where the retention of the "
        "cleaner, or a service that is yet to come, needs them there.",
    )
    keep_max: int = option(
        _MAX,
        30,
        parse=at_least(2),
        doc="Archive when there are more commits than this on the active timeline.",
    )
    batch: int = option(
        "hoodie.commits.archival.batch",
        10,
        parse=at_least(1),
        doc="How many commits are archived at once; more are done one batch after the other.",
    )
    beyond_savepoint: bool = option(
        "hoodie.archive.beyond.savepoint",
        False,
        parse=parse_bool,
        doc="Archive commits behind a savepoint too, all but the saved ones.",
    )
    block_on_clean: bool = option(
        "hoodie.archive.block.on.latest.clean.ectr",
        False,
        parse=parse_bool,
        doc="Never archive what the last clean has retained, however long the timeline grows.",
    )
    merge_files: int = option(
        "hoodie.timeline.compaction.batch.size",
        10,
        parse=at_least(2),
        doc="So many files of one level of history become one file of the next.",
    )
    merge_bytes: int = option(
        "hoodie.timeline.compaction.target.file.max.bytes",
        MERGE_BYTES,
        parse=at_least(1),
        doc="About how large a file of history may become.",
    )
    manifests_retained: int = option(
        "hoodie.timeline.manifest.retained.versions",
        3,
        parse=at_least(1),
        doc="So many states of history stay readable, for readers that began with one of them.",
    )

    def __post_init__(self) -> None:
        if self.keep_max <= self.keep_min:
            raise InvalidError(
                f"{_MAX} must be greater than {_MIN}", maximum=self.keep_max, minimum=self.keep_min
            )


# ------------------------------------------------------------------------------------------------
# Which instants may leave the active timeline. Pure.
#
# Readers take every instant that is older than the active timeline for completed, and look for
# nothing there: no plan, no replaced file group. So instants leave in the order of their requests,
# up
# to the first that somebody still needs.


# A service that is never run again, or a cleaner that was switched off, would else keep everything
# since. What is lost is an incremental plan: the next one lists the whole table.
_PATIENCE = 10


@dataclass(frozen=True, slots=True)
class ArchivedAction:
    """A completed action with the files that it left on the timeline while it was pending."""

    completed: Instant
    pending: tuple[Instant, ...] = ()


@dataclass(frozen=True, slots=True)
class ArchivePlan:
    """The actions to archive, oldest request first."""

    actions: tuple[ArchivedAction, ...]

    @property
    def instants(self) -> tuple[Instant, ...]:
        """The completed instants."""
        return tuple(action.completed for action in self.actions)


@dataclass(frozen=True, slots=True)
class ArchivalConstraints:
    """What others want of the timeline.

    `retained` is the earliest commit that the policy of the cleaner retains now, `cleaned` the one
    that the last clean retained; each is None if there is none on the timeline. `delta_commits` is
    how many a trigger has to be able to count. With `all_retained` there are no more commits than
    the cleaner keeps, which counts those on the timeline.
    """

    retained: Instant | None = None
    cleaned: Instant | None = None
    delta_commits: int = 0
    all_retained: bool = False


@dataclass(frozen=True, slots=True)
class Candidates:
    """The writes that may go as far as the timeline tells, and why the next may not."""

    writes: tuple[Instant, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class _ArchiveBarrier:
    """Nothing from `begin` on may go."""

    begin: str
    reason: str


def check_archive_trigger(timeline: Timeline, settings: ArchivingSettings) -> Skip | None:
    """Why it is too early to archive; None if there is enough."""
    count = len(timeline.completed_writes)
    if count <= settings.keep_max:
        return Skip(f"{count} commits, and up to {settings.keep_max} are kept")
    return None


def candidates(
    timeline: Timeline, settings: ArchivingSettings, needs: ArchivalConstraints
) -> Candidates:
    """The oldest writes that nobody needs on the active timeline."""
    done = timeline.completed_writes
    # Saved commits do not mark where the timeline begins: without another one, what was archived
    # since the first of them would count as uncommitted.
    most = (
        len(timeline.writes_without_savepoint if settings.beyond_savepoint else done)
        - settings.keep_min
    )
    limits = [*_hard_limits(timeline, settings, needs)]
    if len(done) <= _PATIENCE * settings.keep_max:
        limits += _soft_limits(timeline, needs)
    first = min(limits, key=lambda limit: limit.begin, default=None)
    chosen: list[Instant] = []
    for write in done:
        if len(chosen) >= most:
            return Candidates(tuple(chosen), f"{settings.keep_min} commits are kept")
        if write.requested_at in timeline.savepointed and settings.beyond_savepoint:
            continue
        if first is not None and write.requested_at >= first.begin:
            return Candidates(tuple(chosen), first.reason)
        late = _readers_need(write, needs)
        if late:
            return Candidates(tuple(chosen), late)
        chosen.append(write)
    return Candidates(tuple(chosen), "nothing else is there")


def plan_archive(
    files: Iterable[Instant], found: Candidates, uncleaned: Collection[str]
) -> ArchivePlan | Skip:
    """The actions to archive, with all their files of the timeline.

    `uncleaned` are the requested times of replace commits whose replaced files are still there:
    without the commit they would be part of the table again.
    """
    writes, reason = _before_uncleaned(found, uncleaned)
    if not writes:
        return Skip(f"nothing can be archived: {reason}")
    known = list(files)
    going = [*writes, *_along(Timeline.of(known), writes)]
    by_key: dict[tuple[str, str], list[Instant]] = {}
    for file in known:
        by_key.setdefault((file.requested_at, file.completed_action), []).append(file)
    return ArchivePlan(
        tuple(
            ArchivedAction(
                instant,
                tuple(f for f in by_key[instant.requested_at, instant.action] if f != instant),
            )
            for instant in sorted(going)
        )
    )


def batches(plan: ArchivePlan, size: int) -> Iterator[tuple[ArchivedAction, ...]]:
    """The plan in parts of so many writes, with what lies between them."""
    part: list[ArchivedAction] = []
    writes = 0
    for action in plan.actions:
        if writes == size:
            yield tuple(part)
            part, writes = [], 0
        part.append(action)
        writes += action.completed.is_write
    if part:
        yield tuple(part)


def _hard_limits(
    timeline: Timeline, settings: ArchivingSettings, needs: ArchivalConstraints
) -> Iterator[_ArchiveBarrier]:
    for undoing in timeline.pending(Action.ROLLBACK, Action.RESTORE):
        yield _ArchiveBarrier("", f"{undoing.action} {undoing.requested_at} is pending")
    pending = next((i for i in timeline.pending() if i.is_write), None)
    if pending is not None:
        # Older files count as committed: the active timeline begins before a pending write.
        unsaved = timeline.writes_without_savepoint
        before = [i.requested_at for i in unsaved if i.requested_at < pending.requested_at]
        begin = before[-1] if before else pending.requested_at
        yield _ArchiveBarrier(begin, f"{pending.action} {pending.requested_at} is pending")
    saved = [i.requested_at for i in timeline if i.action == "savepoint"]
    if saved and not settings.beyond_savepoint:
        yield _ArchiveBarrier(min(saved), f"savepoint {min(saved)}")
    if needs.cleaned is not None and settings.block_on_clean:
        yield _ArchiveBarrier(needs.cleaned.requested_at, "the last clean has retained the rest")
    deltas = (
        timeline.completed(Action.DELTA_COMMIT)[-needs.delta_commits :]
        if needs.delta_commits
        else ()
    )
    if deltas:
        yield _ArchiveBarrier(
            deltas[0].requested_at, "the delta commits are counted until a compaction"
        )


def _soft_limits(timeline: Timeline, needs: ArchivalConstraints) -> Iterator[_ArchiveBarrier]:
    for action in REWRITES:
        last = max(timeline.completed_services(action), default=None)
        if last is not None:
            yield _ArchiveBarrier(
                last.requested_at, f"the next {action} is planned from the last one on"
            )
    if needs.cleaned is not None:
        yield _ArchiveBarrier(
            needs.cleaned.requested_at, "the next clean is planned from the last one on"
        )


def _readers_need(write: Instant, needs: ArchivalConstraints) -> str:
    """Why somebody who reads within the retained time looks for a write on the timeline."""
    retained = needs.retained
    if needs.all_retained:
        return "all commits are retained"
    if retained is None or visible_to_all_readers(write.requested_at, write.completed_at, retained):
        return ""
    return f"commits from {retained.requested_at} on are retained"


def _before_uncleaned(
    found: Candidates, uncleaned: Collection[str]
) -> tuple[Sequence[Instant], str]:
    for position, write in enumerate(found.writes):
        if write.requested_at in uncleaned:
            reason = f"files that replacecommit {write.requested_at} replaced are not cleaned"
            return found.writes[:position], reason
    return found.writes, found.reason


def _along(timeline: Timeline, writes: Sequence[Instant]) -> list[Instant]:
    """The cleans and rollbacks that go with writes: all of their time but the last clean.

    Who asks what was deleted since a write that stays finds the cleans that ended after it.
    """
    newest, going = writes[-1].requested_at, {i.requested_at for i in writes}
    staying = [i.requested_at for i in timeline if i.is_write and i.requested_at not in going]
    begin = next((at for at in staying if at not in timeline.savepointed), None)
    cleans = timeline.completed(Action.CLEAN)
    return [
        i
        for i in timeline.completed(Action.CLEAN, Action.ROLLBACK)
        if i.requested_at < newest
        and (begin is None or (i.completed_at or "") < begin)
        and i not in cleans[-1:]
    ]
