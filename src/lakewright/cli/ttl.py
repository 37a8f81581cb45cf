"""The commands of `lakewright ttl`: settings, policies and runs of partition TTL."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

from lakewright.cli.common import (
    JsonOption,
    OptionsFileOption,
    OptionsOption,
    PathArgument,
    example,
    exit_codes,
    group,
    parse_options,
)
from lakewright.cli.output import Document
from lakewright.cli.output import show as print_document
from lakewright.client.documents import decision_document, outcome_document, ttl_settings_document
from lakewright.client.service_client import Options, service_runner
from lakewright.client.ttl import TableTtl, TtlConfig, update_with_bar
from lakewright.errors import InvalidError
from lakewright.options import parse_bool
from lakewright.table.options import with_optimistic_concurrency

_Action = Callable[[str, Options], Document]

app = group("Manage partition TTL: delete partitions when they are old.")

# For `save`, whose --json is the policy.
AsJsonOption = Annotated[bool, typer.Option("--as-json", help="Print JSON.")]


def _command(name: str, *flags: str) -> Callable[[_Action], _Action]:
    """Register a command that needs only the table; its help is the docstring of its action."""

    def register(action: _Action) -> _Action:
        sample = " ".join(("lakewright ttl", name, "data/trips", *flags))

        @app.command(name, help=action.__doc__, epilog=example(sample))
        def command(
            path: PathArgument,
            option: OptionsOption = None,
            options_file: OptionsFileOption = None,
            as_json: JsonOption = False,
        ) -> None:
            with exit_codes():
                document = action(path, parse_options(option, options_file))
                print_document(document, as_json=as_json)

        return action

    return register


@app.command("on", epilog=example("lakewright ttl on data/trips --run-inline true"))
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
    """Enable TTL: the policies take effect."""
    with exit_codes():
        document = _enable(path, parse_options(option, options_file), run_inline)
        print_document(document, as_json=as_json)


@_command("off")
def _disable(path: str, options: Options) -> Document:
    """Disable TTL; the policies stay saved."""
    return _document(path, _ttl(path, options).disable())


@app.command(
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
    """Change settings; TTL stays enabled or disabled."""
    with exit_codes():
        document = _change_settings(
            path,
            parse_options(option, options_file),
            trigger_strategy=trigger_strategy,
            trigger_value=trigger_value,
            resolve_conflicts_by=resolve_conflicts_by,
        )
        print_document(document, as_json=as_json)


@_command("show", "--json")
def _show(path: str, options: Options) -> Document:
    """Show settings and policies."""
    return _document(path, _ttl(path, options).config)


@app.command(
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
    """Add a policy, or replace the one with the same spec."""
    with exit_codes():
        print_document(
            _save_policy(path, parse_options(option, options_file), policy), as_json=as_json
        )


@app.command("delete", epilog=example("lakewright ttl delete data/trips --spec '*'"))
def delete(
    path: PathArgument,
    spec: Annotated[str, typer.Option("--spec", metavar="SPEC", help="The spec of the policy.")],
    option: OptionsOption = None,
    options_file: OptionsFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Delete the policy with a spec."""
    with exit_codes():
        print_document(
            _delete_policy(path, parse_options(option, options_file), spec), as_json=as_json
        )


@_command("empty")
def _clear_policies(path: str, options: Options) -> Document:
    """Delete all policies."""
    return _document(path, _ttl(path, options).clear_policies())


@_command("run")
def _run(path: str, options: Options) -> Document:
    """Delete the expired partitions."""
    runner = service_runner(path, with_optimistic_concurrency(options))
    return {"table": runner.storage.root, **outcome_document(runner.run("ttl"))}


@_command("explain")
def _explain(path: str, options: Options) -> Document:
    """Show which partitions would be deleted now, and why; changes nothing."""
    ttl = _ttl(path, options)
    decisions = ttl.explain(service_runner(path, options).options)
    return {
        "table": ttl.storage.root,
        "enabled": bool(ttl.config.settings.enabled),
        "partitions": [decision_document(decision) for decision in decisions],
    }


@_command("update")
def _refresh_last_update_times(path: str, options: Options) -> Document:
    """Write the last update time into each partition, once before TTL is first enabled."""
    ttl = _ttl(path, options)
    return {"table": ttl.storage.root, "updated_partitions": update_with_bar(ttl)}


def _enable(path: str, options: Options, run_inline: str) -> Document:
    """Enable TTL."""
    try:
        inline = parse_bool(run_inline)
    except ValueError as error:
        raise InvalidError("--runInline is true or false", given=run_inline) from error
    return _document(path, _ttl(path, options).enable(run_inline=inline))


def _change_settings(
    path: str,
    options: Options,
    *,
    trigger_strategy: str | None,
    trigger_value: str | None,
    resolve_conflicts_by: str | None,
) -> Document:
    """Change the settings that are not None."""
    config = _ttl(path, options).configure(
        trigger_strategy=trigger_strategy,
        trigger_value=trigger_value,
        resolve_conflicts_by=resolve_conflicts_by,
    )
    return _document(path, config)


def _save_policy(path: str, options: Options, policy: str) -> Document:
    """Add or replace a policy."""
    return _document(path, _ttl(path, options).save(policy))


def _delete_policy(path: str, options: Options, spec: str) -> Document:
    """Delete the policy with a spec."""
    return _document(path, _ttl(path, options).delete(spec))


def _ttl(path: str, options: Options) -> TableTtl:
    runner = service_runner(path, options)
    return TableTtl.for_table(runner.storage, runner.options)


def _document(path: str, config: TtlConfig) -> Document:
    policies = [policy.document() for policy in config.policies]
    return {"table": path, **ttl_settings_document(config.settings), "policies": policies}
