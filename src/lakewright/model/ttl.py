"""TTL policies, the partitions that they apply to, and the TTL settings of a table.

A policy selects partitions by a spec and sets their retention in calendar units: a month after the
31st of January is the last day of February. Times are local times of the table's zone, represented
as UTC so that daylight saving neither skips nor repeats any.
"""

from __future__ import annotations

import json
import re
from calendar import monthrange
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta, tzinfo
from enum import StrEnum
from functools import cache
from typing import Any, TypeVar
from zoneinfo import ZoneInfo

from lakewright.clock import WESTERNMOST
from lakewright.errors import InvalidError
from lakewright.model.instant import format_time
from lakewright.model.partition_time import PathTime
from lakewright.model.path_patterns import level_regex
from lakewright.options import at_least, option, option_keys, parse_bool, parse_word, settings_from

Choice = TypeVar("Choice", bound=StrEnum)

# The value of a policy is an int in Java.
_MAX_VALUE = 2**31 - 1
_FIELDS = ("spec", "level", "units", "value")
_EVERY_PARTITION = "*"
_ANY_LEVELS = "(?:/[^/]++)*"
NEVER = datetime.max.replace(tzinfo=UTC)
LONG_AGO = datetime(1000, 1, 1, tzinfo=UTC)


class TtlLevel(StrEnum):
    """What a policy deletes: whole partitions, or single rows."""

    PARTITION = "PARTITION"
    RECORD = "RECORD"


class TtlUnit(StrEnum):
    """The unit of a policy's retention."""

    YEARS = "YEARS"
    MONTHS = "MONTHS"
    WEEKS = "WEEKS"
    DAYS = "DAYS"


_MONTHS = {TtlUnit.YEARS: 12, TtlUnit.MONTHS: 1}
_DAYS = {TtlUnit.WEEKS: 7, TtlUnit.DAYS: 1}
# The average over the 400 years after which the calendar repeats.
_DAYS_IN_MONTH = 146_097 / 4800


@dataclass(frozen=True, slots=True, kw_only=True)
class TtlPolicy:
    """The retention of the partitions that a spec matches; the spec identifies the policy.

    In a spec, `*` and `?` match text within one level of a partition path, and `**` as a whole
    level matches any number of levels; the spec `*` matches all partitions.
    """

    spec: str
    units: TtlUnit
    value: int
    level: TtlLevel = TtlLevel.PARTITION

    def matches(self, partition: str) -> bool:
        """Whether this policy applies to a partition, given its path.

        >>> policy = TtlPolicy(spec="country=US/*", units=TtlUnit.DAYS, value=1)
        >>> policy.matches("country=US/state=CA")
        True
        """
        return self.spec == _EVERY_PARTITION or bool(_pattern(self.spec).fullmatch(f"/{partition}"))

    def expiry(self, since: datetime) -> datetime:
        """Return the time after which a partition is expired whose age counts from `since`."""
        try:
            if self.units in _DAYS:
                return since + timedelta(days=self.value * _DAYS[self.units])
            return _add_months(since, self.value * _MONTHS[self.units])
        except (OverflowError, ValueError):
            return NEVER

    def cutoff(self, now: datetime) -> datetime:
        """Return the time before which everything has expired `now`.

        If the resulting month does not have the day of `now`, the result is its last day. So rows
        from the end of a month may expire a few days late, but never early.
        """
        try:
            if self.units in _DAYS:
                earliest = now - timedelta(days=self.value * _DAYS[self.units])
            else:
                earliest = _add_months(now, -self.value * _MONTHS[self.units])
        except (OverflowError, ValueError):
            return LONG_AGO
        return max(earliest, LONG_AGO)

    @property
    def usual_days(self) -> float:
        """The retention in days; years and months count with their average length."""
        months = _MONTHS.get(self.units, 0) * self.value
        return months * _DAYS_IN_MONTH + _DAYS.get(self.units, 0) * self.value

    def document(self) -> dict[str, Any]:
        """Return the policy as a JSON object."""
        return {
            "spec": self.spec,
            "level": self.level.value,
            "units": self.units.value,
            "value": self.value,
        }


