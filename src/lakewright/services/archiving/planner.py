"""The options of archiving, with Hudi's keys and defaults, and the choice of what to archive.

Does no I/O. Readers treat every instant before the start of the active timeline as completed, and
do not search for plans or replaced file groups there. So instants are archived by requested time,
up to the first one that a reader, a writer or a table service still needs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from lakewright.errors import ConflictError, InvalidError
from lakewright.format.archived_timeline import MERGE_BYTES
from lakewright.model.instant import REWRITES, Action, Instant
from lakewright.model.plans import Skip
from lakewright.model.timeline import Timeline
from lakewright.options import at_least, option, parse_bool
from lakewright.services.cleaning.planner import visible_to_all_readers

_MIN, _MAX = "hoodie.keep.min.commits", "hoodie.keep.max.commits"


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchivingSettings:
    """How long the active timeline may grow, and how the archived timeline is stored."""

    keep_min: int = option(
        _MIN,
        20,
        parse=at_least(1),
        doc="At least this many commits stay on the active timeline; more where the retention of "
        "the cleaner, or the next run of a table service, needs them.",
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
        doc="How many commits are archived in one batch.",
    )
    beyond_savepoint: bool = option(
        "hoodie.archive.beyond.savepoint",
        False,
        parse=parse_bool,
        doc="Archive commits after a savepoint too, except savepointed ones.",
    )
    block_on_clean: bool = option(
        "hoodie.archive.block.on.latest.clean.ectr",
        False,
        parse=parse_bool,
        doc="Never archive commits that the last clean retained, however long the timeline grows.",
    )
    merge_files: int = option(
        "hoodie.timeline.compaction.batch.size",
        10,
        parse=at_least(2),
        doc="How many files of one level of the archived timeline are merged into one file.",
    )
    merge_bytes: int = option(
        "hoodie.timeline.compaction.target.file.max.bytes",
        MERGE_BYTES,
        parse=at_least(1),
        doc="The maximum size of a merged file of the archived timeline; above 32 MiB nothing is "
        "merged in any case.",
    )
    manifests_retained: int = option(
        "hoodie.timeline.manifest.retained.versions",
        3,
        parse=at_least(1),
        doc="How many manifests of the archived timeline are kept, for readers of older ones.",
    )

    def __post_init__(self) -> None:
        if self.keep_max <= self.keep_min:
            raise InvalidError(
                f"{_MAX} must be greater than {_MIN}", maximum=self.keep_max, minimum=self.keep_min
            )


# With more than this many times `keep_max` commits, the limits that only keep the next plan of a
# service or clean incremental are ignored: a service that never runs again would otherwise keep
# all commits on the timeline. The next plan then lists the whole table.
_SOFT_LIMIT_FACTOR = 10


@dataclass(frozen=True, slots=True)
class ArchivedAction:
    """A completed action, with its requested and inflight files on the timeline."""

    completed: Instant
    pending: tuple[Instant, ...] = ()


@dataclass(frozen=True, slots=True)
class ArchivePlan:
    """The actions to archive, by requested time."""

    actions: tuple[ArchivedAction, ...]

    @property
    def instants(self) -> tuple[Instant, ...]:
        """The completed instants."""
        return tuple(action.completed for action in self.actions)


@dataclass(frozen=True, slots=True)
class ArchivalConstraints:
    """What the cleaner and other table services need on the active timeline.

    `retained` is the earliest commit that the cleaner's policy retains now, `cleaned` the earliest
    one that the last clean retained; each is None if it is not on the timeline. `delta_commits` is
    how many delta commits the compaction triggers must be able to count. `all_retained` is set if
    there are no more commits than the cleaner retains: it counts those on the active timeline.
    """

    retained: Instant | None = None
    cleaned: Instant | None = None
    delta_commits: int = 0
    all_retained: bool = False


@dataclass(frozen=True, slots=True)
class Candidates:
    """The writes that may be archived, judging by the timeline, and why the next one may not."""

    writes: tuple[Instant, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class _ArchiveBarrier:
    """No instant from `begin` on may be archived."""

    begin: str
    reason: str


def check_archive_trigger(timeline: Timeline, settings: ArchivingSettings) -> Skip | None:
    """Why archiving is not due yet; None if it is."""
    count = len(timeline.completed_writes)
    if count <= settings.keep_max:
        return Skip(f"{count} commits, and up to {settings.keep_max} are kept")
    return None


def candidates(
    timeline: Timeline, settings: ArchivingSettings, needs: ArchivalConstraints
) -> Candidates:
    """The oldest writes that are not needed on the active timeline."""
    writes = timeline.completed_writes
    # Savepointed commits do not define the start of the timeline. If only they stayed, files of
    # commits archived after the first of them would count as uncommitted.
    max_archived = (
        len(timeline.writes_without_savepoint if settings.beyond_savepoint else writes)
        - settings.keep_min
    )
    barriers = [*_hard_barriers(timeline, settings, needs)]
    if len(writes) <= _SOFT_LIMIT_FACTOR * settings.keep_max:
        barriers += _soft_barriers(timeline, needs)
    first = min(barriers, key=lambda barrier: barrier.begin, default=None)
    chosen: list[Instant] = []
    for write in writes:
        if len(chosen) >= max_archived:
            return Candidates(tuple(chosen), f"{settings.keep_min} commits are kept")
        if write.requested_at in timeline.savepointed and settings.beyond_savepoint:
            continue
        if first is not None and write.requested_at >= first.begin:
            return Candidates(tuple(chosen), first.reason)
        reason = _why_retained(write, needs)
        if reason:
            return Candidates(tuple(chosen), reason)
        chosen.append(write)
    return Candidates(tuple(chosen), "there are no other commits")


def plan_archive(
    files: Iterable[Instant], candidates: Candidates, uncleaned: Collection[str]
) -> ArchivePlan | Skip:
    """The actions to archive, with all their timeline files.

    `files` are all files of the active timeline. `uncleaned` are the requested times of replace
    commits whose replaced files still exist: without the commit on the active timeline, these files
    would be part of the table again.

    Raises:
        ConflictError: another process has archived a write since the candidates were chosen.
    """
    writes, reason = _before_uncleaned(candidates, uncleaned)
    if not writes:
        return Skip(f"nothing can be archived: {reason}")
    timeline_files = list(files)
    instants = [*writes, *_cleans_and_rollbacks(Timeline.from_instants(timeline_files), writes)]
    by_key: dict[tuple[str, str], list[Instant]] = {}
    for file in timeline_files:
        by_key.setdefault((file.requested_at, file.completed_action), []).append(file)
    missing = [i.file_name for i in instants if (i.requested_at, i.action) not in by_key]
    if missing:
        raise ConflictError(
            "another process has archived these writes, so the lock was lost: archive again",
            files=missing[:3],
        )
    return ArchivePlan(
        tuple(
            ArchivedAction(
                instant,
                tuple(f for f in by_key[instant.requested_at, instant.action] if f != instant),
            )
            for instant in sorted(instants)
        )
    )


def batches(plan: ArchivePlan, size: int) -> Iterator[tuple[ArchivedAction, ...]]:
    """The plan in batches of `size` writes, each with the other actions between its writes."""
    batch: list[ArchivedAction] = []
    writes = 0
    for action in plan.actions:
        if writes == size:
            yield tuple(batch)
            batch, writes = [], 0
        batch.append(action)
        writes += action.completed.is_write
    if batch:
        yield tuple(batch)


def _hard_barriers(
    timeline: Timeline, settings: ArchivingSettings, constraints: ArchivalConstraints
) -> Iterator[_ArchiveBarrier]:
    """The barriers that hold however long the timeline is."""
    for undo in timeline.pending(Action.ROLLBACK, Action.RESTORE):
        yield _ArchiveBarrier("", f"{undo.action} {undo.requested_at} is pending")
    pending = next((i for i in timeline if i.is_write and not i.is_completed), None)
    if pending is not None:
        # Files older than the active timeline count as committed: it must start before the write.
        unsaved = timeline.writes_without_savepoint
        earlier = [i.requested_at for i in unsaved if i.requested_at < pending.requested_at]
        begin = earlier[-1] if earlier else pending.requested_at
        state = "pending" if pending.is_pending else "aborted, until a clean rolls it back"
        yield _ArchiveBarrier(begin, f"{pending.action} {pending.requested_at} is {state}")
    savepoints = [i.requested_at for i in timeline if i.action == Action.SAVEPOINT]
    if savepoints and not settings.beyond_savepoint:
        yield _ArchiveBarrier(min(savepoints), f"savepoint {min(savepoints)}")
    if constraints.cleaned is not None and settings.block_on_clean:
        yield _ArchiveBarrier(
            constraints.cleaned.requested_at, "the last clean has retained the rest"
        )
    delta_commits = (
        timeline.completed(Action.DELTA_COMMIT)[-constraints.delta_commits :]
        if constraints.delta_commits
        else ()
    )
    if delta_commits:
        yield _ArchiveBarrier(
            delta_commits[0].requested_at, "the delta commits are counted until a compaction"
        )


def _soft_barriers(
    timeline: Timeline, constraints: ArchivalConstraints
) -> Iterator[_ArchiveBarrier]:
    """The barriers that keep the next plan of each service incremental."""
    for action in REWRITES:
        last = max(timeline.completed_services(action), default=None)
        if last is not None:
            yield _ArchiveBarrier(
                last.requested_at, f"the next {action} is planned from the last one on"
            )
    if constraints.cleaned is not None:
        yield _ArchiveBarrier(
            constraints.cleaned.requested_at, "the next clean is planned from the last one on"
        )


def _why_retained(write: Instant, constraints: ArchivalConstraints) -> str:
    """Why a query within the retention period needs a write on the timeline; empty if none does."""
    retained = constraints.retained
    if constraints.all_retained:
        return "all commits are retained"
    if retained is None or visible_to_all_readers(write.requested_at, write.completed_at, retained):
        return ""
    return f"commits from {retained.requested_at} on are retained"


def _before_uncleaned(
    candidates: Candidates, uncleaned: Collection[str]
) -> tuple[Sequence[Instant], str]:
    """The candidates before the first uncleaned replace commit, and why the next one must stay."""
    for position, write in enumerate(candidates.writes):
        if write.requested_at in uncleaned:
            reason = f"files that replacecommit {write.requested_at} replaced are not cleaned"
            return candidates.writes[:position], reason
    return candidates.writes, candidates.reason


def _cleans_and_rollbacks(timeline: Timeline, writes: Sequence[Instant]) -> list[Instant]:
    """The cleans and rollbacks to archive with writes: those before the last write.

    The last clean stays, and so do those that completed after the first write that stays: readers
    that start at that write need them to find out which files were deleted since.
    """
    newest, archived = writes[-1].requested_at, {i.requested_at for i in writes}
    staying = [i.requested_at for i in timeline if i.is_write and i.requested_at not in archived]
    start = next((at for at in staying if at not in timeline.savepointed), None)
    cleans = timeline.completed(Action.CLEAN)
    return [
        i
        for i in timeline.completed(Action.CLEAN, Action.ROLLBACK)
        if i.requested_at < newest
        and (start is None or (i.completed_at or "") < start)
        and i not in cleans[-1:]
    ]
