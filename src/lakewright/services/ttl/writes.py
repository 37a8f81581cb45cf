"""When rows were last written to each partition, by what writes have recorded. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from lakewright.core.commits import SERVICE_OPERATIONS, CommitMetadata
from lakewright.core.instant import Instant, full_time
from lakewright.core.plans import SERVICE_KEY
from lakewright.services.ttl.plan import Reference, Source

_DELETE_PARTITION = "DELETE_PARTITION"


@dataclass(frozen=True, slots=True)
class Recorded:
    """A completed write of rows, and where it was found."""

    instant: Instant
    commit: CommitMetadata
    source: Source

    @property
    def reference(self) -> Reference:
        """Its completion: readers see the rows from then on."""
        time = self.instant.completed_at or self.instant.requested_at
        return Reference(full_time(time), self.source)


def writes_rows(commit: CommitMetadata) -> bool:
    """Whether a write brings or deletes rows; services only move them.

    A write that does not tell what it was is taken for one that does.
    """
    operation = (commit.operation or "").upper()
    if operation == _DELETE_PARTITION:
        return True
    service = operation in SERVICE_OPERATIONS or SERVICE_KEY in commit.extra
    return not service and not commit.compacted


@dataclass(frozen=True, slots=True)
class Writes:
    """The last write to each partition, and the first one since it was last emptied, if it was.

    `first` is the first write to each, whether it was ever emptied or not.
    """

    updated: Mapping[str, Reference] = field(default_factory=dict)
    born: Mapping[str, Reference] = field(default_factory=dict)
    first: Mapping[str, Reference] = field(default_factory=dict)


def writes_of(recorded: Iterable[Recorded]) -> Writes:
    """What writes of rows tell together, in whatever order they are given."""
    updated: dict[str, Reference] = {}
    born: dict[str, Reference] = {}
    first: dict[str, Reference] = {}
    emptied: set[str] = set()
    for each in sorted(recorded, key=lambda r: (r.reference.at, r.instant.requested_at)):
        reference = each.reference
        # An overwrite of the table also leaves nothing in those that it does not write to.
        left = each.commit.replaced.keys() - each.commit.stats.keys()
        emptied |= left
        born |= dict.fromkeys(left, reference)
        for partition in each.commit.stats:
            updated[partition] = reference
            first.setdefault(partition, reference)
            if partition in emptied:
                emptied.discard(partition)
                born[partition] = reference
    return Writes(updated, born, first)