def _add_months(since: datetime, count: int) -> datetime:
    year, month = divmod(since.year * 12 + since.month - 1 + count, 12)
    day = min(since.day, monthrange(year, month + 1)[1])
    return since.replace(year=year, month=month + 1, day=day)


@cache
def _pattern(spec: str) -> re.Pattern[str]:
    """Return a spec as a regular expression for paths with a slash before each level."""
    first, *rest = _split_at_any_levels(spec)
    if not rest:
        return re.compile(first)
    if not any((first, *rest)):
        return re.compile(".*", re.DOTALL)
    # As within a level (see `path_patterns`), each part is matched at its first occurrence.
    inner = "".join(f"(?>{_ANY_LEVELS}?{part})" for part in rest[:-1])
    return re.compile(f"{first}{inner}{_ANY_LEVELS}{rest[-1]}")


def _split_at_any_levels(spec: str) -> list[str]:
    """Return the parts of a spec before, between and after `**`, as regular expressions."""
    parts = [""]
    previous = ""
    for level in spec.split("/"):
        if level != "**":
            parts[-1] += f"/(?>{level_regex(level)}(?![^/]))"
        elif previous != "**":
            # Several `**` in a row are equivalent to one.
            parts.append("")
        previous = level
    return parts


def parse_policy(policy: Mapping[str, Any] | str) -> TtlPolicy:
    """Return a policy, given its four fields as a mapping or as JSON; the level is optional.

    Raises:
        InvalidError: it is not a valid policy; the error names the wrong field.
    """
    fields = _parse_json(policy) if isinstance(policy, str) else policy
    if not isinstance(fields, Mapping):
        raise InvalidError("a policy is a JSON object", policy=policy, fields=list(_FIELDS))
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
        level=TtlLevel.PARTITION if level is None else _parse_enum(TtlLevel, "level", level),
        units=_parse_enum(TtlUnit, "units", fields["units"]),
        value=_parse_count(fields["value"]),
    )


def parse_policies(text: str) -> tuple[TtlPolicy, ...]:
    """Parse the policies of a table, a JSON list.

    Raises:
        InvalidError: it is not a list, a policy is wrong, or two have the same spec.
    """
    listed = _parse_json(text) if text.strip() else []
    if not isinstance(listed, list):
        raise InvalidError("policies are a JSON list", policies=text)
    policies = tuple(parse_policy(item) for item in listed)
    counts = Counter(policy.spec for policy in policies)
    duplicates = sorted(spec for spec, count in counts.items() if count > 1)
    if duplicates:
        raise InvalidError("a spec has one policy, and these have several", specs=duplicates)
    return policies


def format_policies(policies: tuple[TtlPolicy, ...]) -> str:
    """Return policies as a table stores them; the inverse of `parse_policies`."""
    return json.dumps([policy.document() for policy in policies], separators=(",", ":"))


def parse_spec(value: object) -> str:
    """Return a spec without leading and trailing slashes.

    Raises:
        InvalidError: it cannot match a partition of any table.
    """
    if not isinstance(value, str) or not value.strip().strip("/"):
        raise InvalidError("a policy needs a spec: * for every partition, or a path", spec=value)
    spec = value.strip().strip("/")
    levels = spec.split("/")
    if any(level in ("", ".", "..") for level in levels):
        raise InvalidError("no partition has a level of this name", spec=value)
    if any("**" in level and level != "**" for level in levels):
        raise InvalidError(
            "** stands for whole levels: put slashes around it, or use *", spec=value
        )
    return spec


def with_policy(policies: tuple[TtlPolicy, ...], new: TtlPolicy) -> tuple[TtlPolicy, ...]:
    """Return the policies with a new one, which replaces the one with the same spec, if any."""
    if any(policy.spec == new.spec for policy in policies):
        return tuple(new if policy.spec == new.spec else policy for policy in policies)
    return (*policies, new)


