"""What an examination finds, as values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Severity(StrEnum):
    """How bad it is: rows are wrong or may be lost; something is to be put right; good to know."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


class FindingKind(StrEnum):
    """What can be found, in the order in which it is told and repaired."""

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
    """One thing that is not as it should be.

    `safe` tells that a repair loses nothing, whoever else is at work, `loses_rows` that there is
    one by which rows are lost; `target` is what it is about: an instant, a partition or a file.
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
    """All that was found; notes do not make a table unwell."""

    findings: tuple[Finding, ...] = ()

    @property
    def is_healthy(self) -> bool:
        """Whether nothing is to be put right."""
        return all(each.severity is Severity.NOTE for each in self.findings)

    @property
    def repairable(self) -> tuple[Finding, ...]:
        """What can safely be put right."""
        return tuple(each for each in self.findings if each.safe)

    @property
    def repairable_by_force(self) -> tuple[Finding, ...]:
        """What can be put right if rows may be lost by it."""
        return tuple(each for each in self.findings if each.loses_rows)
