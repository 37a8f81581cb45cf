"""What commits carry besides their files, newest first: how far streams and sources have come."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lakewright.core.commits import CommitMetadata
from lakewright.core.instant import Instant
from lakewright.table.snapshot import Snapshot

_AT_ONCE = 16


def commits_newest_first(
    snapshot: Snapshot, before: Snapshot | None = None
) -> Iterator[tuple[Instant, CommitMetadata]]:
    """The completed writes of a table, newest first; only those that were not there `before`."""
    for instants in _newest_first(snapshot, before):
        yield from zip(instants, snapshot.commits(instants), strict=True)


def _newest_first(snapshot: Snapshot, before: Snapshot | None) -> Iterator[Sequence[Instant]]:
    """Completed writes to be read together; archived ones only if somebody asks for them."""
    known = {i.requested_at for i in before.timeline.completed_writes} if before else set()
    now = snapshot.timeline
    active = [i for i in reversed(now.by_completion) if i.requested_at not in known]
    yield from _pieces([i for i in active if i.requested_at >= (now.start or "")])
    # Archiving may have left saved commits behind that are older than some of the archived ones.
    rest = [i for i in active if i.requested_at < (now.start or "")]
    start = before.timeline.start if before else None
    if before is None or start != now.start:
        # What is archived before this was so already.
        archived = [i for i in reversed(snapshot.archived) if i.requested_at >= (start or "")]
        rest += [i for i in archived if i.requested_at not in known]
    yield from _pieces(sorted(rest, key=lambda i: i.completed_at or "", reverse=True))


def _pieces(instants: Sequence[Instant]) -> Iterator[Sequence[Instant]]:
    for first in range(0, len(instants), _AT_ONCE):
        yield instants[first : first + _AT_ONCE]
