"""Examining a table: load what tells of it, and let every check look at that."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from lakewright.clock import Clock
from lakewright.core.table_config import TableConfig
from lakewright.errors import CorruptError
from lakewright.format.properties import REQUIRED_KEYS
from lakewright.storage.base import Storage
from lakewright.table.doctor import file_checks, name_checks, timeline_checks
from lakewright.table.doctor.evidence import Evidence, load_evidence
from lakewright.table.doctor.findings import Diagnosis, Finding, Kind, Severity
from lakewright.table.properties import PROPERTIES, load_properties
from lakewright.table.settings import HeartbeatSettings

CHECKS: tuple[Callable[[Evidence], Iterator[Finding]], ...] = (
    timeline_checks.backup,
    timeline_checks.history,
    timeline_checks.unreadable,
    timeline_checks.clock_order,
    timeline_checks.pending,
    timeline_checks.metadata_table,
    file_checks.partition_metadata,
    file_checks.unlisted_files,
    file_checks.unsliced,
    file_checks.missing_files,
    file_checks.orphans,
    file_checks.leftovers,
    file_checks.lock,
    name_checks.passed_over,
)


def examine(
    storage: Storage, clock: Clock, heartbeat: HeartbeatSettings | None = None
) -> Diagnosis:
    """Look at a table and tell what is wrong with it; nothing is changed.

    Raises:
        InvalidError: there is no table.
        UnsupportedError: the table is of a version or kind that cannot be examined.
    """
    try:
        TableConfig.from_properties(load_properties(storage))
    except CorruptError as error:
        return Diagnosis((_damaged(error),))
    evidence = load_evidence(storage, clock, heartbeat or HeartbeatSettings())
    found = (finding for check in CHECKS for finding in check(evidence))
    order = list(Kind)
    return Diagnosis(tuple(sorted(found, key=lambda f: (order.index(f.kind), f.target))))


def _damaged(error: CorruptError) -> Finding:
    return Finding(
        Kind.PROPERTIES,
        Severity.ERROR,
        f"the table's properties cannot be used: {error.message}",
        "bring the file back from a copy. If there is none, make a table elsewhere with the name, "
        "type, key, partition and ordering fields and options of this one (`lakewright create`), "
        "and copy its file; nothing else was examined",
        PROPERTIES,
        facts={**error.facts, "needed": list(REQUIRED_KEYS)},
    )
