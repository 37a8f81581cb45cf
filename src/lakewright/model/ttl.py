"""How long partitions are kept: policies, the partitions they are for, and when those expire. Pure.

A policy names partitions by a spec and says how long they live, in calendar terms: a month after
the 31st of January is the last day of February. Times are those that the clock on the wall shows in
the table's zone: they are handled as if it were UTC, which skips and repeats nothing.
"""

from __future__ import annotations

import json
import re
from calendar import monthrange
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import cache
from typing import Any, TypeVar

from lakewright.errors import InvalidError
from lakewright.model.partition_time import PathTime
from lakewright.model.path_patterns import level_regex
from lakewright.options import at_least, option, option_keys, parse_bool, parse_word, settings_from

Word = TypeVar("Word", bound=StrEnum)

# The numbers of a policy are Java's.
_GREATEST = 2**31 - 1
_FIELDS = ("spec", "level", "units", "value")
_EVERY_PARTITION = "*"
_ANY_LEVELS = "(?:/[^/]++)*"
NEVER = datetime.max.replace(tzinfo=UTC)
LONG_AGO = datetime(1000, 1, 1, tzinfo=UTC)


class TtlLevel(StrEnum):
    """What goes when it is old: whole partitions, or single rows."""

    PARTITION = "PARTITION"
    RECORD = "RECORD"


class TtlUnit(StrEnum):
    """What a policy counts in."""

    YEARS = "YEARS"
    MONTHS = "MONTHS"
    WEEKS = "WEEKS"
    DAYS = "DAYS"


_MONTHS = {TtlUnit.YEARS: 12, TtlUnit.MONTHS: 1}
_DAYS = {TtlUnit.WEEKS: 7, TtlUnit.DAYS: 1}
# On average over the 400 years in which the calendar repeats itself.
_DAYS_IN_MONTH = 146_097 / 4800


@dataclass(frozen=True, slots=True, kw_only=True)
class TtlPolicy:
    """How long the partitions live that a spec names; the spec is the policy's identity.

    In a spec `*` and `?` stand for text within one level of a partition path, and `**` as a level
    of its own for any number of levels; a spec of `*` alone is for every partition.
    """

    spec: str
    units: TtlUnit
    value: int
    level: TtlLevel = TtlLevel.PARTITION

    def matches(self, partition: str) -> bool:
        """Whether a partition, by its path, falls under this policy.

        >>> Policy(spec="country=US/*", units=Unit.DAYS, value=1).matches("country=US/state=CA")
        True
        """
        return self.spec == _EVERY_PARTITION or bool(_pattern(self.spec).fullmatch(f"/{partition}"))

    def expiry(self, since: datetime) -> datetime:
        """The moment after which a partition of this age is expired."""
        try:
            if self.units in _DAYS:
                return since + timedelta(days=self.value * _DAYS[self.units])
            return _months_later(since, self.value * _MONTHS[self.units])
        except (OverflowError, ValueError):
            return NEVER

    def cutoff(self, now: datetime) -> datetime:
        """The moment before which everything is expired by now.

        Months before a day that their own month has not: its last day. So what is from the end of
        a longer month may go a few days after its time, and never before it.
        """
        try:
            if self.units in _DAYS:
                found = now - timedelta(days=self.value * _DAYS[self.units])
            else:
                found = _months_later(now, -self.value * _MONTHS[self.units])
        except (OverflowError, ValueError):
            return LONG_AGO
        return max(found, LONG_AGO)

    @property
    def usual_days(self) -> float:
        """How many days it is, counted from no day in particular."""
        months = _MONTHS.get(self.units, 0) * self.value
        return months * _DAYS_IN_MONTH + _DAYS.get(self.units, 0) * self.value

    def document(self) -> dict[str, Any]:
        """The policy as JSON has it."""
        return {
            "spec": self.spec,
            "level": self.level.value,
            "units": self.units.value,
            "value": self.value,
        }


def _months_later(since: datetime, count: int) -> datetime:
    year, month = divmod(since.year * 12 + since.month - 1 + count, 12)
    day = min(since.day, monthrange(year, month + 1)[1])
    return since.replace(year=year, month=month + 1, day=day)


@cache
def _pattern(spec: str) -> re.Pattern[str]:
    """A spec as a regular expression on a path with a slash before each level."""
    head, *others = _between_any_levels(spec)
    if not others:
        return re.compile(head)
    if not any((head, *others)):
        return re.compile(".*", re.DOTALL)
    # As within a level: what follows any number of levels is taken where it is found first.
    inner = "".join(f"(?>{_ANY_LEVELS}?{part})" for part in others[:-1])
    return re.compile(f"{head}{inner}{_ANY_LEVELS}{others[-1]}")


