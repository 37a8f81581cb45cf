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
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import cache
from typing import Any, TypeVar

from lakewright.core.wildcards import level_regex
from lakewright.errors import InvalidError

Word = TypeVar("Word", bound=StrEnum)

# The numbers of a policy are Java's.
_GREATEST = 2**31 - 1
_FIELDS = ("spec", "level", "units", "value")
_EVERY_PARTITION = "*"
_ANY_LEVELS = "(?:/[^/]++)*"
NEVER = datetime.max.replace(tzinfo=UTC)
LONG_AGO = datetime(1000, 1, 1, tzinfo=UTC)


class Level(StrEnum):
    """What goes when it is old: whole partitions, or single rows."""

    PARTITION = "PARTITION"
    RECORD = "RECORD"


class Unit(StrEnum):
    """What a policy counts in."""

    YEARS = "YEARS"
    MONTHS = "MONTHS"
    WEEKS = "WEEKS"
    DAYS = "DAYS"


_MONTHS = {Unit.YEARS: 12, Unit.MONTHS: 1}
_DAYS = {Unit.WEEKS: 7, Unit.DAYS: 1}
# On average over the 400 years in which the calendar repeats itself.
_DAYS_IN_MONTH = 146_097 / 4800


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """How long the partitions live that a spec names; the spec is the policy's identity.

    In a spec `*` and `?` stand for text within one level of a partition path, and `**` as a level
    of its own for any number of levels; a spec of `*` alone is for every partition.
    """

    spec: str
    units: Unit
    value: int
    level: Level = Level.PARTITION

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


def parse_policy(given: Mapping[str, Any] | str) -> Policy:
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
    return Policy(
        spec=parse_spec(fields["spec"]),
        level=Level.PARTITION if level is None else _word(Level, "level", level),
        units=_word(Unit, "units", fields["units"]),
        value=_value(fields["value"]),
    )


def parse_policies(text: str) -> tuple[Policy, ...]:
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


def format_policies(policies: tuple[Policy, ...]) -> str:
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


def with_policy(policies: tuple[Policy, ...], new: Policy) -> tuple[Policy, ...]:
    """The policies with another one, in the place of the one with its spec, if there is one."""
    if any(policy.spec == new.spec for policy in policies):
        return tuple(new if policy.spec == new.spec else policy for policy in policies)
    return (*policies, new)


def without_policy(policies: tuple[Policy, ...], spec: str) -> tuple[Policy, ...]:
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
