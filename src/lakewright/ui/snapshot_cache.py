"""Looking at a table again and again: what did not change is not asked for once more.

One look reads the properties and lists the timeline. Partitions are listed once, and then only
those that something has completed in since. What takes long is not done all over at every change.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from lakewright.errors import CorruptError, UnsupportedError
from lakewright.model.instant import Instant
from lakewright.services.base import METADATA_ONLY_RESULTS
from lakewright.services.runner import ServiceRunner
from lakewright.table.properties import read_optional
from lakewright.table.snapshot import DataFile, FilesByPartition, Snapshot, load_snapshot_and_files
from lakewright.ui.partitions import PartitionRow, partition_rows

Value = TypeVar("Value")

# Several panels ask at once, and all of them may see the same.
_SAME_MS = 500
# What took long is done anew after a pause that is so many times as long.
_PAUSES = 10
_LONG_MS = 1000


@dataclass(frozen=True)
class ListedSnapshot(Snapshot):
    """A snapshot whose data files were listed before: who asks for them again gets those."""

    listing: FilesByPartition = field(default_factory=dict, repr=False, compare=False)

    def files(
        self, partitions: Iterable[str] | None = None, *, exclude: Collection[str] = ()
    ) -> dict[str, list[DataFile]]:
        """See `Snapshot`."""
        if partitions is None:
            return {p: files for p, files in self.listing.items() if p not in exclude}
        return {p: self.listing[p] for p in sorted(set(partitions)) if p in self.listing}


@dataclass(frozen=True)
class CachedSnapshot:
    """A table as it was seen; `version` is another one whenever anything is different."""

    version: str
    snapshot: Snapshot


@dataclass(frozen=True)
class CachedListing:
    """The partitions of a table as they were seen at a version of it."""

    version: str
    snapshot: ListedSnapshot
    rows: dict[str, PartitionRow]


@dataclass(frozen=True)
class _CacheEntry(Generic[Value]):
    version: str
    value: Value
    ended_ms: int
    took_ms: int

    def is_fresh(self, version: str, now_ms: int) -> bool:
        """Whether it is of this version, or was too costly to be made again so soon."""
        if self.version == version:
            return True
        return self.took_ms > _LONG_MS and now_ms - self.ended_ms < _PAUSES * self.took_ms


class SnapshotCache:
    """One table under watch; threads may share it."""

    def __init__(self, runner: ServiceRunner) -> None:
        self.runner = runner
        self._looking = threading.Lock()
        self._listing = threading.Lock()
        self._seen: tuple[int, CachedSnapshot] | None = None
        self._files: _CacheEntry[CachedListing] | None = None
        self._derived: dict[str, _CacheEntry[object]] = {}
        self._deriving: dict[str, threading.Lock] = {}

    def snapshot(self) -> CachedSnapshot:
        """The table now, by its properties and timeline."""
        with self._looking:
            now = self.runner.clock.monotonic_ms()
            if self._seen is not None and now - self._seen[0] < _SAME_MS:
                return self._seen[1]
            found, names = load_snapshot_and_files(self.runner.storage)
            version = _version(found, names)
            last = self._seen[1] if self._seen is not None else None
            if last is None or last.version != version:
                known = found if last is None else found.with_cached_commits(last.snapshot)
                last = CachedSnapshot(version, known)
            self._seen = now, last
            return last

    def listing(self) -> CachedListing:
        """The partitions; listed anew only where something has completed since the last time."""
        with self._listing:
            seen = self.snapshot()
            kept = self._files
            if kept is not None and kept.version == seen.version:
                return kept.value
            changed = None
            if kept is not None:
                changed = changed_partitions(kept.value.snapshot, seen.snapshot)
                if changed is None and kept.is_fresh(seen.version, self._now()):
                    return kept.value
            return self._listed(seen, changed)

    def _listed(self, seen: CachedSnapshot, changed: frozenset[str] | None) -> CachedListing:
        began = self._now()
        # Nobody is asked for nothing.
        found = seen.snapshot.files(changed) if changed is None or changed else {}
        rows = {row.partition: row for row in partition_rows(seen.snapshot, found)}
        took = self._now() - began
        if changed is not None and self._files is not None:
            before = self._files.value
            listing = before.snapshot.listing
            found = {p: f for p, f in listing.items() if p not in changed} | found
            rows = {p: r for p, r in before.rows.items() if p not in changed} | rows
            took = self._files.took_ms
        snapshot = seen.snapshot
        listed = ListedSnapshot(
            snapshot.storage, snapshot.config, snapshot.timeline, snapshot._commits, listing=found
        )
        value = CachedListing(seen.version, listed, rows)
        self._files = _CacheEntry(seen.version, value, self._now(), took)
        return value

    def derived(self, name: str, version: str, make: Callable[[], Value]) -> Value:
        """What `make` gives, kept under a name for as long as the table is of this version."""
        with self._deriving.setdefault(name, threading.Lock()):
            kept = self._derived.get(name)
            if kept is None or not kept.is_fresh(version, self._now()):
                began = self._now()
                value = make()
                kept = _CacheEntry(version, value, self._now(), self._now() - began)
                self._derived[name] = kept
            return kept.value  # type: ignore[return-value] # a name stands for one kind of value

    def _now(self) -> int:
        return self.runner.clock.monotonic_ms()


def _version(found: Snapshot, names: Iterable[Instant]) -> str:
    told = hashlib.sha256()
    for instant in names:
        told.update(instant.file_name.encode())
    told.update(repr(sorted(found.config.properties.items())).encode())
    return told.hexdigest()[:16]


def changed_partitions(before: Snapshot, now: Snapshot) -> frozenset[str] | None:
    """The partitions whose files may be others than before; None if any may be.

    Files of what is pending are not seen, and what was archived stays visible.
    """
    if before.config.properties != now.config.properties:
        return None
    known = set(before.timeline)
    new = [i for i in now.timeline if i.is_completed and i not in known]
    writes = [i for i in new if i.is_write]
    others = [i for i in new if not i.is_write and i.action != "savepoint"]
    if any(i.action != "clean" for i in others):
        return None
    try:
        written = {p for commit in now.commits(writes) for p in commit.partitions}
        cleaned = {p for each in others for p in _cleaned(now, each)}
    except (CorruptError, UnsupportedError):
        return None
    return frozenset(written | cleaned)


def _cleaned(snapshot: Snapshot, instant: Instant) -> Iterable[str]:
    data = read_optional(snapshot.storage, snapshot.timeline_path(instant))
    return METADATA_ONLY_RESULTS[instant.action].parse(data).partitions if data else ()
