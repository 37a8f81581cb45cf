"""Checkpoints: how far a source was read, stored in the commits of the target table.

A checkpoint is a text whose meaning the source defines. It is stored under Hudi's keys: version 2
holds completion times, version 1 everything else (requested times, offsets, modification times).
Hudi's sources of cloud objects know requested times only, so their key holds one, and a key of this
library the exact position.

A checkpoint belongs to a source. The only source of a table needs no name, as in Hudi; each of
several sources has a name, which its commits record beside the checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum

from lakewright.clock import zone_of
from lakewright.errors import ConflictError, InvalidError, errors_in_file
from lakewright.model.commit_metadata import CommitMetadata
from lakewright.model.instant import Instant, InstantTime, is_time, parse_time
from lakewright.scan.planner import EARLIEST
from lakewright.table.commit_search import commits_newest_first
from lakewright.table.snapshot import Snapshot

RESUME_REQUESTED = "resumeFromInstantRequestTime"
RESUME_COMPLETED = "resumeFromInstantCompletionTime"
# Hudi's checkpoint for the beginning of a table.
INITIAL = "00000000000000"


class Version(IntEnum):
    """The version of Hudi's keys under which a checkpoint is stored."""

    V1 = 1
    V2 = 2


_KEYS = {
    Version.V1: ("deltastreamer.checkpoint.key", "deltastreamer.checkpoint.reset_key"),
    Version.V2: ("streamer.checkpoint.key.v2", "streamer.checkpoint.reset.key.v2"),
}
_OVERRIDE_VERSIONS = {RESUME_REQUESTED: Version.V1, RESUME_COMPLETED: Version.V2}


# The exact checkpoint beside the one under Hudi's key.
POSITION = "lakewright.ingest.position"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """How far a source was read; `reset` is the override of a user from which it resulted.

    `for_hudi` is the checkpoint by which Hudi's source of this kind goes on, if that source takes
    the text under the key of version 2 for one of version 1: then the text stands beside it.
    """

    text: str
    version: Version = Version.V1
    reset: str | None = None
    for_hudi: str | None = None

    def as_extra(self) -> dict[str, str]:
        """Return the checkpoint as extra commit metadata."""
        if self.for_hudi is not None:
            key, reset = _KEYS[Version.V1]
            stored = {key: self.for_hudi, POSITION: self.text}
        else:
            key, reset = _KEYS[self.version]
            stored = {key: self.text}
        return stored | ({reset: self.reset} if self.reset is not None else {})


def lag_ms(newest: str, read: str, zone: str) -> int | None:
    """Return the time from a checkpoint to the newest completion; None if a time is no date."""
    tzinfo = zone_of(zone)
    try:
        lag = parse_time(newest, tzinfo) - parse_time(read, tzinfo)
    except InvalidError:
        return None
    return max(0, round(lag.total_seconds() * 1000))


def checkpoint_in(extra: Mapping[str, str]) -> Checkpoint | None:
    """Return the checkpoint in the extra metadata of a commit; None if it is missing or empty."""
    for version in (Version.V2, Version.V1):
        key, reset = _KEYS[version]
        if extra.get(key):
            if version is Version.V1 and extra.get(POSITION):
                return Checkpoint(extra[POSITION], Version.V2, extra.get(reset), extra[key])
            return Checkpoint(extra[key], version, extra.get(reset))
    return None


def parse_override(text: str) -> Checkpoint:
    """Parse an override in Hudi's syntax for tables: the kind of time, a colon and the time."""
    parts = [part.strip() for part in text.split(":")]
    version = _OVERRIDE_VERSIONS.get(parts[0])
    if len(parts) != 2 or version is None or not _is_position(parts[1]):
        raise InvalidError(
            f"Illegal checkpoint key override `{text}`. Valid format is either "
            f"`{RESUME_REQUESTED}:<checkpoint value>` or `{RESUME_COMPLETED}:<checkpoint value>`"
        )
    return Checkpoint(parts[1], version, reset=text)


def resumed(
    last: Checkpoint | None,
    override: str | None,
    parse: Callable[[str], Checkpoint] = parse_override,
) -> Checkpoint | None:
    """Return the checkpoint to resume from: an override, unless `last` resulted from it.

    So a job that is restarted with the same arguments continues where it was. Without an override,
    `reset` is cleared, so that the same override can be given again later.
    """
    if override is None:
        return None if last is None else replace(last, reset=None)
    if last is not None and last.reset == override:
        return last
    return replace(parse(override), reset=override)


@dataclass(frozen=True, slots=True)
class TimelinePosition:
    """A checkpoint as a position on the timeline of a table.

    Instants that completed after `begin` are unread, except those in `already_read`. That set
    covers completions up to `through` only, so the next checkpoint must not be before `through`.
    """

    begin: str
    already_read: frozenset[str] = frozenset()
    through: str = ""


def position_of(checkpoint: Checkpoint, snapshot: Snapshot) -> TimelinePosition:
    """Return the position of a checkpoint on the timeline of its table."""
    if not _is_position(checkpoint.text):
        raise InvalidError(
            "the checkpoint is no instant time: it comes from another kind of source",
            checkpoint=checkpoint.text,
            version=checkpoint.version.name,
        )
    if not checkpoint.text.strip("0"):
        return TimelinePosition(EARLIEST)
    if checkpoint.version is Version.V2:
        return TimelinePosition(checkpoint.text)
    # Whatever was requested or completed after this time has completed after it.
    archived = snapshot.archived_after(checkpoint.text)
    return translated(checkpoint.text, (*archived, *snapshot.timeline.completed_writes))


