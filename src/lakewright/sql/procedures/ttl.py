"""Procedures for TTL policies: those of Hudi's TTL design, and Hudi's `run_ttl`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lakewright.client.documents import ttl_settings_document
from lakewright.client.ttl import TtlConfig, update_with_bar
from lakewright.errors import InvalidError
from lakewright.model.plans import Skip
from lakewright.model.ttl import HUDI_DAYS, HUDI_TYPE
from lakewright.options import parse_bool
from lakewright.sql.procedures.base import (
    NAME,
    OPTIONS,
    PATH,
    TABLE,
    Arguments,
    Parameter,
    Procedure,
    Rows,
    parse_options,
)
from lakewright.write.writer import Commit

if TYPE_CHECKING:
    from lakewright.api.table import Table

_POLICY_COLUMNS = "spec STRING, level STRING, units STRING, value INT"
_SETTING_COLUMNS = "setting STRING, value STRING"
_SWITCHES = ("enabled", "run_inline")
_OTHER_SETTINGS = ("trigger_strategy", "trigger_value", "resolve_conflicts_by")


def _policies(config: TtlConfig) -> Rows:
    return [(p.spec, p.level.value, p.units.value, p.value) for p in config.policies]


def _settings(config: TtlConfig) -> Rows:
    document = ttl_settings_document(config.settings)
    return [(name, _text(value)) for name, value in document.items()]


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _save(table: Table, arguments: Arguments) -> Rows:
    fields = {name: arguments[name] for name in ("spec", "level", "units", "value")}
    return _policies(table.ttl.save(fields))


def _delete(table: Table, arguments: Arguments) -> Rows:
    return _policies(table.ttl.delete(str(arguments["spec"])))


def _empty(table: Table, arguments: Arguments) -> Rows:
    return _policies(table.ttl.clear_policies())


def _show(table: Table, arguments: Arguments) -> Rows:
    config = table.ttl.config
    settings = [("setting", name, value, None, None) for name, value in _settings(config)]
    policies = [
        ("policy", spec, str(value), units, level)
        for spec, level, units, value in _policies(config)
    ]
    return [*settings, *policies]


def _configure(table: Table, arguments: Arguments) -> Rows:
    enabled, inline = (_switch(name, arguments[name]) for name in _SWITCHES)
    settings = {name: arguments[name] for name in _OTHER_SETTINGS}
    if all(arguments[name] is None for name in (*_SWITCHES, *_OTHER_SETTINGS)):
        return _settings(table.ttl.config)
    return _settings(table.ttl.configure(enabled=enabled, run_inline=inline, **settings))


def _switch(name: str, value: Any) -> bool | None:
    try:
        return None if value is None else parse_bool(str(value))
    except ValueError as error:
        raise InvalidError("a switch is true or false", **{name: value}) from error


def _update(table: Table, arguments: Arguments) -> Rows:
    return [(update_with_bar(table.ttl),)]


def _run(table: Table, arguments: Arguments) -> Rows:
    values = {HUDI_TYPE: arguments["ttl_policy"], HUDI_DAYS: arguments["retain_days"]}
    options = {key: str(value) for key, value in values.items() if value is not None}
    outcome = table.run("ttl", {**parse_options(arguments["options"]), **options})
    return run_rows(outcome)


def run_rows(outcome: Commit | Skip) -> Rows:
    """Return the partitions that a run deleted, and those that it skipped with the reason."""
    deleted = outcome.partitions if isinstance(outcome, Commit) else ()
    skipped = outcome.skipped.items()
    return [*((path, None, None) for path in deleted), *((None, *item) for item in skipped)]


def _explain(table: Table, arguments: Arguments) -> Rows:
    return [
        (
            decision.partition,
            decision.policy.spec if decision.policy is not None else None,
            decision.reference,
            decision.source.value if decision.source is not None else None,
            decision.expires_at,
            decision.expired,
            decision.blocked_by or None,
            decision.files_deleted_at or None,
            decision.rows_before,
        )
        for decision in table.ttl.explain(
            table.services(parse_options(arguments["options"])).options
        )
    ]


TTL_PROCEDURES = (
    Procedure(
        "ttl_policy_save",
        "add a policy for old partitions, or replace the one with the same spec",
        (
            *TABLE,
            Parameter("spec", required=True, about="the partitions, as a path with * and ?"),
            Parameter("units", required=True, about="YEARS, MONTHS, WEEKS or DAYS"),
            Parameter("value", required=True, about="how many of them"),
            Parameter("level", "PARTITION", about="PARTITION or RECORD"),
        ),
        _POLICY_COLUMNS,
        _save,
    ),
    Procedure(
        "ttl_policy_delete",
        "delete the policy with a spec",
        (*TABLE, Parameter("spec", required=True)),
        _POLICY_COLUMNS,
        _delete,
    ),
    Procedure(
        "ttl_policy_show",
        "the settings and policies of a table",
        TABLE,
        "kind STRING, name STRING, value STRING, units STRING, level STRING",
        _show,
    ),
    Procedure("ttl_policy_empty", "delete all policies", TABLE, _POLICY_COLUMNS, _empty),
    Procedure(
        "ttl_configuration",
        "enable or disable policies, and change when and how they are applied",
        (*TABLE, *(Parameter(name) for name in (*_SWITCHES, *_OTHER_SETTINGS))),
        _SETTING_COLUMNS,
        _configure,
    ),
    Procedure(
        "ttl_update_partitions",
        "record the last update time in each partition; run it once, before TTL is first used",
        TABLE,
        "updated_partitions INT",
        _update,
    ),
    Procedure(
        "ttl_explain",
        "the current TTL decision for each partition, and why",
        (*TABLE, OPTIONS),
        "partition STRING, policy STRING, reference STRING, source STRING, expires_at STRING, "
        "expired BOOLEAN, blocked_by STRING, files_gone_at STRING, rows_before STRING",
        _explain,
    ),
    Procedure(
        "run_ttl",
        "delete the expired partitions, and name those that others hold",
        (NAME, Parameter("ttl_policy"), Parameter("retain_days"), OPTIONS, PATH),
        "deleted_partitions STRING, skipped_partitions STRING, reason STRING",
        _run,
    ),
)
