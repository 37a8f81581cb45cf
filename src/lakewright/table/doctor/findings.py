"""The result of an examination: findings with their severity, and the diagnosis."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Severity(StrEnum):
    """Error: rows are wrong or may be lost. Warning: something needs a repair. Note: to know."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


class FindingKind(StrEnum):
    """The kinds of findings, in the order in which they are reported and repaired."""

    PROPERTIES = "properties"
    PROPERTIES_BACKUP = "properties backup"
    HISTORY = "history"
    TIMELINE_FILE = "timeline file"
    CLOCK_ORDER = "clock order"
    DEAD_WRITE = "dead write"
    SILENT_WRITE = "silent write"
    DEAD_ROLLBACK = "dead rollback"
    DEAD_EXECUTION = "dead execution"
    METADATA_TABLE = "stale metadata table"
    PARTITION_METADATA = "partition metadata"
    UNLISTED_FILE = "unlisted file"
    FILE_SLICES = "file slices"
    MISSING_FILE = "missing file"
    EMPTY_FILE = "empty file"
    ORPHAN = "orphan files"
    STRAYS = "stray files"
    LEFTOVERS = "leftovers"
    LOCK = "lock file"
    PASSED_OVER = "passed over"


@dataclass(frozen=True, slots=True)
class Finding:
    """One problem of a table.

    `target` is what it is about: an instant, a partition or a file. `safe` means that a repair
    loses nothing, whatever other processes are running; `loses_rows` that a repair exists, but
    loses rows.
    """

    kind: FindingKind
    severity: Severity
    message: str
    advice: str
    target: str = ""
    safe: bool = False
    loses_rows: bool = False
    facts: Mapping[str, object] = field(default_factory=dict, hash=False)

    def __str__(self) -> str:
        return f"{self.severity}: {self.message}" + (f" ({self.target})" if self.target else "")


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """All findings of an examination; notes do not make a table unhealthy."""

    findings: tuple[Finding, ...] = ()

    @property
    def is_healthy(self) -> bool:
        """Whether nothing needs a repair."""
        return all(finding.severity is Severity.NOTE for finding in self.findings)

    @property
    def repairable(self) -> tuple[Finding, ...]:
        """The findings that can be repaired safely."""
        return tuple(finding for finding in self.findings if finding.safe)

    @property
    def repairable_by_force(self) -> tuple[Finding, ...]:
        """The findings that can be repaired if rows may be lost."""
        return tuple(finding for finding in self.findings if finding.loses_rows)
