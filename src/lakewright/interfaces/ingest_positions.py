"""How far a source was read into a table, as the table's own commits tell it.

A position belongs to a source. Who alone fills a table needs no name for it, as in Hudi; sources
that share a table each have one, which their commits carry beside the checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from lakewright.core.commits import CommitMetadata
from lakewright.core.instant import Instant
from lakewright.errors import ConflictError, found_in
from lakewright.interfaces.commit_notes import commits_newest_first
from lakewright.sources.checkpoints import Checkpoint, checkpoint_in
from lakewright.table.snapshot import Snapshot

SOURCE = "lakewright.ingest.source"
BATCH = "lakewright.ingest.batch"


@dataclass(frozen=True, slots=True)
class Position:
    """A commit that brought rows of a source, and how far the source was read with it."""

    instant: Instant
    metadata: CommitMetadata
    checkpoint: Checkpoint | None
    batch: str | None = None


def note(checkpoint: Checkpoint | None, *, batch: str, source: str | None = None) -> dict[str, str]:
    """What the commit of a batch carries; `batch` is an id that no other batch has."""
    return {
        **(checkpoint.as_extra() if checkpoint is not None else {}),
        BATCH: batch,
        **({SOURCE: source} if source is not None else {}),
    }


@dataclass
class Positions:
    """The positions of a source, `None` for the one without a name; each commit is read once."""

    source: str | None = None
    _seen: Snapshot | None = None
    _newest: Position | None = None

    def newest(self, snapshot: Snapshot) -> Position | None:
        """The position that the table, as it is in a snapshot, was brought to last."""
        found = self._find(snapshot, self._seen)
        if self._newest is not None and self._is_doubtful(found, snapshot):
            found = self._newest = self._find(snapshot, None)
        self._newest = found or self._newest
        # Without the commits that it has read.
        self._seen = Snapshot(snapshot.storage, snapshot.config, snapshot.timeline)
        return self._newest

    def _is_doubtful(self, found: Position | None, snapshot: Snapshot) -> bool:
        """Whether what is new since the last look does not tell which position is the newest."""
        assert self._newest is not None
        if found is None:
            # The last one was archived, or taken back: then an older one counts again.
            return not _is_there(self._newest, snapshot)
        # Somebody got in between the last look, which saw a later one and not this.
        last = self._newest.instant.completed_at or ""
        return (found.instant.completed_at or "") < last

    def _find(self, snapshot: Snapshot, before: Snapshot | None) -> Position | None:
        for instant, commit in commits_newest_first(snapshot, before):
            with found_in(instant.file_name):
                position = self._position(instant, commit)
            if position is not None:
                return position
        return None

    def _position(self, instant: Instant, commit: CommitMetadata) -> Position | None:
        extra: Mapping[str, str] = commit.extra
        if extra.get(SOURCE) != self.source:
            return None
        checkpoint = checkpoint_in(extra)
        if checkpoint is None and BATCH not in extra:
            return None
        return Position(instant, commit, checkpoint, extra.get(BATCH))


def _is_there(position: Position, snapshot: Snapshot) -> bool:
    found = snapshot.timeline.by_time.get(position.instant.requested_at)
    return found is not None and found.is_completed


@dataclass
class PositionCheck:
    """Refuses a batch unless the table is still where the batch was read from."""

    positions: Positions
    base: Position | None

    def __post_init__(self) -> None:
        self.positions = replace(self.positions)

    def __call__(self, snapshot: Snapshot) -> None:
        """Look at the table as it is; ConflictError names the commit that was not expected."""
        found = self.positions.newest(snapshot)
        if _time(found) != _time(self.base):
            raise ConflictError(
                "the source was read on by somebody else, or a commit was taken back: go on from "
                "where the table is now",
                expected=_time(self.base),
                instant=_time(found),
            )


def _time(position: Position | None) -> str | None:
    return position.instant.requested_at if position is not None else None
