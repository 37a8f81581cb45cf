"""What lies in the folder of a table and is no part of it, by its name or kind. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from lakewright.table.doctor.evidence import Evidence
from lakewright.table.doctor.findings import Finding, Kind, Severity

_MOST_FINDINGS = 50


def passed_over(evidence: Evidence) -> Iterator[Finding]:
    """Files and folders that no listing shows."""
    for each in evidence.passed_over[:_MOST_FINDINGS]:
        yield Finding(
            Kind.PASSED_OVER,
            Severity.WARNING,
            f"readers and writers pass over something in the table's folder: {each.reason}",
            "move it out of the table; a folder that belongs to the table has to be in it, "
            "or mounted there",
            each.name,
            facts={"such": len(evidence.passed_over)},
        )
