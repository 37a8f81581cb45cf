"""The command doctor: what is wrong with a table, and its repair."""

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
from lakewright.client.service_client import Options, service_runner, with_optimistic_concurrency
from lakewright.errors import InvalidError
from lakewright.table.doctor.doctor import examine, repair, to_repair
from lakewright.table.doctor.findings import Diagnosis, Finding, Severity
from lakewright.utils.terminal import ask, say

app = group()


@app.command(
    "doctor",
    epilog=example("lakewright doctor data/trips", "lakewright doctor data/trips --repair --yes"),
)
def doctor(
    path: PathArgument,
    repair: Annotated[
        bool, typer.Option("--repair", help="Put right what is safe, after asking.")
    ] = False,
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="With --repair: also roll back the newest write if its completed file is damaged. "
            "Its rows are gone then.",
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
            asking=not yes,
            as_json=as_json,
        )
    if not healthy:
        raise typer.Exit(UNWELL)


def examine_table(
    path: str, options: Options, *, repairing: bool, force: bool, asking: bool, as_json: bool
) -> bool:
    """Tell what is wrong with a table, and whether it is healthy in the end."""
    if force and not repairing:
        raise InvalidError("--force is for a repair: give --repair as well")
    writer = service_runner(path, with_optimistic_concurrency(options)).writer
    found = examine(writer.storage, writer.clock, writer.heartbeat)
    done: tuple[Finding, ...] | None = None
    wanted = to_repair(found, force=force)
    if repairing and wanted and (not asking or _agreed(wanted)):
        found = repair(writer, found, force=force)
        left = {(each.kind, each.target) for each in found.findings}
        done = tuple(each for each in wanted if (each.kind, each.target) not in left)
    if as_json:
        show(diagnosis_document(writer.storage.root, found, done), as_json=True)
    else:
        say(diagnosis_text(writer.storage.root, found, done))
    return found.is_healthy


def _agreed(wanted: Sequence[Finding]) -> bool:
    for each in wanted:
        say(_block(each), err=True)
    return ask("Put this right?")


def diagnosis_document(
    table: str, found: Diagnosis, done: Sequence[Finding] | None = None
) -> Document:
    """All that was found; `done` is what was put right before, if anybody wanted that."""
    repaired = {} if done is None else {"repaired": [finding_document(each) for each in done]}
    return {
        "table": table,
        "healthy": found.is_healthy,
        "findings": [finding_document(each) for each in found.findings],
        **repaired,
    }


def diagnosis_text(table: str, found: Diagnosis, done: Sequence[Finding] | None = None) -> str:
    """The same for people."""
    lines = [f"table: {table}"]
    lines += [f"repaired: {each.message}" + _at(each) for each in done or ()]
    lines += [_block(each) for each in found.findings]
    counts = Counter(each.severity for each in found.findings)
    told = ", ".join(_count(counts[each], each) for each in Severity if counts[each]) or "nothing"
    lines.append(f"{'healthy' if found.is_healthy else 'not healthy'}: {told} found")
    if found.repairable:
        count = len(found.repairable)
        lines.append(f"{count} of these can safely be put right: call it again with --repair")
    if found.repairable_by_force:
        count = len(found.repairable_by_force)
        lines.append(f"{count} can be put right with --repair --force: rows are lost by it")
    return "\n".join(lines)


def _count(number: int, word: str) -> str:
    return f"{number} {word}" + "s" * (number != 1)


def _block(finding: Finding) -> str:
    mark = " (safe to repair)" if finding.safe else ""
    head = f"{finding.severity}: {finding.message}"
    facts = [f"  {name.replace('_', ' ')}: {value}" for name, value in finding.facts.items()]
    target = [f"  at: {finding.target}"] if finding.target else []
    return "\n".join([head, *target, *facts, f"  to do{mark}: {finding.advice}"])


def _at(finding: Finding) -> str:
    return f" ({finding.target})" if finding.target else ""


def finding_document(finding: Finding) -> Document:
    """One thing that was found."""
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
