"""The end of a write: it is completed with what it keeps of freshness, and told to others."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from lakewright.core.commits import CommitMetadata
from lakewright.core.freshness import dropped_partitions
from lakewright.core.instant import Instant
from lakewright.core.plans import Skip
from lakewright.core.stored_freshness import FRESHNESS_KEY, Stored, format_stored
from lakewright.errors import LakewrightError, UnavailableError
from lakewright.settings import settings_from
from lakewright.table.keeping import Keeping
from lakewright.table.snapshot import Snapshot
from lakewright.table.transaction import Transaction
from lakewright.write.done import DoneMarks
from lakewright.write.freshness_settings import SUCCESS_FILE, FreshnessSettings, load_function
from lakewright.write.metrics.finished import tell_commit
from lakewright.write.options import write_settings
from lakewright.write.renewal import checked_extra
from lakewright.write.reporting import commit_figures, report

_ASK_AGAIN = 2
_PAUSE_S = 0.5

Verify = Callable[[Snapshot], None]
Extra = Callable[[Snapshot], Mapping[str, str]]


@dataclass(frozen=True)
class Commit:
    """A completed write or service, and the services that ran after it.

    `files` is how many data files a service wrote, or deleted if it only does that. `metrics` are
    its figures, where the table tracks event times.
    """

    instant: str
    completed_at: str
    action: str
    operation: str
    partitions: tuple[str, ...] = ()
    inserted: int = 0
    updated: int = 0
    deleted: int = 0
    files: int = 0
    services: tuple[Commit | Skip, ...] = ()
    metrics: Mapping[str, float] = field(default_factory=dict, hash=False)


def check_functions(options: Mapping[str, str]) -> None:
    """Refuse options that name functions which cannot be loaded, before anything is written."""
    settings = settings_from(FreshnessSettings, options)
    for name in (settings.reporter, settings.done_mark):
        if name is not None and name != SUCCESS_FILE:
            load_function(name)


def finish(
    transaction: Transaction,
    metadata: CommitMetadata,
    options: Mapping[str, str],
    verify: Verify | None = None,
    *,
    began_ms: int | None = None,
) -> Commit:
    """Complete a write; where the table tracks event times its commit keeps the views' freshness.

    Reporters are told, and partitions marked, once it has completed: whatever becomes of that, the
    commit stands. So it does if freshness cannot be told: the next commit finds out. `began_ms` is
    when work on it began, by the clock that never steps back.
    """
    config = transaction.snapshot.config
    settings = settings_from(FreshnessSettings, options)
    done = DoneMarks(transaction.writer.storage, settings, config.timeline_zone)
    tracked = write_settings(config, options).event_time is not None
    kept = _Kept(_prepared(transaction, metadata, settings, done) if tracked else None)
    now_ms = transaction.writer.clock.now_ms()

    def extra(now: Snapshot) -> Mapping[str, str]:
        checked = checked_extra(now, transaction.instant, now_ms, options, metadata)
        return {**checked, **(kept.extra(now) if tracked else {})}

    instant = complete(transaction, metadata, verify, extra)
    marks = kept.stored.marks if kept.stored is not None else None
    at_ms, figures = commit_figures(instant, metadata, marks, config.timeline_zone)
    if figures:
        also = load_function(settings.reporter) if settings.reporter is not None else None
        report(transaction.writer.storage.root, at_ms, figures, also)
    tell_commit(transaction, instant, metadata, options, (at_ms, figures, began_ms))
    if kept.stored is not None and done.are_wanted:
        done.mark(done.over(kept.stored.open, kept.stored.marks), kept.stored.marks)
    return replace(commit_of(instant, metadata), metrics=figures)


@dataclass
class _Kept:
    """What is kept in the commit, once its metadata was formed."""

    keeping: Keeping | None
    stored: Stored | None = None

    def extra(self, now: Snapshot) -> Mapping[str, str]:
        """What is added to the metadata, on the table as it is under the lock."""
        if self.keeping is None:
            return {}
        try:
            self.stored = self.keeping.stored(now)
        except LakewrightError as error:
            _warn(error)
            return {}
        return {FRESHNESS_KEY: format_stored(self.stored)}


def _prepared(
    transaction: Transaction,
    metadata: CommitMetadata,
    settings: FreshnessSettings,
    done: DoneMarks,
) -> Keeping | None:
    try:
        keeping = Keeping.prepare(
            transaction.snapshot,
            transaction.instant,
            transaction.action,
            metadata,
            future_from_ms=transaction.writer.clock.now_ms() + settings.future_tolerance_ms,
        )
        return _with_open(keeping, metadata, done) if done.are_wanted else keeping
    except LakewrightError as error:
        _warn(error)
        return None


def _with_open(keeping: Keeping, metadata: CommitMetadata, done: DoneMarks) -> Keeping:
    """Add the partitions that are to be marked one day, leave out those that are."""
    over = done.over(keeping.state.open, keeping.state.marks)
    closed = {path for path in over if done.is_marked(path)}
    return replace(
        keeping,
        opened=done.timed(metadata.stats),
        closed=frozenset((closed - metadata.stats.keys()) | dropped_partitions(metadata)),
    )


def _warn(error: LakewrightError) -> None:
    text = f"the commit does not tell completion and freshness: {error}"
    warnings.warn(text, RuntimeWarning, stacklevel=4)


def complete(
    transaction: Transaction,
    metadata: CommitMetadata,
    verify: Verify | None = None,
    extra: Extra | None = None,
) -> Instant:
    """Complete a write, and ask again where storage did not answer: it may be there already."""
    for _ in range(_ASK_AGAIN):
        try:
            return transaction.complete(metadata, verify=verify, extra=extra)
        except UnavailableError:
            transaction.writer.clock.sleep(_PAUSE_S)
    return transaction.complete(metadata, verify=verify, extra=extra)


def commit_of(instant: Instant, metadata: CommitMetadata) -> Commit:
    """What a completed write did."""
    stats = metadata.write_stats()
    return Commit(
        instant=instant.requested_at,
        completed_at=instant.completed_at or "",
        action=instant.action,
        operation=metadata.operation or "",
        partitions=metadata.partitions,
        inserted=sum(stat.num_inserts or 0 for stat in stats),
        updated=sum(stat.num_update_writes or 0 for stat in stats),
        deleted=sum(stat.num_deletes or 0 for stat in stats),
        files=len(stats),
    )
