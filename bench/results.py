"""What a race brought, as values that go to JSON and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Measurement:
    """One counted step: seconds, several where it was done several times in a row."""

    round: int
    workload: str
    system: str
    seconds: tuple[float, ...]
    parts: Mapping[str, Sequence[float]] = field(default_factory=dict)
    peak_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Total:
    """How many rows there are, and a sum over them; None where systems may rightly differ."""

    rows: int
    checksum: int | None

    def with_change(self, incoming: Total, outgoing: Total) -> Total:
        """The total after a change, from the totals of what came and what went."""
        assert self.checksum is not None
        assert incoming.checksum is not None
        assert outgoing.checksum is not None
        return Total(
            self.rows + incoming.rows - outgoing.rows,
            self.checksum + incoming.checksum - outgoing.checksum,
        )

    def allows(self, actual: Total) -> bool:
        """Is this what was expected?"""
        return self.rows == actual.rows and self.checksum in {None, actual.checksum}


@dataclass(frozen=True, slots=True)
class Check:
    """What a system held after a workload, and what it should."""

    round: int
    workload: str
    system: str
    found: Total
    expected: Total

    @property
    def agrees(self) -> bool:
        """Are the rows right?"""
        return self.expected.allows(self.found)


@dataclass(frozen=True, slots=True)
class Failure:
    """A step that a system could not do."""

    round: int
    workload: str
    system: str
    error: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """Everything that a race brought."""

    facts: Mapping[str, Any]
    measurements: tuple[Measurement, ...]
    checks: tuple[Check, ...]
    failures: tuple[Failure, ...] = ()

    @property
    def is_sound(self) -> bool:
        """Did everything work, with the right rows?"""
        return not self.failures and all(check.agrees for check in self.checks)
