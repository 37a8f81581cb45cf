"""`table.ttl`, `lakewright ttl` and the procedures: settings, policies, concurrent changes."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from lakewright.api.table import Table
from lakewright.cli.main import app
from lakewright.client.ttl import TableTtl
from lakewright.errors import InvalidError
from lakewright.format.partition_metadata import parse_partition_metadata
from lakewright.model.file_group import PARTITION_METADATA
from lakewright.model.ttl import ConflictRule, TtlPolicy, TtlTrigger, TtlUnit
from lakewright.sql.procedures.base import bound_arguments, parse_call
from lakewright.sql.procedures.ttl import TTL_PROCEDURES
from lakewright.storage.base import Storage
from lakewright.storage.memory import MemoryStorage
from lakewright.table.properties import load_properties, update_properties
from lakewright.table.snapshot import load_snapshot
from lakewright.testing.clock import ManualClock
from lakewright.testing.storage import Crash, CrashingStorage
from support.concurrency import run_interleaved
from support.tables import NO_SERVICES, WrittenTable, row

YEAR = {"spec": "*", "level": "PARTITION", "units": "YEARS", "value": 1}
US = {"spec": "country=US/*", "level": "PARTITION", "units": "MONTHS", "value": 2}
ALL = TtlPolicy(spec="*", units=TtlUnit.YEARS, value=1)


@pytest.fixture
def table() -> WrittenTable:
    return WrittenTable(options=NO_SERVICES, clock=ManualClock()).create()


def ttl_of(table: WrittenTable) -> TableTtl:
    return TableTtl.for_table(table.storage, clock=table.clock)


def stored(table: WrittenTable) -> dict[str, str]:
    properties = load_properties(table.storage)
    return {key: value for key, value in properties.items() if key.startswith("hoodie.ttl.")}


def test_nothing_is_set_at_first(table: WrittenTable) -> None:
    shown = ttl_of(table).config
    assert not shown.settings.enabled
    assert shown.policies == ()
    assert stored(table) == {}


def test_it_is_switched_on_and_off(table: WrittenTable) -> None:
    ttl = ttl_of(table)
    ttl.save(YEAR)
    shown = ttl.enable(run_inline=False)
    assert (shown.settings.enabled, shown.settings.run_inline) == (True, False)
    assert ttl.enable().settings.run_inline
    assert ttl.disable().settings.enabled is False
    assert ttl.config.policies == (ALL,)


def test_settings_change_nothing_else(table: WrittenTable) -> None:
    ttl = ttl_of(table)
    ttl.configure(trigger_strategy="time_elapsed", trigger_value=7)
    shown = ttl.configure(resolve_conflicts_by="MIN_TTL").settings
    assert (shown.trigger, shown.trigger_value) == (TtlTrigger.TIME_ELAPSED, 7)
    assert (shown.conflict_rule, shown.enabled) == (ConflictRule.MIN_TTL, None)


def test_policies_come_and_go(table: WrittenTable) -> None:
    ttl = ttl_of(table)
    ttl.save(US)
    ttl.save(json.dumps(YEAR))
    assert [policy.spec for policy in ttl.config.policies] == ["*", "country=US/*"]
    ttl.save({**YEAR, "value": 3})
    assert [policy.value for policy in ttl.config.policies] == [3, 2]
    assert [policy.spec for policy in ttl.delete("*").policies] == ["country=US/*"]
    assert ttl.clear_policies().policies == ()
    assert stored(table) == {"hoodie.ttl.policies": "[]"}


REFUSED: dict[str, Callable[[TableTtl], object]] = {
    "a value of 0": lambda ttl: ttl.save({**YEAR, "value": 0}),
    "an unknown unit": lambda ttl: ttl.save({**YEAR, "units": "HOURS"}),
    "an unknown level": lambda ttl: ttl.save({**YEAR, "level": "TABLE"}),
    "an empty spec": lambda ttl: ttl.save({**YEAR, "spec": ""}),
    "no JSON": lambda ttl: ttl.save("a policy"),
    "an unknown rule": lambda ttl: ttl.configure(resolve_conflicts_by="ANY"),
    "an unknown trigger": lambda ttl: ttl.configure(trigger_strategy="ANY"),
    "a trigger below 1": lambda ttl: ttl.configure(trigger_value=0),
    "no setting": lambda ttl: ttl.configure(),
    "a spec that has no policy": lambda ttl: ttl.delete("country=DE"),
}


@pytest.mark.parametrize("act", REFUSED.values(), ids=list(REFUSED))
def test_bad_input_is_refused_and_changes_nothing(
    act: Callable[[TableTtl], object], table: WrittenTable
) -> None:
    ttl_of(table).save(YEAR)
    before = load_properties(table.storage)
    with pytest.raises(InvalidError):
        act(ttl_of(table))
    assert load_properties(table.storage) == before


UNPARTITIONED: dict[str, Callable[[TableTtl], object]] = {
    "on": lambda ttl: ttl.enable(),
    "save": lambda ttl: ttl.save(YEAR),
    "settings": lambda ttl: ttl.configure(trigger_value=1),
    "update": lambda ttl: ttl.update_partitions(),
}


@pytest.mark.parametrize("act", UNPARTITIONED.values(), ids=list(UNPARTITIONED))
def test_a_table_without_partitions_is_refused(act: Callable[[TableTtl], object]) -> None:
    table = WrittenTable(clock=ManualClock()).create(partition_by=())
    with pytest.raises(InvalidError, match="the table has no partitions"):
        act(ttl_of(table))
    ttl_of(table).disable()
    ttl_of(table).clear_policies()


def test_a_spec_for_no_partition_is_a_warning(table: WrittenTable) -> None:
    ttl = ttl_of(table)
    ttl.save(US)  # there is no partition at all yet
    table.upsert([row("a", day="d1"), row("b", day="d2")])
    ttl.save({**YEAR, "spec": "d2"})
    with pytest.warns(UserWarning, match="no partition of the table matches 'country=US"):
        ttl.save(US)
    assert len(ttl.config.policies) == 2


def test_a_policy_for_rows_needs_record_keys() -> None:
    keyless = WrittenTable().create(key=())
    with pytest.raises(InvalidError, match="without key fields"):
        ttl_of(keyless).save({**YEAR, "level": "RECORD"})
    assert not ttl_of(keyless).config.policies


def test_what_others_have_broken_can_be_emptied(table: WrittenTable) -> None:
    update_properties(table.storage, lambda old: {**old, "hoodie.ttl.policies": "[{"})
    with pytest.warns(RuntimeWarning, match="TTL is not carried out"):
        table.upsert([row("a")])
    with pytest.raises(InvalidError):
        table.services().run("ttl")
    with pytest.raises(InvalidError):
        ttl_of(table).save(YEAR)
    ttl_of(table).clear_policies()
    assert ttl_of(table).save(YEAR).policies == (ALL,)


ORDERS: dict[str, list[int]] = {
    "call by call in turn": [0, 1] * 20,
    **{f"the second after {n} calls of the first": [0] * n + [1] * 12 for n in range(1, 14)},
}


@pytest.mark.parametrize("order", ORDERS.values(), ids=list(ORDERS))
def test_of_two_changes_at_once_both_are_there(order: list[int], table: WrittenTable) -> None:
    def first(storage: Storage) -> None:
        TableTtl.for_table(storage, clock=ManualClock(first_id=100)).save({**YEAR, "spec": "day=1"})

    def second(storage: Storage) -> None:
        ttl = TableTtl.for_table(storage, clock=ManualClock(first_id=200))
        ttl.save({**YEAR, "spec": "day=2"})
        ttl.configure(resolve_conflicts_by="MIN_TTL")

    run_interleaved(table.storage, [first, second], order)
    shown = ttl_of(table).config
    assert {policy.spec for policy in shown.policies} == {"day=1", "day=2"}
    assert shown.settings.conflict_rule is ConflictRule.MIN_TTL


@pytest.mark.parametrize("provider", ["in_process", "file", "storage"])
def test_any_lock_will_do(provider: str, table: WrittenTable) -> None:
    options = {"hoodie.write.lock.provider": provider}
    assert TableTtl.for_table(table.storage, options, table.clock).enable().settings.enabled


@pytest.mark.parametrize("after_effect", [False, True], ids=["before", "after"])
def test_a_crash_while_saving_leaves_the_old_or_the_new_policies(
    after_effect: bool, table: WrittenTable
) -> None:
    ttl_of(table).save(YEAR)
    files = table.storage.files()  # type: ignore[attr-defined]
    for survive in range(30):
        storage = MemoryStorage.fresh(files)
        dying = CrashingStorage(storage, survive, after_effect=after_effect)
        try:
            TableTtl.for_table(dying, clock=ManualClock()).save({**YEAR, "value": 2})
        except Crash:
            policies = TableTtl.for_table(storage).config.policies
            assert [policy.value for policy in policies] in ([1], [2])
            later = ManualClock()
            later.advance(3_600_000)
            again = TableTtl.for_table(storage, clock=later).save({**US, "spec": "day=1"})
            assert len(again.policies) == 2
        else:
            assert survive > 2
            return
    raise AssertionError("never done")


def test_a_frame_without_columns_stores_checked_settings(table: WrittenTable) -> None:
    options = {
        "hoodie.ttl.enable": "true",
        "hoodie.ttl.run.inline": "true",
        "hoodie.ttl.run.inline.trigger.strategy": "NUM_COMMITS",
        "hoodie.ttl.run.inline.trigger.value": "8",
        "hoodie.ttl.conflict.resolution.rule": "MIN_TTL",
    }
    table = replace(table, options={}, defaults={})
    table.writer(options).store_settings()
    shown = ttl_of(table).config.settings
    assert (shown.enabled, shown.trigger_value) == (True, 8)
    assert "hoodie.ttl.enable" not in stored(table)
    with pytest.raises(InvalidError):
        table.writer({"hoodie.ttl.conflict.resolution.rule": "ANY"}).store_settings()


def test_settings_of_a_write_are_stored_with_the_table(table: WrittenTable) -> None:
    options = {
        "hoodie.ttl.enable": "true",
        "hoodie.ttl.policies": json.dumps([YEAR]),
        "hoodie.partition.ttl.strategy.days.retain": "7",
    }
    table.upsert([row("a")], options)
    assert stored(table) == {
        "hoodie.ttl.enabled": "true",
        "hoodie.ttl.policies": json.dumps([YEAR], separators=(",", ":")),
    }
    table.upsert([row("a", 2)], {"hoodie.ttl.run.inline": "false"})
    assert ttl_of(table).config.settings.run_inline is False
    assert ttl_of(table).config.settings.enabled


def test_a_write_with_a_policy_that_matches_nothing_warns(table: WrittenTable) -> None:
    options = {"hoodie.ttl.policies": json.dumps([YEAR, US])}
    with pytest.warns(UserWarning, match=r"no partition of the table matches 'country=US/\*'"):
        table.upsert([row("a")], options)
    assert len(ttl_of(table).config.policies) == 2
    # The warning comes once.
    table.upsert([row("a", 2)], options)


def test_rows_of_a_table_without_keys_have_no_policy() -> None:
    options = {"hoodie.ttl.policies": json.dumps([{**YEAR, "level": "RECORD"}])}
    nameless = WrittenTable(options=NO_SERVICES).create(key=(), ordering=())
    for act in (
        lambda: nameless.write("INSERT", [row("a")], options),
        lambda: nameless.writer(options).store_settings(),
        lambda: ttl_of(nameless).save({**YEAR, "level": "RECORD"}),
        lambda: WrittenTable().create(key=(), ordering=(), options=options),
    ):
        with pytest.raises(InvalidError, match="without key fields"):
            act()
    assert not load_snapshot(nameless.storage).timeline.instants
    assert stored(nameless) == {}


WRONG: dict[str, dict[str, str]] = {
    "an unknown key": {"hoodie.ttl.enabbled": "true"},
    "an unknown rule": {"hoodie.ttl.conflict.resolution.rule": "ANY"},
    "no JSON": {"hoodie.ttl.policies": "*"},
    "two spellings": {"hoodie.ttl.enable": "true", "hoodie.ttl.enabled": "false"},
    "nothing between runs": {"hoodie.ttl.run.inline.trigger.value": "0"},
}


@pytest.mark.parametrize("options", WRONG.values(), ids=list(WRONG))
def test_a_write_with_wrong_settings_changes_nothing(
    options: dict[str, str], table: WrittenTable
) -> None:
    table.upsert([row("a")])
    before = table.storage.files()  # type: ignore[attr-defined]
    with pytest.raises(InvalidError):
        table.upsert([row("b")], options)
    assert table.storage.files() == before  # type: ignore[attr-defined]


def test_a_write_to_a_table_without_partitions_cannot_switch_it_on() -> None:
    plain = WrittenTable().create(partition_by=())
    with pytest.raises(InvalidError, match="no partitions"):
        plain.upsert([row("a")], {"hoodie.ttl.enabled": "true"})
    assert not load_snapshot(plain.storage).timeline.instants


def test_a_new_table_takes_only_good_settings() -> None:
    made = WrittenTable().create(options={"hoodie.ttl.enable": "TRUE"})
    assert stored(made) == {"hoodie.ttl.enabled": "true"}
    with pytest.raises(InvalidError):
        WrittenTable().create(options={"hoodie.ttl.policies": "*"})
    with pytest.raises(InvalidError):
        WrittenTable().create(partition_by=(), options={"hoodie.ttl.enabled": "true"})


def call(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments), catch_exceptions=False)


def document(*arguments: str, flag: str = "--json") -> Any:
    result = call(*arguments, flag)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_the_command_line(table: WrittenTable) -> None:
    path = table.storage.root
    table.upsert([row("a", day="d1")])
    assert document("ttl", "on", path, "--runInline", "false")["run_inline"] is False
    settings = document(
        "ttl", "settings", path, "--triggerStrategy", "TIME_ELAPSED", "--triggerValue", "3",
        "--resolveConflictsBy", "MIN_TTL",
    )  # fmt: skip
    assert (settings["trigger_strategy"], settings["trigger_value"]) == ("TIME_ELAPSED", 3)
    saved = document("ttl", "save", path, "--json", json.dumps(YEAR), flag="--as-json")
    assert saved["policies"] == [YEAR]
    assert document("ttl", "show", path) == saved
    shown = document("ttl", "explain", path)
    assert [(entry["partition"], entry["policy"]) for entry in shown["partitions"]] == [
        ("d1", "*: 1 YEARS")
    ]
    assert document("ttl", "update", path)["updated_partitions"] == 1
    assert document("ttl", "delete", path, "--spec", "*")["policies"] == []
    assert document("ttl", "empty", path)["policies"] == []
    assert document("ttl", "off", path)["enabled"] is False


def test_the_command_line_runs_ttl_and_shows_the_plan(table: WrittenTable) -> None:
    path = table.storage.root
    table.upsert([row("a", day="d1")])  # at the beginning of 2026, by its own clock
    flags = ("-o", "hoodie.partition.ttl.strategy.days.retain=1")
    plan = document("plan", path, "ttl", *flags)
    assert [operation["partition"] for operation in plan["operations"]] == ["d1"]
    answer = document("ttl", "run", path, *flags)
    assert answer["commit"]["partitions"] == ["d1"]
    assert document("ttl", "run", path, *flags)["result"] == "skipped"
    assert table.rows() == []
    steps = document("services", "run", path, "--service", "ttl", *flags)["steps"]
    assert [(step["service"], step["result"]) for step in steps] == [("ttl", "skipped")]


def test_the_command_line_refuses_bad_input(table: WrittenTable) -> None:
    result = call("ttl", "save", table.storage.root, "--json", '{"spec": "*"}')
    assert result.exit_code == 2
    assert "missing: ['units', 'value']" in result.output
    assert call("ttl", "on", table.storage.root, "--runInline", "maybe").exit_code == 2


def sql(table: WrittenTable, text: str) -> list[tuple[Any, ...]]:
    parsed = parse_call(text)
    assert parsed is not None
    procedure = next(candidate for candidate in TTL_PROCEDURES if candidate.name == parsed.name)
    rows = procedure.run(Table(table.storage), bound_arguments(parsed, procedure.parameters))
    assert {len(result) for result in rows} <= {procedure.columns.count(",") + 1}
    return rows


def test_the_procedures(table: WrittenTable) -> None:
    sql(
        table,
        "call ttl_policy_save(table => 't', spec => '*', units => 'YEARS', value => '1', "
        "level => 'PARTITION')",
    )
    rows = sql(
        table,
        "call ttl_policy_save(path => 'p', spec => 'country=US/*', units => 'MONTHS', value => 2)",
    )
    assert rows == [("*", "PARTITION", "YEARS", 1), ("country=US/*", "PARTITION", "MONTHS", 2)]
    settings = sql(
        table,
        "call ttl_configuration(path => 'p', enabled => true, run_inline => 'false', "
        "trigger_strategy => 'TIME_ELAPSED', trigger_value => 4, "
        "resolve_conflicts_by => 'MIN_TTL')",
    )
    assert settings == [
        ("enabled", "true"),
        ("run_inline", "false"),
        ("trigger_strategy", "TIME_ELAPSED"),
        ("trigger_value", "4"),
        ("resolve_conflicts_by", "MIN_TTL"),
        ("max_partitions_per_run", "1000"),
    ]
    assert sql(table, "call ttl_configuration(path => 'p')") == settings
    shown = sql(table, "call ttl_policy_show(path => 'p')")
    assert shown[0] == ("setting", "enabled", "true", None, None)
    assert shown[-1] == ("policy", "*", "1", "YEARS", "PARTITION")
    assert len(sql(table, "call ttl_policy_delete(path => 'p', spec => '*')")) == 1
    assert sql(table, "call ttl_policy_empty(path => 'p')") == []
    with pytest.raises(InvalidError):
        sql(table, "call ttl_configuration(path => 'p', enabled => 'maybe')")


def test_the_procedure_that_hudi_has(table: WrittenTable) -> None:
    table.upsert([row("a", day="p0"), row("b", day="p1")])
    assert sql(table, "call ttl_update_partitions(path => 'p')") == [(2,)]
    data = table.storage.read(f"p0/{PARTITION_METADATA}")
    assert parse_partition_metadata(data).last_update_time
    explained = sql(
        table,
        "call ttl_explain(path => 'p', options => 'hoodie.partition.ttl.strategy.days.retain=1')",
    )
    assert [(entry[0], entry[5]) for entry in explained] == [("p0", True), ("p1", True)]
    assert sql(table, "call run_ttl(table => 't', retain_days => -1)") == []
    deleted = sql(
        table, "call run_ttl(table => 't', ttl_policy => 'KEEP_BY_TIME', retain_days => 1)"
    )
    assert deleted == [("p0", None, None), ("p1", None, None)]
    assert sql(table, "call run_ttl(table => 't', retain_days => 1)") == []


def test_a_table_has_it(table: WrittenTable) -> None:
    handle = Table(table.storage)
    handle.ttl.enable()
    handle.ttl.save(YEAR)
    assert handle.ttl.config.policies == (ALL,)
    assert handle.ttl.explain() == ()
    assert str(handle.preview("ttl")) == "nothing was written yet"
