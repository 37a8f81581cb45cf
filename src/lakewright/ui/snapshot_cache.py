"""A cache for a table that the page polls.

Each poll reads the table properties and lists the timeline. All partitions are listed once; later
only those in which an instant has completed since. Results that are slow to compute are not
computed again at every change of the table.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from lakewright.errors import CorruptError, UnsupportedError
from lakewright.model.instant import Action, Instant
from lakewright.services.base import METADATA_ONLY_RESULTS
from lakewright.services.runner import ServiceRunner
from lakewright.table.properties import read_optional
from lakewright.table.snapshot import DataFile, FilesByPartition, Snapshot, load_snapshot_and_files
from lakewright.ui.partitions import PartitionRow, partition_rows

Value = TypeVar("Value")

# Several panels send requests at the same time; all of them share one snapshot.
_REUSE_MS = 500
# A value that took longer than _SLOW_MS is computed again only after this many times as long.
_PAUSE_FACTOR = 10
_SLOW_MS = 1000


@dataclass(frozen=True)
class ListedSnapshot(Snapshot):
    """A snapshot that returns the data files of an earlier listing instead of listing again."""

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
    """A snapshot and its version, which differs if the properties or the timeline differ."""

    version: str
    snapshot: Snapshot


@dataclass(frozen=True)
class CachedListing:
    """The partitions of a table and their data files at one version."""

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
        """Whether it is of this version, or was too slow to compute to be replaced this soon."""
        if self.version == version:
            return True
        return self.took_ms > _SLOW_MS and now_ms - self.ended_ms < _PAUSE_FACTOR * self.took_ms


class SnapshotCache:
    """The cached snapshot, listing and derived values of one table; threads may share it."""

    def __init__(self, runner: ServiceRunner) -> None:
        self.runner = runner
        self._snapshot_lock = threading.Lock()
        self._listing_lock = threading.Lock()
        # The monotonic time of the last load, and the snapshot.
        self._loaded: tuple[int, CachedSnapshot] | None = None
        self._cached_listing: _CacheEntry[CachedListing] | None = None
        self._derived: dict[str, _CacheEntry[object]] = {}
        self._derived_locks: dict[str, threading.Lock] = {}

    def snapshot(self) -> CachedSnapshot:
        """The current snapshot; loaded at most every `_REUSE_MS` milliseconds."""
        with self._snapshot_lock:
            now = self.runner.clock.monotonic_ms()
            if self._loaded is not None and now - self._loaded[0] < _REUSE_MS:
                return self._loaded[1]
            loaded, instants = load_snapshot_and_files(self.runner.storage)
            version = _version(loaded, instants)
            cached = self._loaded[1] if self._loaded is not None else None
            if cached is None or cached.version != version:
                current = loaded if cached is None else loaded.with_cached_commits(cached.snapshot)
                cached = CachedSnapshot(version, current)
            self._loaded = now, cached
            return cached

    def listing(self) -> CachedListing:
        """The partitions; lists only those in which an instant completed since the last call."""
        with self._listing_lock:
            current = self.snapshot()
            cached = self._cached_listing
            if cached is not None and cached.version == current.version:
                return cached.value
            changed = None
            if cached is not None:
                changed = changed_partitions(cached.value.snapshot, current.snapshot)
                if changed is None and cached.is_fresh(current.version, self._now()):
                    return cached.value
            return self._list(current, changed)

    def _list(self, current: CachedSnapshot, changed: frozenset[str] | None) -> CachedListing:
        """List the changed partitions, or all if None, and store the merged listing."""
        started = self._now()
        # An empty set of changed partitions needs no call to the storage.
        files = current.snapshot.files(changed) if changed is None or changed else {}
        rows = {row.partition: row for row in partition_rows(current.snapshot, files)}
        took = self._now() - started
        if changed is not None and self._cached_listing is not None:
            previous = self._cached_listing.value
            listing = previous.snapshot.listing
            files = {p: f for p, f in listing.items() if p not in changed} | files
            rows = {p: r for p, r in previous.rows.items() if p not in changed} | rows
            # `took_ms` stays the time of the last full listing.
            took = self._cached_listing.took_ms
        snapshot = current.snapshot
        listed = ListedSnapshot(
            snapshot.storage, snapshot.config, snapshot.timeline, snapshot._commits, listing=files
        )
        value = CachedListing(current.version, listed, rows)
        self._cached_listing = _CacheEntry(current.version, value, self._now(), took)
        return value

    def derived(self, name: str, version: str, make: Callable[[], Value]) -> Value:
        """Return the result of `make`, cached under a name for one version of the table."""
        with self._derived_locks.setdefault(name, threading.Lock()):
            cached = self._derived.get(name)
            if cached is None or not cached.is_fresh(version, self._now()):
                started = self._now()
                value = make()
                cached = _CacheEntry(version, value, self._now(), self._now() - started)
                self._derived[name] = cached
            return cached.value  # type: ignore[return-value] # a name has values of one type

    def _now(self) -> int:
        return self.runner.clock.monotonic_ms()


def _version(snapshot: Snapshot, instants: Iterable[Instant]) -> str:
    digest = hashlib.sha256()
    for instant in instants:
        digest.update(instant.file_name.encode())
    digest.update(repr(sorted(snapshot.config.properties.items())).encode())
    return digest.hexdigest()[:16]


def changed_partitions(before: Snapshot, now: Snapshot) -> frozenset[str] | None:
    """The partitions whose visible files may differ between two snapshots; None if any may.

    Pending instants do not matter, because their files are not visible; nor do archived ones,
    because their files stay visible.
    """
    if before.config.properties != now.config.properties:
        return None
    previous = set(before.timeline)
    completed = [i for i in now.timeline if i.is_completed and i not in previous]
    writes = [i for i in completed if i.is_write]
    others = [i for i in completed if not i.is_write and i.action != Action.SAVEPOINT]
    if any(i.action != Action.CLEAN for i in others):
        return None
    try:
        written = {p for commit in now.commits(writes) for p in commit.partitions}
        cleaned = {p for clean in others for p in _cleaned_partitions(now, clean)}
    except (CorruptError, UnsupportedError):
        return None
    return frozenset(written | cleaned)


def _cleaned_partitions(snapshot: Snapshot, instant: Instant) -> Iterable[str]:
    data = read_optional(snapshot.storage, snapshot.timeline_path(instant))
    return METADATA_ONLY_RESULTS[instant.action].parse(data).partitions if data else ()
