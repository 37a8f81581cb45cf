"""What `doctor` does and tells."""

from __future__ import annotations

import typer

from lakewright.interfaces.cli.commands import Options, runner_at, several_writers
from lakewright.interfaces.cli.printing import Document, show
from lakewright.table.doctor.examine import examine
from lakewright.table.doctor.findings import Diagnosis, Finding
from lakewright.table.doctor.repair import repair


def examine_table(
    path: str, options: Options, *, repairing: bool, asking: bool, as_json: bool
) -> bool:
    """Tell what is wrong with a table, and whether it is healthy in the end."""
    writer = runner_at(path, several_writers(options)).writer
    found = examine(writer.storage, writer.clock, writer.heartbeat)
    if not (repairing and found.repairable):
        show(diagnosis_document(writer.storage.root, found), as_json=as_json)
        return found.is_healthy
    if asking and not _agreed(found):
        show(diagnosis_document(writer.storage.root, found), as_json=as_json)
        return False
    after = repair(writer, found)
    document = diagnosis_document(writer.storage.root, after)
    left = {(each.kind, each.target) for each in after.findings}
    done = [each for each in found.repairable if (each.kind, each.target) not in left]
    document["repaired"] = [finding_document(each) for each in done]
    show(document, as_json=as_json)
    return after.is_healthy


def _agreed(found: Diagnosis) -> bool:
    for each in found.repairable:
        typer.echo(f"{each}\n  to do: {each.advice}", err=True)
    return typer.confirm("Put this right?", err=True)


def diagnosis_document(table: str, found: Diagnosis) -> Document:
    """All that was found."""
    return {
        "table": table,
        "healthy": found.is_healthy,
        "findings": [finding_document(each) for each in found.findings],
    }


def finding_document(finding: Finding) -> Document:
    """One thing that was found."""
    return {
        "kind": finding.kind.value,
        "severity": finding.severity.value,
        "target": finding.target,
        "message": finding.message,
        "to_do": finding.advice,
        "safe_to_repair": finding.safe,
        "facts": dict(finding.facts),
    }
