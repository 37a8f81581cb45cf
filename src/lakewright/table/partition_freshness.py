"""Completion and freshness of partitions: looked up, commit by commit, when they are asked for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from lakewright.core.commits import CommitMetadata
from lakewright.core.freshness import (
    NO_MARKS,
    Marks,
    PartitionFreshness,
    Waiting,
    dropped_partitions,
    first,
    marks_by_partition,
    removes_logs,
)
from lakewright.core.instant import Instant
from lakewright.core.stored_freshness import Entry, parse_stored
from lakewright.table.snapshot import Snapshot
from lakewright.table.waiting_logs import waiting_logs


class PartitionViews(Mapping[str, PartitionFreshness]):
    """The partitions of a table that hold something, each with its completion and freshness.

    One that is asked for costs the commits from the newest back to where its values are whole; to
    go through all of them costs every commit, in history too.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._known: dict[str, PartitionFreshness | None] = {}
        self._all: tuple[str, ...] | None = None

    def __getitem__(self, partition: str) -> PartitionFreshness:
        """The values of a partition; KeyError if no commit wrote it, or if it was deleted."""
        if partition not in self._known and self._all is None:
            found = _walk(self._snapshot, {partition})
            self._known[partition] = found.get(partition)
        values = self._known.get(partition)
        if values is None:
            raise KeyError(partition)
        return values

    def __iter__(self) -> Iterator[str]:
        """The partitions, sorted."""
        return iter(self._listed())

    def __len__(self) -> int:
        """How many there are."""
        return len(self._listed())

    def _listed(self) -> tuple[str, ...]:
        if self._all is None:
            found = _walk(self._snapshot, None)
            self._known = dict(found)
            self._all = tuple(sorted(found))
        return self._all


@dataclass
class _Search:
    """What is known of one partition on the way back.

    Commits that completed at `covered_from` or later are in `marks` already; those that completed
    before `born` wrote what was deleted since.
    """

    marks: Marks = NO_MARKS
    found: bool = False
    whole: bool = False
    recount: bool = False
    covered_from: str = ""
    born: str = ""

    def take(self, marks: Marks) -> None:
        """Put an older commit before what is known."""
        self.marks = marks.then(self.marks)
        self.found = True

    def wants(self, instant: Instant) -> bool:
        """Whether a commit that is met on the way back has anything to add."""
        at = instant.completed_at or ""
        if at <= self.born:
            self.whole = True
        return not self.whole and (not self.covered_from or at < self.covered_from)


def _walk(snapshot: Snapshot, wanted: set[str] | None) -> dict[str, PartitionFreshness]:
    """Go back through the commits until all wanted partitions are known, or to the beginning."""
    searches: dict[str, _Search] = {path: _Search() for path in wanted or ()}
    for instant, commit in _backwards(snapshot):
        touched = {*commit.stats, *commit.replaced}
        met = {
            path: search
            for path in (touched if wanted is None else touched & wanted)
            if (search := searches.setdefault(path, _Search())).wants(instant)
        }
        if met:
            _meet(snapshot, met, instant, commit)
        if wanted is not None and all(search.whole for search in searches.values()):
            break
    return _counted(snapshot, searches)


def _meet(
    snapshot: Snapshot, met: Mapping[str, _Search], instant: Instant, commit: CommitMetadata
) -> None:
    """Let searches take what a commit says about their partitions."""
    kept = _kept(snapshot, instant, commit)
    dropped = dropped_partitions(commit)
    own = marks_by_partition(instant.requested_at, commit)
    for path, search in met.items():
        entry = kept.get(path)
        if entry is not None:
            search.take(entry.marks)
            search.whole = not entry.since
            if entry.since:
                search.covered_from = _completed_at(snapshot, entry.since) or ""
        elif path in dropped:
            # What completed after the delete was requested it need not have seen.
            search.born = instant.requested_at
            search.recount = True
        else:
            search.recount |= removes_logs(commit)
            search.take(own.get(path, NO_MARKS))


def _kept(snapshot: Snapshot, instant: Instant, commit: CommitMetadata) -> Mapping[str, Entry]:
    """What a commit keeps of partitions, if it is its own word."""
    stored = parse_stored(commit.extra)
    if stored is None:
        return {}
    if instant.requested_at in snapshot.timeline.by_time:
        holds = stored.holds(instant, snapshot.timeline, snapshot.has_write)
    else:
        holds = stored.is_of(instant, snapshot.has_write)
    return stored.partitions if holds else {}


def _counted(snapshot: Snapshot, searches: Mapping[str, _Search]) -> dict[str, PartitionFreshness]:
    """The values of what was found; log files are counted anew where some were taken out."""
    found = {path: search for path, search in searches.items() if search.found}
    unsure = sorted(path for path, search in found.items() if search.recount)
    held = waiting_logs(snapshot, unsure) if unsure else ()
    worst: dict[str, Waiting | None] = {}
    for each in held:
        worst[each.partition] = first(worst.get(each.partition), each.waiting)
    return {
        path: (s.marks.counted(worst.get(path)) if s.recount else s.marks).views
        for path, s in found.items()
    }


def _backwards(snapshot: Snapshot) -> Iterator[tuple[Instant, CommitMetadata]]:
    """The completed writes, the one that completed last first; history only as far as asked for."""
    active = snapshot.timeline.by_completion
    oldest = active[0].completed_at or "" if active else ""
    # A write that began early and ended late may be archived before others that it outlived.
    late = snapshot.archived_after(oldest) if active else []
    yield from _in_batches(snapshot, _last_first([*active, *late]))
    seen = {instant.requested_at for instant in late}
    rest = [i for i in snapshot.archived if i.requested_at not in seen]
    yield from zip(_last_first(rest), snapshot.commits(_last_first(rest)), strict=True)


def _last_first(instants: Iterable[Instant]) -> list[Instant]:
    return sorted(instants, key=lambda i: i.completed_at or "", reverse=True)


def _in_batches(
    snapshot: Snapshot, instants: Iterable[Instant]
) -> Iterator[tuple[Instant, CommitMetadata]]:
    for instant in instants:
        yield instant, snapshot.commits([instant])[0]


def _completed_at(snapshot: Snapshot, requested_at: str) -> str | None:
    known = snapshot.view().completion(requested_at)
    return known or snapshot.archived_times.get(requested_at)