def without_policy(policies: tuple[TtlPolicy, ...], spec: str) -> tuple[TtlPolicy, ...]:
    """Return the policies without the one with this spec; InvalidError if there is none."""
    normalized = parse_spec(spec)
    specs = [policy.spec for policy in policies]
    if normalized not in specs:
        raise InvalidError("there is no policy with this spec", spec=spec, known=specs)
    return tuple(policy for policy in policies if policy.spec != normalized)


def _parse_json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidError("this is no JSON", text=text[:200], reason=str(error)) from error


def _parse_enum(kind: type[Choice], field: str, value: object) -> Choice:
    name = str(value).strip().upper()
    if name not in list(kind):
        raise InvalidError(
            f"a policy has no such {field}",
            **{field: value, "known": [choice.value for choice in kind]},
        )
    return kind(name)


def _parse_count(value: object) -> int:
    """Parse an integer above 0; it may be text, as arguments of procedures are."""
    number = None if isinstance(value, bool) else value
    if isinstance(number, str):
        text = number.strip()
        number = int(text) if text.isascii() and text.isdecimal() else None
    if not isinstance(number, int) or not 0 < number <= _MAX_VALUE:
        raise InvalidError("the value of a policy is a whole number above 0", value=value)
    return number


# TTL settings: those of this library, and those of Hudi 1.x.

PREFIX = "hoodie.ttl."
HUDI_PREFIX = "hoodie.partition.ttl."
ENABLED = "hoodie.ttl.enabled"
RUN_INLINE = "hoodie.ttl.run.inline"
TRIGGER = "hoodie.ttl.run.inline.trigger.strategy"
TRIGGER_VALUE = "hoodie.ttl.run.inline.trigger.value"
CONFLICT_RULE = "hoodie.ttl.conflict.resolution.rule"
POLICIES = "hoodie.ttl.policies"
MAX_PARTITIONS = "hoodie.ttl.max.partitions.per.run"
WRITERS_ZONE = "hoodie.ttl.writers.zone"
HUDI_DAYS = "hoodie.partition.ttl.strategy.days.retain"
HUDI_TYPE = "hoodie.partition.ttl.management.strategy.type"
# The specification of these settings spells one of them in two ways.
_ALIASES = {"hoodie.ttl.enable": ENABLED}
_ALL_PARTITIONS = "**"
_STRATEGY_CLASSES = {
    "KeepByTimeStrategy": "KEEP_BY_TIME",
    "KeepByCreationTimeStrategy": "KEEP_BY_CREATION_TIME",
    "KeepByEventTimeStrategy": "KEEP_BY_EVENT_TIME",
}


class TtlTrigger(StrEnum):
    """What triggers the next run after a write: a number of commits, or of days."""

    NUM_COMMITS = "NUM_COMMITS"
    TIME_ELAPSED = "TIME_ELAPSED"


class ConflictRule(StrEnum):
    """Which of several matching policies applies to a partition."""

    MAX_TTL = "MAX_TTL"
    MIN_TTL = "MIN_TTL"


class RetentionBasis(StrEnum):
    """What the age of a partition is counted from; the values are Hudi's."""

    BY_TIME = "KEEP_BY_TIME"
    BY_CREATION_TIME = "KEEP_BY_CREATION_TIME"
    BY_EVENT_TIME = "KEEP_BY_EVENT_TIME"


def _parse_paths(text: str) -> tuple[str, ...]:
    return tuple(name for part in text.split(",") if (name := part.strip().strip("/")))


def _parse_strategy_class(text: str) -> RetentionBasis | None:
    name = text.strip().rpartition(".")[2]
    if not name:
        return None
    if name not in _STRATEGY_CLASSES:
        raise ValueError(
            f"one of {', '.join(_STRATEGY_CLASSES)} expected: classes of one's own do not run"
        )
    return RetentionBasis(_STRATEGY_CLASSES[name])