def translated(requested_at: InstantTime, instants: Iterable[Instant]) -> TimelinePosition:
    """Return the position of a consumer that has read all writes requested up to a time.

    Writes that were requested later but completed earlier than that write are unread. Writes that
    were requested earlier and completed later may or may not have been read: they are read again,
    so that none is missed.
    """
    completions = [(i.completed_at, i.requested_at) for i in instants if i.completed_at is not None]
    through = next((completed for completed, at in completions if at == requested_at), None)
    if through is None:
        raise InvalidError(
            f"Unable to find completion time for {requested_at}: neither the active nor the "
            f"archived timeline has it. Say where to go on with `{RESUME_COMPLETED}:<time>`"
        )
    unread = [at for completed, at in completions if at > requested_at and completed <= through]
    if not unread:
        return TimelinePosition(through)
    begin = min(unread)
    already_read = [
        at for completed, at in completions if at <= requested_at and begin < completed <= through
    ]
    return TimelinePosition(begin, frozenset(already_read), through)


def _is_position(text: str) -> bool:
    return is_time(text) or (text.isdecimal() and not text.strip("0"))


# The checkpoints in the commits of a target table.

SOURCE = "lakewright.ingest.source"
BATCH = "lakewright.ingest.batch"


@dataclass(frozen=True, slots=True)
class CommittedCheckpoint:
    """A commit of a batch of a source, with its checkpoint."""

    instant: Instant
    metadata: CommitMetadata
    checkpoint: Checkpoint | None
    batch: str | None = None


def note(checkpoint: Checkpoint | None, *, batch: str, source: str | None = None) -> dict[str, str]:
    """Return the extra metadata for the commit of a batch; `batch` is a unique id."""
    return {
        **(checkpoint.as_extra() if checkpoint is not None else {}),
        BATCH: batch,
        **({SOURCE: source} if source is not None else {}),
    }


@dataclass
class CommittedCheckpoints:
    """Finds the newest committed checkpoint of a source; reads each commit once.

    `source` is the name of the source, None for the only source of a table.
    """

    source: str | None = None
    _last_snapshot: Snapshot | None = None
    _newest: CommittedCheckpoint | None = None

    def newest(self, snapshot: Snapshot) -> CommittedCheckpoint | None:
        """Return the newest committed checkpoint of the source in a snapshot."""
        latest = self._find(snapshot, self._last_snapshot)
        if self._newest is not None and self._is_uncertain(latest, snapshot):
            latest = self._newest = self._find(snapshot, None)
        self._newest = latest or self._newest
        # A new snapshot, which does not cache the commits that were read.
        self._last_snapshot = Snapshot(snapshot.storage, snapshot.config, snapshot.timeline)
        return self._newest

    def _is_uncertain(self, latest: CommittedCheckpoint | None, snapshot: Snapshot) -> bool:
        """Whether the commits since the last snapshot do not determine the newest checkpoint."""
        assert self._newest is not None
        if latest is None:
            # The last one was archived or rolled back. After a rollback, an older one is newest.
            return not _is_on_timeline(self._newest, snapshot)
        # The last snapshot contained a commit that completed later, but not this one.
        last_completed = self._newest.instant.completed_at or ""
        return (latest.instant.completed_at or "") < last_completed

    def _find(self, snapshot: Snapshot, base: Snapshot | None) -> CommittedCheckpoint | None:
        for instant, commit in commits_newest_first(snapshot, base):
            with errors_in_file(instant.file_name):
                checkpoint = self._checkpoint_of(instant, commit)
            if checkpoint is not None:
                return checkpoint
        return None

    def _checkpoint_of(
        self, instant: Instant, commit: CommitMetadata
    ) -> CommittedCheckpoint | None:
        extra: Mapping[str, str] = commit.extra
        if extra.get(SOURCE) != self.source:
            return None
        checkpoint = checkpoint_in(extra)
        if checkpoint is None and BATCH not in extra:
            return None
        return CommittedCheckpoint(instant, commit, checkpoint, extra.get(BATCH))


def _is_on_timeline(committed: CommittedCheckpoint, snapshot: Snapshot) -> bool:
    instant = snapshot.timeline.by_time.get(committed.instant.requested_at)
    return instant is not None and instant.is_completed


@dataclass
class CheckpointValidator:
    """Rejects a batch if the newest checkpoint is no longer the one after which it was read."""

    positions: CommittedCheckpoints
    base: CommittedCheckpoint | None

    def __post_init__(self) -> None:
        self.positions = replace(self.positions)

    def validate(self, current: Snapshot) -> None:
        """Raise ConflictError, with the unexpected commit, if the checkpoint has changed."""
        newest = self.positions.newest(current)
        if _time(newest) != _time(self.base):
            raise ConflictError(
                "another process committed a batch of this source, or a commit was rolled back: go "
                "on from the current checkpoint of the table",
                expected=_time(self.base),
                instant=_time(newest),
            )


def _time(committed: CommittedCheckpoint | None) -> str | None:
    return committed.instant.requested_at if committed is not None else None
