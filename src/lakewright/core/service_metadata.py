"""What cleans, rollbacks, savepoints, restores and index builds record when they complete."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from lakewright.core.plans import IndexPartition, InstantRef

# From which request on the table can be read, where the policy of a clean does not tell.
READABLE_FROM = "lakewright.clean.readable.from"


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanedPartition:
    """What a clean did in one partition; files are bare names."""

    partition: str
    policy: str
    patterns: tuple[str, ...] = ()
    deleted: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()
    is_partition_deleted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanMetadata:
    """What a clean deleted, and the earliest instant it kept readable."""

    started_at: str
    earliest_to_retain: str
    took_ms: int = 0
    files_deleted: int = 0
    last_completed: str = ""
    partitions: Mapping[str, CleanedPartition] = field(default_factory=dict, hash=False)
    version: int | None = 2
    bootstrap_partitions: Mapping[str, CleanedPartition] = field(default_factory=dict, hash=False)
    extra: Mapping[str, str] = field(default_factory=dict, hash=False)

    @property
    def readable_from(self) -> str | None:
        """The earliest request as of which the table can be read; None if nothing is gone."""
        return max(self.earliest_to_retain, self.extra.get(READABLE_FROM, "")) or None


@dataclass(frozen=True, slots=True, kw_only=True)
class RolledBackPartition:
    """What a rollback deleted in one partition, by absolute path.

    `rollback_logs` and `failed_logs` map log files to sizes; only tables before version 8 use them.
    """

    partition: str
    deleted: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()
    rollback_logs: Mapping[str, int] = field(default_factory=dict, hash=False)
    failed_logs: Mapping[str, int] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class RollbackMetadata:
    """What a rollback took back; `commits` and `instants` name the same instants twice.

    `caused_by` and `reason` are those of its plan.
    """

    started_at: str
    took_ms: int = 0
    files_deleted: int = 0
    commits: tuple[str, ...] = ()
    partitions: Mapping[str, RolledBackPartition] = field(default_factory=dict, hash=False)
    version: int | None = 1
    instants: tuple[InstantRef, ...] = ()
    caused_by: str | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedPartition:
    """The base and log files, by bare name, that a savepoint protects in one partition."""

    partition: str
    files: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SavepointMetadata:
    """Who saved the table, when (epoch milliseconds), and which files must stay."""

    saved_by: str
    saved_at: int
    comments: str = ""
    partitions: Mapping[str, SavedPartition] = field(default_factory=dict, hash=False)
    version: int | None = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreMetadata:
    """What a restore took back: one or more rollbacks per instant."""

    started_at: str
    took_ms: int = 0
    commits: tuple[str, ...] = ()
    rollbacks: Mapping[str, tuple[RollbackMetadata, ...]] = field(default_factory=dict, hash=False)
    version: int | None = 1
    instants: tuple[InstantRef, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexCommitMetadata:
    """The metadata partitions that an indexing action has built."""

    partitions: tuple[IndexPartition, ...] = ()
    operation: str | None = None
    version: int | None = 1
