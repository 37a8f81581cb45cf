"""Commands that run table services, plan them, and take plans back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from lakewright.cli.shared import (
    JsonOption,
    Later,
    MasterOption,
    OptionsFileOption,
    OptionsOption,
    PathArgument,
    example,
    exit_codes,
    group,
    parse_options,
)

if TYPE_CHECKING:
    from lakewright.cli import commands, printing
else:
    commands = Later("lakewright.cli.commands")
    printing = Later("lakewright.cli.printing")

work = group()

ScheduleOption = Annotated[
    bool, typer.Option("--schedule", help="Only put the plan on the timeline.")
]
ExecuteOption = Annotated[
    str | None,
    typer.Option(metavar="INSTANT", help="Only execute a plan that is on the timeline."),
]


@work.command(
    epilog=example(
        "lakewright compact data/trips",
        "lakewright compact data/trips --schedule -o hoodie.compaction.strategy=log_file_size",
        "lakewright compact data/trips --execute 20260131120000000",
    )
)
def compact(
    path: PathArgument,
    schedule: ScheduleOption = False,
    execute: ExecuteOption = None,
    option: OptionsOption = None,
    options_file: OptionsFileOption = None,
    master: MasterOption = "local[*]",
    as_json: JsonOption = False,
) -> None:
    """Fold log files into base files."""
    _run("compaction", path, schedule, execute, (option, options_file), master, as_json)


@work.command(
    epilog=example(
        "lakewright cluster data/trips -o hoodie.clustering.plan.strategy.sort.columns=city"
    )
)
def cluster(
    path: PathArgument,
    schedule: ScheduleOption = False,
    execute: ExecuteOption = None,
    option: OptionsOption = None,
    options_file: OptionsFileOption = None,
    master: MasterOption = "local[*]",
    as_json: JsonOption = False,
) -> None:
    """Put small files together, and rows in order."""
    _run("clustering", path, schedule, execute, (option, options_file), master, as_json)


@work.command(epilog=example("lakewright clean data/trips -o hoodie.clean.commits.retained=24"))
def clean(
    path: PathArgument,
    schedule: ScheduleOption = False,
    execute: ExecuteOption = None,
    option: OptionsOption = None,
    options_file: OptionsFileOption = None,
    master: MasterOption = "local[*]",
    as_json: JsonOption = False,
) -> None:
    """Delete files that no query of the retained commits reads."""
    _run("clean", path, schedule, execute, (option, options_file), master, as_json)


@work.command(epilog=example("lakewright archive data/trips -o hoodie.keep.max.commits=60"))
def archive(
    path: PathArgument,
    schedule: ScheduleOption = False,
    execute: ExecuteOption = None,
    option: OptionsOption = None,
    options_file: OptionsFileOption = None,
    master: MasterOption = "local[*]",
    as_json: JsonOption = False,
) -> None:
    """Move old instants from the timeline to history."""
    _run("archive", path, schedule, execute, (option, options_file), master, as_json)


def _run(
    name: str,
    path: str,
    schedule: bool,
    execute: str | None,
    given: tuple[list[str] | None, str | None],
    master: str,
    as_json: bool,
) -> None:
    with exit_codes():
        document = commands.run_service(
            path, name, parse_options(*given), schedule=schedule, execute=execute, master=master
        )
        printing.show(document, as_json=as_json)


@work.command(
    epilog=example("lakewright plan data/trips compaction", "lakewright plan data/trips clean")
)
def plan(
    path: PathArgument,
    service: Annotated[str, typer.Argument(metavar="SERVICE", help="Such as compaction.")],
    option: OptionsOption = None,
    options_file: OptionsFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """What a service would do now, and why not more."""
    with exit_codes():
        printing.show(
            commands.preview(path, service, parse_options(option, options_file)), as_json=as_json
        )


@work.command(
    epilog=example("lakewright cancel data/trips 20260131120000000 --reason 'make way' --wait 60")
)
def cancel(
    path: PathArgument,
    instant: Annotated[str, typer.Argument(metavar="INSTANT", help="The plan, by its instant.")],
    reason: Annotated[str, typer.Option(metavar="TEXT", help="Why; kept with the rollback.")] = "",
    user: Annotated[str, typer.Option(metavar="NAME", help="Who asks for it.")] = "",
    wait: Annotated[
        float,
        typer.Option(metavar="SECONDS", help="How long to wait for who executes it to stop."),
    ] = 0.0,
    option: OptionsOption = None,
    options_file: OptionsFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Take a cancellable plan off the timeline, or ask who executes it to stop."""
    with exit_codes():
        options = parse_options(option, options_file)
        document = commands.cancel_plan(
            path, options, instant, user=user, reason=reason, wait_s=wait
        )
        printing.show(document, as_json=as_json)
