"""The procedures of partition TTL: those of its design, and `run_ttl` as Hudi has it."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

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

if TYPE_CHECKING:
    from lakewright.api.table import Table

_POLICY_COLUMNS = "spec STRING, level STRING, units STRING, value INT"
_SETTING_COLUMNS = "setting STRING, value STRING"
_SHOWN = {
    "enabled": "enabled",
    "run_inline": "run_inline",
    "trigger_strategy": "trigger",
    "trigger_value": "trigger_value",
    "resolve_conflicts_by": "conflict_rule",
    "max_partitions_per_run": "most_partitions",
}
_SWITCHES = ("enabled", "run_inline")
_CHANGED = ("trigger_strategy", "trigger_value", "resolve_conflicts_by")


def _policies(shown: TtlConfig) -> Rows:
    return [(p.spec, p.level.value, p.units.value, p.value) for p in shown.policies]


def _settings(shown: TtlConfig) -> Rows:
    values = asdict(shown.settings)
    return [(name, _text(values[field])) for name, field in _SHOWN.items()]


def _text(value: Any) -> str:
    return str(bool(value)).lower() if value is None or isinstance(value, bool) else str(value)


def _save(table: Table, arguments: Arguments) -> Rows:
    fields = {name: arguments[name] for name in ("spec", "level", "units", "value")}
    return _policies(table.ttl.save(fields))


def _delete(table: Table, arguments: Arguments) -> Rows:
    return _policies(table.ttl.delete(str(arguments["spec"])))


def _empty(table: Table, arguments: Arguments) -> Rows:
    return _policies(table.ttl.empty())


def _show(table: Table, arguments: Arguments) -> Rows:
    shown = table.ttl.show()
    settings = [("setting", name, value, None, None) for name, value in _settings(shown)]
    policies = [
        ("policy", spec, str(value), units, level) for spec, level, units, value in _policies(shown)
    ]
    return [*settings, *policies]


def _configure(table: Table, arguments: Arguments) -> Rows:
    enabled, inline = (_switch(name, arguments[name]) for name in _SWITCHES)
    changed = {name: arguments[name] for name in _CHANGED}
    if all(arguments[name] is None for name in (*_SWITCHES, *_CHANGED)):
        return _settings(table.ttl.show())
    return _settings(table.ttl.configure(enabled=enabled, run_inline=inline, **changed))


def _switch(name: str, given: Any) -> bool | None:
    try:
        return None if given is None else parse_bool(str(given))
    except ValueError as error:
        raise InvalidError("a switch is true or false", **{name: given}) from error


def _update(table: Table, arguments: Arguments) -> Rows:
    return [(update_with_bar(table.ttl),)]


def _run(table: Table, arguments: Arguments) -> Rows:
    told = {HUDI_TYPE: arguments["ttl_policy"], HUDI_DAYS: arguments["retain_days"]}
    given = {key: str(value) for key, value in told.items() if value is not None}
    done = table.run("ttl", {**parse_options(arguments["options"]), **given})
    return [] if isinstance(done, Skip) else [(path,) for path in done.partitions]


def _explain(table: Table, arguments: Arguments) -> Rows:
    return [
        (
            each.partition,
            each.policy.spec if each.policy is not None else None,
            each.reference,
            each.source.value if each.source is not None else None,
            each.expires_at,
            each.expired,
            each.blocked_by or None,
            each.files_gone_at or None,
            each.rows_before,
        )
        for each in table.ttl.explain(table.services(parse_options(arguments["options"])).options)
    ]


TTL_PROCEDURES = (
    Procedure(
        "ttl_policy_save",
        "add a policy for old partitions, or replace the one with the same spec",
        (
            *TABLE,
            Parameter("spec", required=True, about="the partitions, by a path with * and ?"),
            Parameter("units", required=True, about="YEARS, MONTHS, WEEKS or DAYS"),
            Parameter("value", required=True, about="how many of them"),
            Parameter("level", "PARTITION", about="PARTITION or RECORD"),
        ),
        _POLICY_COLUMNS,
        _save,
    ),
    Procedure(
        "ttl_policy_delete",
        "take out the policy with a spec",
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
    Procedure("ttl_policy_empty", "take out all policies", TABLE, _POLICY_COLUMNS, _empty),
    Procedure(
        "ttl_configuration",
        "switch policies on or off, and change how they are carried out",
        (*TABLE, *(Parameter(name) for name in (*_SWITCHES, *_CHANGED))),
        _SETTING_COLUMNS,
        _configure,
    ),
    Procedure(
        "ttl_update_partitions",
        "write into each partition when it was last written to, once before TTL is first used",
        TABLE,
        "updated_partitions INT",
        _update,
    ),
    Procedure(
        "ttl_explain",
        "what would become of each partition now, and why",
        (*TABLE, OPTIONS),
        "partition STRING, policy STRING, reference STRING, source STRING, expires_at STRING, "
        "expired BOOLEAN, blocked_by STRING, files_gone_at STRING, rows_before STRING",
        _explain,
    ),
    Procedure(
        "run_ttl",
        "take the expired partitions out of the table",
        (NAME, Parameter("ttl_policy"), Parameter("retain_days"), OPTIONS, PATH),
        "deleted_partitions STRING",
        _run,
    ),
)