def _between_any_levels(spec: str) -> list[str]:
    """What a spec has before, between and after levels of `**`, as regular expressions."""
    parts = [""]
    before = ""
    for level in spec.split("/"):
        if level != "**":
            parts[-1] += f"/(?>{level_regex(level)}(?![^/]))"
        elif before != "**":
            # Two such levels in a row say the same as one.
            parts.append("")
        before = level
    return parts


def parse_policy(given: Mapping[str, Any] | str) -> TtlPolicy:
    """A policy from its four fields, as a mapping or as JSON; the level may be left out.

    Raises:
        InvalidError: it is none, with the field that is wrong.
    """
    fields = _json(given) if isinstance(given, str) else given
    if not isinstance(fields, Mapping):
        raise InvalidError("a policy is a JSON object", policy=given, fields=list(_FIELDS))
    unknown = [str(name) for name in fields if name not in _FIELDS]
    missing = [name for name in _FIELDS if fields.get(name) is None and name != "level"]
    if unknown or missing:
        raise InvalidError(
            "a policy has the fields spec, level, units and value",
            policy=dict(fields),
            **({"unknown": unknown} if unknown else {}),
            **({"missing": missing} if missing else {}),
        )
    level = fields.get("level")
    return TtlPolicy(
        spec=parse_spec(fields["spec"]),
        level=TtlLevel.PARTITION if level is None else _word(TtlLevel, "level", level),
        units=_word(TtlUnit, "units", fields["units"]),
        value=_value(fields["value"]),
    )


def parse_policies(text: str) -> tuple[TtlPolicy, ...]:
    """The policies that a table stores, as a JSON list.

    Raises:
        InvalidError: it is no such list, one of them is wrong, or two have the same spec.
    """
    listed = _json(text) if text.strip() else []
    if not isinstance(listed, list):
        raise InvalidError("policies are a JSON list", policies=text)
    policies = tuple(parse_policy(each) for each in listed)
    counts = Counter(policy.spec for policy in policies)
    twice = sorted(spec for spec, count in counts.items() if count > 1)
    if twice:
        raise InvalidError("a spec has one policy, and these have several", specs=twice)
    return policies


def format_policies(policies: tuple[TtlPolicy, ...]) -> str:
    """Policies as a table stores them; the inverse of `parse_policies`."""
    return json.dumps([policy.document() for policy in policies], separators=(",", ":"))


def parse_spec(given: object) -> str:
    """A spec without the slashes around it.

    Raises:
        InvalidError: it can name no partition of any table.
    """
    if not isinstance(given, str) or not given.strip().strip("/"):
        raise InvalidError("a policy needs a spec: * for every partition, or a path", spec=given)
    spec = given.strip().strip("/")
    levels = spec.split("/")
    if any(level in ("", ".", "..") for level in levels):
        raise InvalidError("no partition has a level of this name", spec=given)
    if any("**" in level and level != "**" for level in levels):
        raise InvalidError(
            "** stands for whole levels: put slashes around it, or use *", spec=given
        )
    return spec


def with_policy(policies: tuple[TtlPolicy, ...], new: TtlPolicy) -> tuple[TtlPolicy, ...]:
    """The policies with another one, in the place of the one with its spec, if there is one."""
    if any(policy.spec == new.spec for policy in policies):
        return tuple(new if policy.spec == new.spec else policy for policy in policies)
    return (*policies, new)


def without_policy(policies: tuple[TtlPolicy, ...], spec: str) -> tuple[TtlPolicy, ...]:
    """The policies but the one with a spec; InvalidError if there is none."""
    plain = parse_spec(spec)
    known = [policy.spec for policy in policies]
    if plain not in known:
        raise InvalidError("there is no policy with this spec", spec=spec, known=known)
    return tuple(policy for policy in policies if policy.spec != plain)


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidError("this is no JSON", text=text[:200], reason=str(error)) from error


def _word(kind: type[Word], field: str, given: object) -> Word:
    word = str(given).strip().upper()
    if word not in list(kind):
        raise InvalidError(
            f"a policy has no such {field}",
            **{field: given, "known": [each.value for each in kind]},
        )
    return kind(word)


def _value(given: object) -> int:
    """A whole number, or the text of one: arguments of procedures are texts."""
    number = None if isinstance(given, bool) else given
    if isinstance(number, str):
        text = number.strip()
        number = int(text) if text.isascii() and text.isdecimal() else None
    if not isinstance(number, int) or not 0 < number <= _GREATEST:
        raise InvalidError("the value of a policy is a whole number above 0", value=given)
    return number


# ------------------------------------------------------------------------------------------------
# The settings of partition TTL: those that a table stores, and those of Hudi 1.x. Pure.


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


class TtlTrigger(StrEnum):
    """What has to pass between two runs after writes: commits, or days."""

    NUM_COMMITS = "NUM_COMMITS"
    TIME_ELAPSED = "TIME_ELAPSED"


