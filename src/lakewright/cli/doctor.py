"""The command doctor: it prints the findings of an examination, and repairs on request."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Annotated

import typer

from lakewright.cli.common import (
    UNWELL,
    JsonOption,
    OptionsFileOption,
    OptionsOption,
    PathArgument,
    example,
    exit_codes,
    group,
    parse_options,
)
from lakewright.cli.output import Document, show
from lakewright.client.service_client import Options, service_runner
from lakewright.errors import InvalidError
from lakewright.table.doctor.doctor import examine, repair, to_repair
from lakewright.table.doctor.findings import Diagnosis, Finding, Severity
from lakewright.table.options import with_optimistic_concurrency
from lakewright.utils.terminal import confirm, say

app = group()


@app.command(
    "doctor",
    epilog=example("lakewright doctor data/trips", "lakewright doctor data/trips --repair --yes"),
)
def doctor(
    path: PathArgument,
    repair: Annotated[
        bool, typer.Option("--repair", help="Repair what is safe to repair, after asking.")
    ] = False,
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="With --repair: also roll back the newest write if its completed file is damaged. "
            "Its rows are deleted.",
        ),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    option: OptionsOption = None,
    options_file: OptionsFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Find damage in a table, and repair what is safe to repair. Exits with 10 if there is any."""
    with exit_codes():
        healthy = examine_table(
            path,
            parse_options(option, options_file),
            repairing=repair,
            force=force,
            confirm=not yes,
            as_json=as_json,
        )
    if not healthy:
        raise typer.Exit(UNWELL)


def examine_table(
    path: str, options: Options, *, repairing: bool, force: bool, confirm: bool, as_json: bool
) -> bool:
    """Print the findings on a table, after a repair if requested; return whether it is healthy."""
    if force and not repairing:
        raise InvalidError("--force is for a repair: give --repair as well")
    writer = service_runner(path, with_optimistic_concurrency(options)).writer
    diagnosis = examine(writer.storage, writer.clock, writer.heartbeat, writer.lock)
    repaired: tuple[Finding, ...] | None = None
    repairable = to_repair(diagnosis, force=force)
    if repairing and repairable and (not confirm or _confirm(repairable)):
        diagnosis = repair(writer, diagnosis, force=force)
        remaining = {(finding.kind, finding.target) for finding in diagnosis.findings}
        repaired = tuple(item for item in repairable if (item.kind, item.target) not in remaining)
    if as_json:
        show(diagnosis_document(writer.storage.root, diagnosis, repaired), as_json=True)
    else:
        say(diagnosis_text(writer.storage.root, diagnosis, repaired))
    return diagnosis.is_healthy


def _confirm(findings: Sequence[Finding]) -> bool:
    for finding in findings:
        say(_finding_text(finding), err=True)
    return confirm("Repair this?")


def diagnosis_document(
    table: str, diagnosis: Diagnosis, repaired: Sequence[Finding] | None = None
) -> Document:
    """Return the document of a diagnosis; `repaired` is None if no repair was requested."""
    repairs = (
        {}
        if repaired is None
        else {"repaired": [finding_document(finding) for finding in repaired]}
    )
    return {
        "table": table,
        "healthy": diagnosis.is_healthy,
        "findings": [finding_document(finding) for finding in diagnosis.findings],
        **repairs,
    }


def diagnosis_text(
    table: str, diagnosis: Diagnosis, repaired: Sequence[Finding] | None = None
) -> str:
    """Return a diagnosis as text; `repaired` are the repaired findings."""
    lines = [f"table: {table}"]
    lines += [f"repaired: {finding.message}" + _target_text(finding) for finding in repaired or ()]
    lines += [_finding_text(finding) for finding in diagnosis.findings]
    counts = Counter(finding.severity for finding in diagnosis.findings)
    total = ", ".join(_count(counts[item], item) for item in Severity if counts[item]) or "nothing"
    lines.append(f"{'healthy' if diagnosis.is_healthy else 'not healthy'}: {total} found")
    if diagnosis.repairable:
        count = len(diagnosis.repairable)
        lines.append(f"{count} of these can safely be repaired: run it again with --repair")
    if diagnosis.repairable_by_force:
        count = len(diagnosis.repairable_by_force)
        lines.append(f"{count} can be repaired with --repair --force, which deletes rows")
    return "\n".join(lines)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + "s" * (number != 1)


def _finding_text(finding: Finding) -> str:
    safe = " (safe to repair)" if finding.safe else ""
    head = f"{finding.severity}: {finding.message}"
    facts = [f"  {name.replace('_', ' ')}: {value}" for name, value in finding.facts.items()]
    target = [f"  at: {finding.target}"] if finding.target else []
    return "\n".join([head, *target, *facts, f"  to do{safe}: {finding.advice}"])


def _target_text(finding: Finding) -> str:
    return f" ({finding.target})" if finding.target else ""


def finding_document(finding: Finding) -> Document:
    """Return the document of a finding."""
    return {
        "kind": finding.kind.value,
        "severity": finding.severity.value,
        "target": finding.target,
        "message": finding.message,
        "to_do": finding.advice,
        "safe_to_repair": finding.safe,
        "repair_loses_rows": finding.loses_rows,
        "facts": dict(finding.facts),
    }
