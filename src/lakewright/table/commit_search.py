"""Completed writes, newest first: their metadata says how far streams and sources were read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress

from lakewright.errors import CorruptError
from lakewright.model.commit_metadata import CommitMetadata
from lakewright.model.instant import Instant
from lakewright.table.snapshot import Snapshot

_COMMITS_PER_READ = 16
_MAX_ARCHIVED_PER_READ = 1024


def commits_newest_first(
    snapshot: Snapshot, base: Snapshot | None = None
) -> Iterator[tuple[Instant, CommitMetadata]]:
    """Yield the completed writes of a table, newest first; only those that `base` lacks.

    The archived timeline is read only if the caller gets that far, and its commits are not kept.
    """
    base_times = {i.requested_at for i in base.timeline.completed_writes} if base else set()
    timeline = snapshot.timeline
    active = [i for i in reversed(timeline.by_completion) if i.requested_at not in base_times]
    newest = [i for i in active if i.requested_at >= (timeline.start or "")]
    for first in range(0, len(newest), _COMMITS_PER_READ):
        instants = newest[first : first + _COMMITS_PER_READ]
        yield from zip(instants, snapshot.commits(instants), strict=True)
    # Archiving may have left savepointed commits behind that are older than some archived ones.
    rest = [i for i in active if i.requested_at < (timeline.start or "")]
    base_start = base.timeline.start if base else None
    if base is None or base_start != timeline.start:
        # Writes before the start of the base timeline were archived when `base` was loaded.
        archived = snapshot.archived_between(base_start or "", "9")
        rest += [i for i in archived if i.requested_at not in base_times]
    yield from _uncached(snapshot, sorted(rest, key=lambda i: i.completed_at or "", reverse=True))


def _uncached(
    snapshot: Snapshot, instants: Sequence[Instant]
) -> Iterator[tuple[Instant, CommitMetadata]]:
    """Yield writes with their metadata, in batches that grow: a row group is decoded few times."""
    start, size = 0, _COMMITS_PER_READ
    while start < len(instants):
        batch = instants[start : start + size]
        reading = snapshot.with_own_cache()
        yield from zip(batch, reading.commits(batch), strict=True)
        start, size = start + size, min(2 * size, _MAX_ARCHIVED_PER_READ)


def search_commits(
    snapshot: Snapshot, instants: Sequence[Instant]
) -> Iterator[tuple[Instant, CommitMetadata]]:
    """Yield writes with their metadata, for a search that may end at any of them.

    The first is loaded alone, as it is often enough, and each batch is twice as large as the one
    before.
    """
    start, size = 0, 1
    while start < len(instants):
        batch = instants[start : start + size]
        # The search may end before a damaged one; the error is raised below if it does not.
        with suppress(CorruptError):
            snapshot.commits(batch)
        for instant in batch:
            yield instant, snapshot.commits([instant])[0]
        start, size = start + size, min(2 * size, _COMMITS_PER_READ)
