"""`lakewright ttl`: the settings and policies of partition TTL.

What the commands do is in `ttl.py`, which is imported by the first that runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from lakewright.cli.shared import (
    JsonOption,
    Later,
    OptionsFileOption,
    OptionsOption,
    PathArgument,
    example,
    exit_codes,
    parse_options,
)

if TYPE_CHECKING:
    from lakewright.cli import printing
    from lakewright.cli import ttl as commands
else:
    commands = Later("lakewright.cli.ttl")
    printing = Later("lakewright.cli.printing")

ttl = typer.Typer(
    help="Partitions that leave the table when they are old.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

# Where --json is the policy to save, another name asks for JSON.
AsJsonOption = Annotated[bool, typer.Option("--as-json", help="Print JSON.")]


@ttl.command("on", epilog=example("lakewright ttl on data/trips --run-inline true"))
def on(
    path: PathArgument,
    run_inline: Annotated[
        str,
        typer.Option(
            "--runInline",
            "--run-inline",
            metavar="true|false",
            help="Whether the trigger is checked after each write.",
        ),
    ] = "true",
    option: OptionsOption = None,
    options_file: OptionsFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Put the policies of a table in force."""
    with exit_codes():
        found = commands.enable(path, parse_options(option, options_file), run_inline)
        printing.show(found, as_json=as_json)


@ttl.command("off", epilog=example("lakewright ttl off data/trips"))
def off(
    path: PathArgument,
    option: OptionsOption = None,
    options_file: OptionsFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Put the policies of a table out of force; they stay saved."""
    with exit_codes():
        printing.show(commands.disable(path, parse_options(option, options_file)), as_json=as_json)


@ttl.command(
    "settings",
    epilog=example(
        "lakewright ttl settings data/trips --trigger-strategy NUM_COMMITS --trigger-value 10"
    ),
)
def settings(
    path: PathArgument,
    trigger_strategy: Annotated[
        str | None,
        typer.Option(
            "--triggerStrategy", "--trigger-strategy", help="NUM_COMMITS or TIME_ELAPSED."
        ),
    ] = None,
    trigger_value: Annotated[
        str | None,
        typer.Option(
            "--triggerValue", "--trigger-value", help="How many commits, or how many days."
        ),
    ] = None,
    resolve_conflicts_by: Annotated[
        str | None,
        typer.Option("--resolveConflictsBy", "--resolve-conflicts-by", help="MAX_TTL or MIN_TTL."),
    ] = None,
    option: OptionsOption = None,
    options_file: OptionsFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Change settings; whether TTL is on stays as it is."""
    with exit_codes():
        found = commands.change_settings(
            path,
            parse_options(option, options_file),
            trigger_strategy=trigger_strategy,
            trigger_value=trigger_value,
            resolve_conflicts_by=resolve_conflicts_by,
        )
        printing.show(found, as_json=as_json)


@ttl.command("show", epilog=example("lakewright ttl show data/trips --json"))
def show(
    path: PathArgument,
    option: OptionsOption = None,
    options_file: OptionsFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """The settings and policies of a table."""
    with exit_codes():
        printing.show(commands.show_ttl(path, parse_options(option, options_file)), as_json=as_json)


@ttl.command(
    "save",
    epilog=example(
        'lakewright ttl save data/trips --json \'{"spec": "*", "value": 30, "units": "DAYS"}\''
    ),
)
def save(
    path: PathArgument,
    policy: Annotated[
        str,
        typer.Option(
            "--json",
            metavar="POLICY",
            help='Such as {"spec": "*", "level": "PARTITION", "units": "DAYS", "value": 30}.',
        ),
    ],
    option: OptionsOption = None,
    options_file: OptionsFileOption = None,
    as_json: AsJsonOption = False,
) -> None:
    """Add a policy, or put it in the place of the one with the same spec."""
    with exit_codes():
        printing.show(
            commands.save_policy(path, parse_options(option, options_file), policy), as_json=as_json
        )


@ttl.command("delete", epilog=example("lakewright ttl delete data/trips --spec '*'"))
def delete(
    path: PathArgument,
    spec: Annotated[str, typer.Option("--spec", metavar="SPEC", help="The spec of the policy.")],
    option: OptionsOption = None,
    options_file: OptionsFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Take out the policy with a spec."""
    with exit_codes():
        printing.show(
            commands.delete_policy(path, parse_options(option, options_file), spec), as_json=as_json
        )


@ttl.command("empty", epilog=example("lakewright ttl empty data/trips"))
def empty(
    path: PathArgument,
    option: OptionsOption = None,
    options_file: OptionsFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Take out all policies."""
    with exit_codes():
        printing.show(
            commands.clear_policies(path, parse_options(option, options_file)), as_json=as_json
        )


@ttl.command("run", epilog=example("lakewright ttl run data/trips"))
def run(
    path: PathArgument,
    option: OptionsOption = None,
    options_file: OptionsFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Take the expired partitions out of the table."""
    with exit_codes():
        printing.show(commands.run_ttl(path, parse_options(option, options_file)), as_json=as_json)


@ttl.command("explain", epilog=example("lakewright ttl explain data/trips"))
def explain(
    path: PathArgument,
    option: OptionsOption = None,
    options_file: OptionsFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """What would become of each partition now, and why; nothing is written."""
    with exit_codes():
        printing.show(
            commands.explain_ttl(path, parse_options(option, options_file)), as_json=as_json
        )


@ttl.command("update", epilog=example("lakewright ttl update data/trips"))
def update(
    path: PathArgument,
    option: OptionsOption = None,
    options_file: OptionsFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write into each partition when it was last written to, once before TTL is first used."""
    with exit_codes():
        printing.show(
            commands.refresh_last_update_times(path, parse_options(option, options_file)),
            as_json=as_json,
        )
