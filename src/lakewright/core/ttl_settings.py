"""The settings of partition TTL: those that a table stores, and those of Hudi 1.x. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from lakewright.core.path_times import PathTime
from lakewright.core.ttl import Level, Policy, Unit, format_policies, parse_policies
from lakewright.errors import InvalidError
from lakewright.settings import at_least, option, option_keys, parse_bool, parse_word, settings_from

PREFIX = "hoodie.ttl."
HUDI_PREFIX = "hoodie.partition.ttl."
ENABLED = "hoodie.ttl.enabled"
RUN_INLINE = "hoodie.ttl.run.inline"
TRIGGER = "hoodie.ttl.run.inline.trigger.strategy"
TRIGGER_VALUE = "hoodie.ttl.run.inline.trigger.value"
CONFLICT_RULE = "hoodie.ttl.conflict.resolution.rule"
POLICIES = "hoodie.ttl.policies"
MOST_PARTITIONS = "hoodie.ttl.max.partitions.per.run"
HUDI_DAYS = "hoodie.partition.ttl.strategy.days.retain"
HUDI_TYPE = "hoodie.partition.ttl.management.strategy.type"
# The document that describes these settings spells one of them in two ways.
_SPELLINGS = {"hoodie.ttl.enable": ENABLED}
_ALL = "**"
_CLASSES = {
    "KeepByTimeStrategy": "KEEP_BY_TIME",
    "KeepByCreationTimeStrategy": "KEEP_BY_CREATION_TIME",
    "KeepByEventTimeStrategy": "KEEP_BY_EVENT_TIME",
}


class Trigger(StrEnum):
    """What has to pass between two runs after writes: commits, or days."""

    NUM_COMMITS = "NUM_COMMITS"
    TIME_ELAPSED = "TIME_ELAPSED"


class ConflictRule(StrEnum):
    """Which of several policies decides about a partition."""

    MAX_TTL = "MAX_TTL"
    MIN_TTL = "MIN_TTL"


class Keep(StrEnum):
    """What the age of a partition is counted from, in Hudi's words."""

    BY_TIME = "KEEP_BY_TIME"
    BY_CREATION_TIME = "KEEP_BY_CREATION_TIME"
    BY_EVENT_TIME = "KEEP_BY_EVENT_TIME"


def _paths(text: str) -> tuple[str, ...]:
    return tuple(name for part in text.split(",") if (name := part.strip().strip("/")))


def _strategy_class(text: str) -> Keep | None:
    name = text.strip().rpartition(".")[2]
    if not name:
        return None
    if name not in _CLASSES:
        raise ValueError(f"one of {', '.join(_CLASSES)} expected: classes of one's own do not run")
    return Keep(_CLASSES[name])


@dataclass(frozen=True, slots=True, kw_only=True)
class TtlSettings:
    """Which partitions go when they are old, and how many at once.

    The keys that begin with `hoodie.partition.ttl.` are those of Hudi 1.x: they make one more
    policy, for all partitions or for those selected.
    """

    enabled: bool | None = option(
        ENABLED,
        None,
        parse=parse_bool,
        aliases=tuple(_SPELLINGS),
        doc="Whether the policies of the table are in force; off unless it is switched on.",
    )
    run_inline: bool = option(
        RUN_INLINE,
        True,
        parse=parse_bool,
        doc="Whether the trigger is checked after each write; else TTL runs before writes, and "
        "after each clean.",
    )
    trigger: Trigger = option(
        TRIGGER,
        Trigger.NUM_COMMITS,
        parse=parse_word(Trigger),
        doc="NUM_COMMITS: after a number of commits. TIME_ELAPSED: after a number of days.",
    )
    trigger_value: int = option(
        TRIGGER_VALUE, 10, parse=at_least(1), doc="How many commits, or days."
    )
    conflict_rule: ConflictRule = option(
        CONFLICT_RULE,
        ConflictRule.MAX_TTL,
        parse=parse_word(ConflictRule),
        doc="Which of the policies that match a partition decides. MAX_TTL: the one by which it "
        "lives longest. MIN_TTL: the one by which it goes first.",
    )
    policies: tuple[Policy, ...] = option(
        POLICIES,
        (),
        parse=parse_policies,
        doc="The policies, as a JSON list of objects with spec, level, units and value.",
    )
    most_partitions: int = option(
        MOST_PARTITIONS,
        1000,
        parse=at_least(1),
        aliases=("hoodie.partition.ttl.strategy.max.delete.partitions",),
        doc="How many partitions one run takes out of the table at most, the oldest first.",
    )
    hudi_inline: bool = option(
        "hoodie.partition.ttl.inline",
        False,
        parse=parse_bool,
        doc="Whether the policy of Hudi's own keys is carried out after each write.",
    )
    hudi_days: int = option(
        HUDI_DAYS,
        -1,
        parse=int,
        doc="How many days all partitions live; 0 or less: for ever.",
    )
    hudi_type: Keep = option(
        HUDI_TYPE,
        Keep.BY_TIME,
        parse=parse_word(Keep),
        doc="KEEP_BY_TIME: since the last write to the partition. KEEP_BY_CREATION_TIME: since the "
        "first. KEEP_BY_EVENT_TIME: since the beginning of the day or hour that its path names.",
    )
    hudi_class: Keep | None = option(
        "hoodie.partition.ttl.strategy.class",
        None,
        parse=_strategy_class,
        doc="The same by the name of Hudi's class; goes before the type.",
    )
    hudi_selected: tuple[str, ...] = option(
        "hoodie.partition.ttl.strategy.partition.selected",
        (),
        parse=_paths,
        doc="The only partitions that `days.retain` is for, with commas between them.",
    )
    path_format: str = option(
        "hoodie.partition.ttl.strategy.event.time.format",
        "yyyy-MM-dd",
        parse=lambda text: PathTime(text.strip()).format,
        doc="How a path names its time: yyyy-MM-dd or yyyyMMdd, with /HH for an hour below it.",
    )
    path_start: int = option(
        "hoodie.partition.ttl.strategy.event.time.partition.start.index",
        0,
        parse=at_least(0),
        doc="In which level of the path the time begins, from 0 on.",
    )
    default_expires: bool = option(
        "hoodie.partition.ttl.strategy.event.time.delete.hive.default.partition",
        False,
        parse=parse_bool,
        doc="Whether the partition of rows without a value is expired, by KEEP_BY_EVENT_TIME.",
    )

    @property
    def in_order(self) -> tuple[Policy, ...]:
        """The policies in the order in which they decide; how long a month is, on average."""
        last_first = self.conflict_rule is ConflictRule.MAX_TTL
        ordered = sorted(self.policies, key=lambda each: (each.usual_days, each.spec))
        return tuple(reversed(ordered) if last_first else ordered)


