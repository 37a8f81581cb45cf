"""The settings of partition TTL, the table's own and those of Hudi 1.x."""

from __future__ import annotations

import json

import pytest

from lakewright.errors import InvalidError
from lakewright.model.ttl import (
    ActivePolicy,
    ConflictRule,
    RetentionBasis,
    TtlLevel,
    TtlPolicy,
    TtlSettings,
    TtlTrigger,
    TtlUnit,
    active_policies,
    ttl_settings,
    validated_settings,
    with_settings,
)

DAYS = "hoodie.partition.ttl.strategy.days.retain"
TYPE = "hoodie.partition.ttl.management.strategy.type"
ALL: list[dict[str, object]] = [{"spec": "*", "level": "PARTITION", "units": "YEARS", "value": 1}]
US: list[dict[str, object]] = [
    {"spec": "country=US/*", "level": "PARTITION", "units": "MONTHS", "value": 2}
]
OLD_ROWS: list[dict[str, object]] = [{"spec": "*", "level": "RECORD", "units": "DAYS", "value": 1}]
YEAR = TtlPolicy(spec="*", units=TtlUnit.YEARS, value=1)
ROWS = TtlPolicy(spec="*", units=TtlUnit.DAYS, value=1, level=TtlLevel.RECORD)
TEN_DAYS = TtlPolicy(spec="**", units=TtlUnit.DAYS, value=10)


def policies(*listed: list[dict[str, object]]) -> dict[str, str]:
    return {"hoodie.ttl.policies": json.dumps([policy for part in listed for policy in part])}


def test_the_defaults_change_nothing() -> None:
    settings = ttl_settings({}, {})
    assert settings == TtlSettings()
    assert (settings.run_inline, settings.trigger) == (True, TtlTrigger.NUM_COMMITS)
    assert (settings.trigger_value, settings.conflict_rule) == (10, ConflictRule.MAX_TTL)
    assert active_policies(settings) == ()


ON = {"hoodie.ttl.enabled": "true"}
RULES: dict[str, tuple[dict[str, str], dict[str, str], tuple[ActivePolicy, ...]]] = {
    "policies are in force where TTL is on": ({**ON, **policies(ALL)}, {}, (ActivePolicy(YEAR),)),
    "the other spelling works as well": (
        {"hoodie.ttl.enable": "true", **policies(ALL)},
        {},
        (ActivePolicy(YEAR),),
    ),
    "and where it is not enabled they are not": (policies(ALL), {}, ()),
    "nor where it was switched off": (
        {"hoodie.ttl.enabled": "false", **policies(ALL)},
        {},
        (),
    ),
    "options go before what is stored": (
        {"hoodie.ttl.enabled": "false", **policies(ALL)},
        {"hoodie.ttl.enable": "TRUE"},
        (ActivePolicy(YEAR),),
    ),
    "policies for rows are among them": ({**ON, **policies(OLD_ROWS)}, {}, (ActivePolicy(ROWS),)),
    "Hudi's own keys are one more policy": (
        {**ON, **policies(ALL), DAYS: "10"},
        {},
        (ActivePolicy(YEAR), ActivePolicy(TEN_DAYS)),
    ),
    "which needs no switch": ({}, {DAYS: "10"}, (ActivePolicy(TEN_DAYS),)),
    "and is not in force where TTL was switched off": (
        {"hoodie.ttl.enabled": "false", DAYS: "10"},
        {},
        (),
    ),
    "unless the call asks for it": (
        {"hoodie.ttl.enabled": "false", **policies(ALL)},
        {DAYS: "10"},
        (ActivePolicy(TEN_DAYS),),
    ),
    "no days are for ever": ({DAYS: "0"}, {}, ()),
    "and so are fewer": ({}, {DAYS: "-1"}, ()),
    "a type determines from when age counts": (
        {},
        {DAYS: "10", TYPE: "keep_by_creation_time"},
        (ActivePolicy(TEN_DAYS, RetentionBasis.BY_CREATION_TIME),),
    ),
    "and a class goes before it": (
        {},
        {
            DAYS: "10",
            TYPE: "KEEP_BY_TIME",
            "hoodie.partition.ttl.strategy.class": (
                "org.apache.hudi.table.action.ttl.strategy.KeepByCreationTimeStrategy"
            ),
        },
        (ActivePolicy(TEN_DAYS, RetentionBasis.BY_CREATION_TIME),),
    ),
    "blanks around selected partitions do not count": (
        {},
        {DAYS: "10", "hoodie.partition.ttl.strategy.partition.selected": " p0, p1/ ,"},
        (ActivePolicy(TEN_DAYS, selected=frozenset({"p0", "p1"})),),
    ),
}


@pytest.mark.parametrize(("stored", "options", "expected"), RULES.values(), ids=list(RULES))
def test_rules_in_force(
    stored: dict[str, str], options: dict[str, str], expected: tuple[ActivePolicy, ...]
) -> None:
    assert active_policies(ttl_settings(stored, options)) == expected