class ConflictRule(StrEnum):
    """Which of several policies decides about a partition."""

    MAX_TTL = "MAX_TTL"
    MIN_TTL = "MIN_TTL"


class RetentionBasis(StrEnum):
    """What the age of a partition is counted from, in Hudi's words."""

    BY_TIME = "KEEP_BY_TIME"
    BY_CREATION_TIME = "KEEP_BY_CREATION_TIME"
    BY_EVENT_TIME = "KEEP_BY_EVENT_TIME"


def _paths(text: str) -> tuple[str, ...]:
    return tuple(name for part in text.split(",") if (name := part.strip().strip("/")))


def _strategy_class(text: str) -> RetentionBasis | None:
    name = text.strip().rpartition(".")[2]
    if not name:
        return None
    if name not in _CLASSES:
        raise ValueError(f"one of {', '.join(_CLASSES)} expected: classes of one's own do not run")
    return RetentionBasis(_CLASSES[name])


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
    trigger: TtlTrigger = option(
        TRIGGER,
        TtlTrigger.NUM_COMMITS,
        parse=parse_word(TtlTrigger),
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
    policies: tuple[TtlPolicy, ...] = option(
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
    hudi_type: RetentionBasis = option(
        HUDI_TYPE,
        RetentionBasis.BY_TIME,
        parse=parse_word(RetentionBasis),
        doc="KEEP_BY_TIME: since the last write to the partition. KEEP_BY_CREATION_TIME: since the "
        "first. KEEP_BY_EVENT_TIME: since the beginning of the day or hour that its path names.",
    )
    hudi_class: RetentionBasis | None = option(
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
    def in_order(self) -> tuple[TtlPolicy, ...]:
        """The policies in the order in which they decide; how long a month is, on average."""
        last_first = self.conflict_rule is ConflictRule.MAX_TTL
        ordered = sorted(self.policies, key=lambda each: (each.usual_days, each.spec))
        return tuple(reversed(ordered) if last_first else ordered)


TTL_KEYS = option_keys(TtlSettings)


@dataclass(frozen=True, slots=True)
class ActivePolicy:
    """A policy in force; `selected`, where there is one, leaves out all other partitions.

    `path_time` is set where an age is counted from what a path tells; `default_expires` is then
    about the partition without a value.
    """

    policy: TtlPolicy
    basis: RetentionBasis = RetentionBasis.BY_TIME
    selected: frozenset[str] = frozenset()
    path_time: PathTime | None = None
    default_expires: bool = False

    def covers(self, partition: str) -> bool:
        """Whether a partition falls under it."""
        if self.selected:
            return partition in self.selected
        return self.policy.matches(partition)


def active_policies(settings: TtlSettings) -> tuple[ActivePolicy, ...]:
    """All that may take a partition, or rows, out of the table."""
    own = settings.policies if settings.enabled else ()
    rules = tuple(ActivePolicy(policy) for policy in own)
    if settings.hudi_days <= 0:
        return rules
    policy = TtlPolicy(spec=_ALL, units=TtlUnit.DAYS, value=settings.hudi_days)
    keep = settings.hudi_class or settings.hudi_type
    rule = ActivePolicy(policy, keep, frozenset(settings.hudi_selected))
    if keep is RetentionBasis.BY_EVENT_TIME:
        path_time = PathTime(settings.path_format, settings.path_start)
        rule = replace(rule, path_time=path_time, default_expires=settings.default_expires)
    return (*rules, rule)


def ttl_settings(properties: Mapping[str, str], options: Mapping[str, str]) -> TtlSettings:
    """The settings of a table; options go before what it stores.

    A table that has TTL switched off keeps what it stores to itself.
    """
    stored, told = canonical_keys(properties), canonical_keys(options)
    own = settings_from(TtlSettings, stored)
    if own.enabled is False:
        stored = {key: value for key, value in stored.items() if not key.startswith(HUDI_PREFIX)}
    return settings_from(TtlSettings, {**stored, **told})


def canonical_keys(options: Mapping[str, str]) -> dict[str, str]:
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


def validated_settings(
    options: Mapping[str, str], *, partitioned: bool, keyed: bool = True
) -> dict[str, str]:
    """The settings of TTL among options as a table stores them.

    Raises:
        InvalidError: a key does not exist, a value is wrong, the table has no partitions, or has no
            keys and is to have rows deleted.
    """
    told = canonical_keys(options)
    for key in told:
        if key not in TTL_KEYS:
            raise InvalidError("there is no such option", option=key, known=sorted(TTL_KEYS))
    settings = settings_from(TtlSettings, told)
    if told and not partitioned and (settings.enabled or settings.policies):
        refuse_unpartitioned()
    if not keyed and any(policy.level is TtlLevel.RECORD for policy in settings.policies):
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