TTL_KEYS = option_keys(TtlSettings)


@dataclass(frozen=True, slots=True)
class Rule:
    """A policy in force; `selected`, where there is one, leaves out all other partitions.

    `path_time` is set where an age is counted from what a path tells; `default_expires` is then
    about the partition without a value.
    """

    policy: Policy
    keep: Keep = Keep.BY_TIME
    selected: frozenset[str] = frozenset()
    path_time: PathTime | None = None
    default_expires: bool = False

    def covers(self, partition: str) -> bool:
        """Whether a partition falls under it."""
        if self.selected:
            return partition in self.selected
        return self.policy.matches(partition)


def rules_in_force(settings: TtlSettings) -> tuple[Rule, ...]:
    """All that may take a partition, or rows, out of the table."""
    own = settings.policies if settings.enabled else ()
    rules = tuple(Rule(policy) for policy in own)
    if settings.hudi_days <= 0:
        return rules
    policy = Policy(spec=_ALL, units=Unit.DAYS, value=settings.hudi_days)
    keep = settings.hudi_class or settings.hudi_type
    rule = Rule(policy, keep, frozenset(settings.hudi_selected))
    if keep is Keep.BY_EVENT_TIME:
        path_time = PathTime(settings.path_format, settings.path_start)
        rule = replace(rule, path_time=path_time, default_expires=settings.default_expires)
    return (*rules, rule)


def ttl_settings(properties: Mapping[str, str], options: Mapping[str, str]) -> TtlSettings:
    """The settings of a table; options go before what it stores.

    A table that has TTL switched off keeps what it stores to itself.
    """
    stored, told = spelled(properties), spelled(options)
    own = settings_from(TtlSettings, stored)
    if own.enabled is False:
        stored = {key: value for key, value in stored.items() if not key.startswith(HUDI_PREFIX)}
    return settings_from(TtlSettings, {**stored, **told})


def spelled(options: Mapping[str, str]) -> dict[str, str]:
    """The options of TTL among others, each by the one name under which it is stored.

    Raises:
        InvalidError: two spellings of one key say different things.
    """
    found = {key: value for key, value in options.items() if key.startswith((PREFIX, HUDI_PREFIX))}
    for other, key in _SPELLINGS.items():
        value = found.pop(other, None)
        if value is None:
            continue
        if found.setdefault(key, value).strip().lower() != value.strip().lower():
            raise InvalidError(
                "two spellings of one option say different things: leave one out",
                **{key: found[key], other: value},
            )
    return found


def checked_settings(
    options: Mapping[str, str], *, partitioned: bool, keyed: bool = True
) -> dict[str, str]:
    """The settings of TTL among options as a table stores them.

    Raises:
        InvalidError: a key does not exist, a value is wrong, the table has no partitions, or has no
            keys and is to have rows deleted.
    """
    told = spelled(options)
    for key in told:
        if key not in TTL_KEYS:
            raise InvalidError("there is no such option", option=key, known=sorted(TTL_KEYS))
    settings = settings_from(TtlSettings, told)
    if told and not partitioned and (settings.enabled or settings.policies):
        refuse_unpartitioned()
    if not keyed and any(policy.level is Level.RECORD for policy in settings.policies):
        refuse_keyless()
    plain = {
        ENABLED: str(bool(settings.enabled)).lower(),
        RUN_INLINE: str(settings.run_inline).lower(),
        TRIGGER: settings.trigger.value,
        CONFLICT_RULE: settings.conflict_rule.value,
        POLICIES: format_policies(settings.policies),
    }
    return {key: plain.get(key, value.strip()) for key, value in told.items()}


def with_settings(properties: Mapping[str, str], new: Mapping[str, str]) -> dict[str, str]:
    """The properties of a table with other settings; no other spelling of one of them stays."""
    outdated = {other for other, key in _SPELLINGS.items() if key in new}
    return {**{k: v for k, v in properties.items() if k not in outdated}, **new}


def refuse_keyless() -> None:
    """Raise for a table whose rows cannot be told from each other."""
    raise InvalidError("rows of a table without key fields cannot be deleted: use level PARTITION")


def refuse_unpartitioned() -> None:
    """Raise for a table that has nothing a policy could be for."""
    raise InvalidError("the table has no partitions: there is nothing that TTL could take out")