def test_a_selection_leaves_out_all_others() -> None:
    rule = ActivePolicy(TEN_DAYS, selected=frozenset({"p0"}))
    assert [path for path in ("p0", "p1", "p0/x") if rule.covers(path)] == ["p0"]
    assert ActivePolicy(TEN_DAYS).covers("p1")


ORDER: dict[str, tuple[str, str, list[str]]] = {
    "the longest first": ("MAX_TTL", "a 1 YEARS, b 2 MONTHS, c 3 DAYS", ["a", "b", "c"]),
    "the shortest first": ("MIN_TTL", "a 1 YEARS, b 2 MONTHS, c 3 DAYS", ["c", "b", "a"]),
    "a month is more than 30 days and less than 31": (
        "MIN_TTL",
        "a 31 DAYS, b 1 MONTHS, c 30 DAYS",
        ["c", "b", "a"],
    ),
    "a year is more than 52 weeks": ("MAX_TTL", "a 52 WEEKS, b 1 YEARS", ["b", "a"]),
    "and more than 365 days": ("MAX_TTL", "a 365 DAYS, b 1 YEARS, c 366 DAYS", ["c", "b", "a"]),
    "of two that are the same the spec decides": (
        "MIN_TTL",
        "b 12 MONTHS, a 1 YEARS",
        ["a", "b"],
    ),
}


@pytest.mark.parametrize(("rule", "drawn", "expected"), ORDER.values(), ids=list(ORDER))
def test_policies_are_shown_in_their_order(rule: str, drawn: str, expected: list[str]) -> None:
    listed: list[dict[str, object]] = [
        dict(zip(("spec", "value", "units"), part.split(), strict=True))
        for part in drawn.split(", ")
    ]
    options = {**policies(listed), "hoodie.ttl.conflict.resolution.rule": rule}
    assert [policy.spec for policy in ttl_settings(options, {}).in_order] == expected


def test_what_is_stored_is_spelled_in_one_way() -> None:
    options = {
        "hoodie.ttl.enable": " True",
        "hoodie.ttl.run.inline": "TRUE",
        "hoodie.ttl.run.inline.trigger.strategy": "num_commits",
        "hoodie.ttl.run.inline.trigger.value": " 8 ",
        "hoodie.ttl.conflict.resolution.rule": "MIN_TTL",
        "hoodie.table.name": "another family",
        **policies(US),
    }
    assert validated_settings(options, partitioned=True) == {
        "hoodie.ttl.enabled": "true",
        "hoodie.ttl.run.inline": "true",
        "hoodie.ttl.run.inline.trigger.strategy": "NUM_COMMITS",
        "hoodie.ttl.run.inline.trigger.value": "8",
        "hoodie.ttl.conflict.resolution.rule": "MIN_TTL",
        "hoodie.ttl.policies": (
            '[{"spec":"country=US/*","level":"PARTITION","units":"MONTHS","value":2}]'
        ),
    }


def test_no_other_spelling_of_a_changed_setting_stays() -> None:
    old = {"hoodie.ttl.enable": "true", "hoodie.table.name": "t"}
    new = with_settings(old, {"hoodie.ttl.enabled": "false"})
    assert new == {"hoodie.ttl.enabled": "false", "hoodie.table.name": "t"}
    assert with_settings(old, {"hoodie.ttl.run.inline": "true"}).keys() > old.keys()


REFUSED = {
    "an unknown rule": {"hoodie.ttl.conflict.resolution.rule": "MEAN_TTL"},
    "an unknown trigger": {"hoodie.ttl.run.inline.trigger.strategy": "ALWAYS"},
    "a trigger of 0": {"hoodie.ttl.run.inline.trigger.value": "0"},
    "neither on nor off": {"hoodie.ttl.enabled": "1"},
    "policies that are none": {"hoodie.ttl.policies": "*"},
    "a key that does not exist": {"hoodie.ttl.polices": "[]"},
    "two spellings that disagree": {"hoodie.ttl.enabled": "true", "hoodie.ttl.enable": "false"},
    "none at once": {"hoodie.ttl.max.partitions.per.run": "0"},
    "days that are no number": {DAYS: "ten"},
    "an unknown type": {TYPE: "KEEP_BY_MOON"},
    "an unknown format of paths": {"hoodie.partition.ttl.strategy.event.time.format": "dd.MM.yyyy"},
    "a level before the first": {
        "hoodie.partition.ttl.strategy.event.time.partition.start.index": "-1"
    },
    "a class of one's own": {"hoodie.partition.ttl.strategy.class": "org.example.Mine"},
}


@pytest.mark.parametrize("options", REFUSED.values(), ids=list(REFUSED))
def test_bad_settings_are_refused(options: dict[str, str]) -> None:
    with pytest.raises(InvalidError):
        validated_settings(options, partitioned=True)


@pytest.mark.parametrize("options", [ON, policies(ALL)], ids=["TTL", "a policy"])
def test_a_table_without_partitions_takes_no(options: dict[str, str]) -> None:
    with pytest.raises(InvalidError, match="the table has no partitions"):
        validated_settings(options, partitioned=False)
    assert validated_settings({"hoodie.ttl.enabled": "false"}, partitioned=False)
