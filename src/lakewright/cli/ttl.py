"""What the commands of `lakewright ttl` do: they give documents, which `printing.py` shows."""

from __future__ import annotations

from lakewright.cli.printing import Document
from lakewright.client.documents import decision_document, outcome_document
from lakewright.client.service_client import Options, service_runner, with_optimistic_concurrency
from lakewright.client.ttl import TableTtl, TtlConfig, update_with_bar
from lakewright.errors import InvalidError
from lakewright.options import parse_bool


def enable(path: str, options: Options, run_inline: str) -> Document:
    """Put the policies in force."""
    try:
        inline = parse_bool(run_inline)
    except ValueError as error:
        raise InvalidError("--runInline is true or false", given=run_inline) from error
    return _document(path, _ttl(path, options).on(run_inline=inline))


def disable(path: str, options: Options) -> Document:
    """Put the policies out of force."""
    return _document(path, _ttl(path, options).off())


def change_settings(
    path: str,
    options: Options,
    *,
    trigger_strategy: str | None,
    trigger_value: str | None,
    resolve_conflicts_by: str | None,
) -> Document:
    """Change the settings that are given."""
    changed = _ttl(path, options).settings(
        trigger_strategy=trigger_strategy,
        trigger_value=trigger_value,
        resolve_conflicts_by=resolve_conflicts_by,
    )
    return _document(path, changed)


def show_ttl(path: str, options: Options) -> Document:
    """The settings and policies."""
    return _document(path, _ttl(path, options).show())


def save_policy(path: str, options: Options, policy: str) -> Document:
    """Add or replace a policy."""
    return _document(path, _ttl(path, options).save(policy))


def delete_policy(path: str, options: Options, spec: str) -> Document:
    """Take out a policy."""
    return _document(path, _ttl(path, options).delete(spec))


def clear_policies(path: str, options: Options) -> Document:
    """Take out all policies."""
    return _document(path, _ttl(path, options).empty())


def run_ttl(path: str, options: Options) -> Document:
    """Take the expired partitions out."""
    runner = service_runner(path, with_optimistic_concurrency(options))
    return {"table": runner.storage.root, **outcome_document(runner.run("ttl"))}


def explain_ttl(path: str, options: Options) -> Document:
    """What would become of each partition."""
    ttl = _ttl(path, options)
    verdicts = ttl.explain(service_runner(path, options).options)
    return {
        "table": ttl.storage.root,
        "enabled": bool(ttl.show().settings.enabled),
        "partitions": [decision_document(each) for each in verdicts],
    }


def refresh_last_update_times(path: str, options: Options) -> Document:
    """Fill in when each partition was last written to, with a bar on the terminal."""
    ttl = _ttl(path, options)
    return {"table": ttl.storage.root, "updated_partitions": update_with_bar(ttl)}


def _ttl(path: str, options: Options) -> TableTtl:
    runner = service_runner(path, options)
    return TableTtl.for_table(runner.storage, runner.options)


def _document(path: str, shown: TtlConfig) -> Document:
    settings = shown.settings
    return {
        "table": path,
        "enabled": bool(settings.enabled),
        "run_inline": settings.run_inline,
        "trigger_strategy": settings.trigger.value,
        "trigger_value": settings.trigger_value,
        "resolve_conflicts_by": settings.conflict_rule.value,
        "max_partitions_per_run": settings.most_partitions,
        "policies": [policy.document() for policy in shown.policies],
    }