def _parse_zone(text: str) -> ZoneInfo | None:
    """Parse the name of a zone; a name such as LOCAL, of another zone elsewhere, is no answer."""
    name = text.strip()
    try:
        return ZoneInfo(name) if name else None
    except (KeyError, OSError, ValueError) as error:
        raise ValueError("the name of a zone expected, such as Europe/Berlin") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class TtlSettings:
    """The TTL policies of a table, and when and how they are applied.

    The keys that begin with `hoodie.partition.ttl.` are those of Hudi 1.x: they define one more
    policy, for all partitions or for selected ones.
    """

    enabled: bool | None = option(
        ENABLED,
        None,
        parse=parse_bool,
        aliases=tuple(_ALIASES),
        doc="Whether the policies of the table are in force; off unless it is switched on.",
    )
    run_inline: bool = option(
        RUN_INLINE,
        True,
        parse=parse_bool,
        doc="Whether the trigger is checked after each write; else TTL runs beside writes, and "
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
        doc="Which of the policies that match a partition applies. MAX_TTL: the one by which it "
        "expires last. MIN_TTL: the one by which it expires first.",
    )
    policies: tuple[TtlPolicy, ...] = option(
        POLICIES,
        (),
        parse=parse_policies,
        doc="The policies, as a JSON list of objects with spec, level, units and value.",
    )
    most_partitions: int = option(
        MAX_PARTITIONS,
        1000,
        parse=at_least(1),
        aliases=("hoodie.partition.ttl.strategy.max.delete.partitions",),
        doc="How many partitions one run drops at most, the oldest first.",
    )
    writers_zone: ZoneInfo | None = option(
        WRITERS_ZONE,
        None,
        parse=_parse_zone,
        doc="The zone of all writers of a timeline in local time, such as Europe/Berlin. Unset: it "
        "is not known, and what expires goes when its time is over in every zone.",
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
        doc="How many days all partitions are kept; 0 or less: for ever.",
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
        parse=_parse_strategy_class,
        doc="The same by the name of Hudi's class; takes precedence over the type.",
    )
    hudi_selected: tuple[str, ...] = option(
        "hoodie.partition.ttl.strategy.partition.selected",
        (),
        parse=_parse_paths,
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
        """The policies by precedence; years and months count with their average length."""
        longest_first = self.conflict_rule is ConflictRule.MAX_TTL
        ordered = sorted(self.policies, key=lambda policy: (policy.usual_days, policy.spec))
        return tuple(reversed(ordered) if longest_first else ordered)


TTL_KEYS = option_keys(TtlSettings)


@dataclass(frozen=True, slots=True)
class ActivePolicy:
    """An active policy; if `selected` is not empty, it applies to those partitions only.

    `path_time` is set if the age of a partition counts from the time in its path; `default_expires`
    then says whether the default partition, of rows without a value, is expired.
    """

    policy: TtlPolicy
    basis: RetentionBasis = RetentionBasis.BY_TIME
    selected: frozenset[str] = frozenset()
    path_time: PathTime | None = None
    default_expires: bool = False

    def covers(self, partition: str) -> bool:
        """Whether the policy applies to a partition."""
        if self.selected:
            return partition in self.selected
        return self.policy.matches(partition)


def active_policies(settings: TtlSettings) -> tuple[ActivePolicy, ...]:
    """Return all policies that may delete partitions or rows of the table."""
    stored = settings.policies if settings.enabled else ()
    active = tuple(ActivePolicy(policy) for policy in stored)
    if settings.hudi_days <= 0:
        return active
    policy = TtlPolicy(spec=_ALL_PARTITIONS, units=TtlUnit.DAYS, value=settings.hudi_days)
    basis = settings.hudi_class or settings.hudi_type
    hudi_policy = ActivePolicy(policy, basis, frozenset(settings.hudi_selected))
    if basis is RetentionBasis.BY_EVENT_TIME:
        path_time = PathTime(settings.path_format, settings.path_start)
        hudi_policy = replace(
            hudi_policy, path_time=path_time, default_expires=settings.default_expires
        )
    return (*active, hudi_policy)


def path_expiry(active: ActivePolicy, partition: str, *, hive_style: bool) -> str:
    """Return the instant time at which a partition expires by the time in its path.

    Empty if the path names no time: such a partition fails a run, or is expired already.
    """
    if active.path_time is None:
        return format_time(NEVER)
    try:
        time = active.path_time.parse(partition, hive_style=hive_style)
    except InvalidError:
        return ""
    if time is None:
        return "" if active.default_expires else format_time(NEVER)
    return format_time(active.policy.expiry(time))


def ttl_zone(timeline_zone: str, settings: TtlSettings) -> tzinfo:
    """Return the zone in which TTL reads its clock and the times of a timeline.

    The times of a timeline in local time are those of its writers' zones, which may differ from
    each other and from the zone of this machine. No zone reaches a time later than the westernmost
    one, so there nothing expires early, wherever it was written.
    """
    if timeline_zone.strip().upper() == "UTC":
        return UTC
    return settings.writers_zone or WESTERNMOST


def ttl_settings(properties: Mapping[str, str], options: Mapping[str, str]) -> TtlSettings:
    """Return the TTL settings of a table; options take precedence over table properties.

    If a table has TTL switched off, its properties with Hudi's own keys are ignored.
    """
    stored, overrides = canonical_keys(properties), canonical_keys(options)
    stored_settings = settings_from(TtlSettings, stored)
    if stored_settings.enabled is False:
        stored = {key: value for key, value in stored.items() if not key.startswith(HUDI_PREFIX)}
    return settings_from(TtlSettings, {**stored, **overrides})


def canonical_keys(options: Mapping[str, str]) -> dict[str, str]:
    """Return the TTL options among others, each under the key by which it is stored.

    Raises:
        InvalidError: two spellings of a key have different values.
    """
    ttl_options = {
        key: value for key, value in options.items() if key.startswith((PREFIX, HUDI_PREFIX))
    }
    for alias, key in _ALIASES.items():
        value = ttl_options.pop(alias, None)
        if value is None:
            continue
        if ttl_options.setdefault(key, value).strip().lower() != value.strip().lower():
            raise InvalidError(
                "two spellings of one option say different things: leave one out",
                **{key: ttl_options[key], alias: value},
            )
    return ttl_options


def validated_settings(
    options: Mapping[str, str], *, partitioned: bool, keyed: bool = True
) -> dict[str, str]:
    """Return the TTL settings among options, in the form in which a table stores them.

    Raises:
        InvalidError: a key does not exist, a value is wrong, the table is not partitioned, or a
            policy deletes rows of a table without keys.
    """
    canonical = canonical_keys(options)
    for key in canonical:
        if key not in TTL_KEYS:
            raise InvalidError("there is no such option", option=key, known=sorted(TTL_KEYS))
    settings = settings_from(TtlSettings, canonical)
    if canonical and not partitioned and (settings.enabled or settings.policies):
        refuse_unpartitioned()
    if not keyed and any(policy.level is TtlLevel.RECORD for policy in settings.policies):
        refuse_keyless()
    normalized = {
        ENABLED: str(bool(settings.enabled)).lower(),
        RUN_INLINE: str(settings.run_inline).lower(),
        TRIGGER: settings.trigger.value,
        CONFLICT_RULE: settings.conflict_rule.value,
        POLICIES: format_policies(settings.policies),
    }
    return {key: normalized.get(key, value.strip()) for key, value in canonical.items()}


def with_settings(properties: Mapping[str, str], new: Mapping[str, str]) -> dict[str, str]:
    """Return table properties with new settings, and without other spellings of their keys."""
    replaced = {alias for alias, key in _ALIASES.items() if key in new}
    return {**{k: v for k, v in properties.items() if k not in replaced}, **new}


def refuse_keyless() -> None:
    """Raise InvalidError for a table without keys, whose rows cannot be identified."""
    raise InvalidError("rows of a table without key fields cannot be deleted: use level PARTITION")


def refuse_unpartitioned() -> None:
    """Raise InvalidError for a table without partitions."""
    raise InvalidError("the table has no partitions: there is nothing that TTL could take out")
