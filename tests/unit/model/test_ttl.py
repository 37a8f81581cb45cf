"""Policies: what they are made of, the partitions they are for, and when those expire."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from lakewright.errors import InvalidError
from lakewright.model.ttl import (
    NEVER,
    TtlLevel,
    TtlPolicy,
    TtlUnit,
    format_policies,
    parse_policies,
    parse_policy,
    with_policy,
    without_policy,
)

GOOD: dict[str, tuple[dict[str, Any] | str, TtlPolicy]] = {
    "the fields of a policy are read as they are": (
        {"spec": "country=US/*", "level": "PARTITION", "units": "MONTHS", "value": 2},
        TtlPolicy(spec="country=US/*", units=TtlUnit.MONTHS, value=2),
    ),
    "a policy may be JSON": (
        '{"spec": "*", "level": "RECORD", "units": "YEARS", "value": 1}',
        TtlPolicy(spec="*", units=TtlUnit.YEARS, value=1, level=TtlLevel.RECORD),
    ),
    "words have no case, a number may be a text, the level may be left out": (
        {"spec": " /a/*/ ", "units": "weeks", "value": "3"},
        TtlPolicy(spec="a/*", units=TtlUnit.WEEKS, value=3),
    ),
    "the greatest number is Java's": (
        {"spec": "*", "units": "DAYS", "value": 2**31 - 1, "level": None},
        TtlPolicy(spec="*", units=TtlUnit.DAYS, value=2**31 - 1),
    ),
}


@pytest.mark.parametrize(("written", "expected"), GOOD.values(), ids=list(GOOD))
def test_policies_are_read(written: dict[str, Any] | str, expected: TtlPolicy) -> None:
    assert parse_policy(written) == expected
    assert parse_policies(format_policies((expected,))) == (expected,)


def fields(**changed: Any) -> dict[str, Any]:
    return {"spec": "*", "level": "PARTITION", "units": "DAYS", "value": 1, **changed}


BAD: dict[str, tuple[Any, str]] = {
    "a value of 0": (fields(value=0), "value=0"),
    "a value below 0": (fields(value=-1), "value=-1"),
    "a value that is no whole number": (fields(value=1.5), "value=1.5"),
    "a text that is no number": (fields(value="a week"), "value='a week'"),
    "a truth for a number": (fields(value=True), "value=True"),
    "a value beyond Java's": (fields(value=2**31), "value=2147483648"),
    "an unknown unit": (fields(units="HOURS"), "known=['YEARS', 'MONTHS', 'WEEKS', 'DAYS']"),
    "an unknown level": (fields(level="TABLE"), "known=['PARTITION', 'RECORD']"),
    "an empty spec": (fields(spec=" / "), "spec=' / '"),
    "a spec that is no text": (fields(spec=7), "spec=7"),
    "a spec with an empty level": (fields(spec="a//b"), "spec='a//b'"),
    "a spec that climbs": (fields(spec="../b"), "spec='../b'"),
    "two stars within a level": (fields(spec="a/b**"), "** stands for whole levels"),
    "a field that does not exist": (fields(unit="DAYS"), "unknown=['unit']"),
    "a field that is missing": ({"spec": "*", "units": "DAYS"}, "missing=['value']"),
    "no JSON": ("spec=*", "this is no JSON"),
    "JSON of something else": ("[1]", "a policy is a JSON object"),
}


@pytest.mark.parametrize(("written", "message"), BAD.values(), ids=list(BAD))
def test_what_is_no_policy_is_refused_with_its_reason(written: Any, message: str) -> None:
    with pytest.raises(InvalidError) as caught:
        parse_policy(written)
    assert message in str(caught.value)


LISTS = {
    "an object is no list": "{}",
    "a list of other things is none": "[1]",
    "a list that breaks off is none": '[{"spec": "*"',
    "a spec has one policy": json.dumps([fields(), fields(value=2)]),
}


@pytest.mark.parametrize("text", LISTS.values(), ids=list(LISTS))
def test_what_is_no_list_of_policies_is_refused(text: str) -> None:
    with pytest.raises(InvalidError):
        parse_policies(text)


def test_no_text_is_no_policy() -> None:
    assert parse_policies("") == parse_policies("[]") == ()


def test_a_policy_takes_the_place_of_the_one_with_its_spec() -> None:
    first, second = (parse_policy(fields(spec=spec)) for spec in ("*", "a"))
    newer = parse_policy(fields(value=9))
    assert with_policy((first, second), newer) == (newer, second)
    assert with_policy((first,), second) == (first, second)
    assert without_policy((first, second), "/a/") == (first,)
    with pytest.raises(InvalidError, match=r"known=\['\*'\]"):
        without_policy((first,), "a")


MATCHES = {
    "a star alone is for every partition": (
        "*",
        "a a/b country=US/state=CA year=2026/month=01/day=31",
        "",
    ),
    "two stars alone as well": ("**", "a a/b a/b/c", ""),
    "and two levels of them": ("**/**", "a a/b a/b/c", ""),
    "a star stands for text within a level": (
        "country=US/*",
        "country=US/state=CA country=US/x",
        "country=USA/state=X country=US country=US/a/b xcountry=US/a",
    ),
    "within a name too": ("day=2026-0*", "day=2026-01 day=2026-0", "day=2025-01 day=2026-01/h=1"),
    "in front too": ("*/state=CA", "country=US/state=CA US/state=CA", "country=US/state=CAL"),
    "a question mark is one character": ("day=?", "day=1", "day= day=12 day=1/2"),
    "and no slash": ("a?b", "axb a.b", "a/b"),
    "two stars stand for any number of levels": (
        "country=US/**",
        "country=US country=US/a country=US/a/b",
        "country=USA country=USA/a x/country=US",
    ),
    "in the middle": ("a/**/z", "a/z a/b/z a/b/c/z", "az a/bz z a/z/b"),
    "in front": ("**/z", "z a/z a/b/z", "az a/z/b"),
    "paths need not be in hive style": ("US/*", "US/CA US/x=1", "country=US/CA USA/CA US"),
    "a path is itself": ("a/b", "a/b", "a/bc xa/b a a/b/c"),
    "nothing else has a meaning of its own": ("a.[b]+(c)", "a.[b]+(c)", "axb+(c) a.b a.bc"),
    "case counts": ("country=us/*", "country=us/a", "country=US/a"),
}


@pytest.mark.parametrize(("spec", "for_", "not_for"), MATCHES.values(), ids=list(MATCHES))
def test_specs_match_paths(spec: str, for_: str, not_for: str) -> None:
    policy = parse_policy(fields(spec=spec))
    paths = [*for_.split(), *not_for.split()]
    assert [path for path in paths if policy.matches(path)] == for_.split()


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


CALENDAR = {
    "a day is a day": ("2026-03-28T12:00", "DAYS", 1, "2026-03-29T12:00"),
    "a week has seven days": ("2026-02-25T00:00", "WEEKS", 1, "2026-03-04T00:00"),
    "a month goes to the same day": ("2026-01-15T08:30", "MONTHS", 1, "2026-02-15T08:30"),
    "or to the last one of a shorter month": ("2026-01-31T08:30", "MONTHS", 1, "2026-02-28T08:30"),
    "which in leap years is a day later": ("2028-01-31T00:00", "MONTHS", 1, "2028-02-29T00:00"),
    "from the end of a month not always to an end": (
        "2026-02-28T00:00",
        "MONTHS",
        1,
        "2026-03-28T00:00",
    ),
    "months go over the year": ("2026-11-30T23:59", "MONTHS", 3, "2027-02-28T23:59"),
    "twelve months are a year": ("2024-02-29T10:00", "MONTHS", 12, "2025-02-28T10:00"),
    "a year after a leap day is a day earlier": (
        "2024-02-29T10:00",
        "YEARS",
        1,
        "2025-02-28T10:00",
    ),
    "and four years after it the same day": ("2024-02-29T10:00", "YEARS", 4, "2028-02-29T10:00"),
    "30 days are no month": ("2026-01-31T00:00", "DAYS", 30, "2026-03-02T00:00"),
    "25 days are more than 32 bits of milliseconds": (
        "2026-01-01T00:00",
        "DAYS",
        25,
        "2026-01-26T00:00",
    ),
    "and so are 50": ("2026-01-01T00:00", "DAYS", 50, "2026-02-20T00:00"),
    "365 days are no leap year": ("2028-01-01T00:00", "DAYS", 365, "2028-12-31T00:00"),
}


@pytest.mark.parametrize(("since", "units", "value", "expected"), CALENDAR.values(), ids=CALENDAR)
def test_time_is_counted_on_the_calendar(since: str, units: str, value: int, expected: str) -> None:
    policy = parse_policy(fields(units=units, value=value))
    assert policy.expiry(at(since)) == at(expected)


@pytest.mark.parametrize("units", list(TtlUnit))
def test_what_lies_beyond_the_calendar_never_comes(units: TtlUnit) -> None:
    policy = TtlPolicy(spec="*", units=units, value=2**31 - 1)
    assert policy.expiry(at("2026-01-01T00:00")) == NEVER


LONG = "a" * 4000

COSTLY = {
    "stars within a level": (f"*{'a*' * 12}b", LONG, "b"),
    "stars in a level after any levels": (f"**/*{'a*' * 12}b", f"{'a/' * 50}{LONG}", "b"),
    "any levels, again and again": ("**/a/" * 12 + "b", "a/" * 1000 + "a", "/b"),
}


@pytest.mark.parametrize(("spec", "partition", "end"), COSTLY.values(), ids=list(COSTLY))
def test_a_spec_that_fits_in_many_ways_but_for_its_end_is_answered(
    spec: str, partition: str, end: str
) -> None:
    """Trying every way to fit would not end within years."""
    policy = TtlPolicy(spec=spec, units=TtlUnit.DAYS, value=1)
    assert not policy.matches(partition)
    assert policy.matches(partition + end)


@given(
    spec=st.lists(st.text("ab?*", min_size=1, max_size=5) | st.just("**"), min_size=1, max_size=5),
    path=st.lists(st.text("ab", max_size=5), min_size=1, max_size=5),
)
def test_specs_match_by_their_wildcards(spec: list[str], path: list[str]) -> None:
    levels = [re.sub(r"\*+", "*", level) if level != "**" else level for level in spec]
    policy = TtlPolicy(spec="/".join(levels), units=TtlUnit.DAYS, value=1)
    expected = levels == ["*"] or levels_match(levels, path)
    assume(all(path) or len(path) == 1)
    assert policy.matches("/".join(path)) == expected


def levels_match(spec: list[str], path: list[str]) -> bool:
    if not spec:
        return not path
    if set(spec) == {"**"}:
        return True
    if spec[0] == "**":
        return any(levels_match(spec[1:], path[taken:]) for taken in range(len(path) + 1))
    if not path:
        return False
    fits = re.fullmatch(spec[0].replace("*", ".*").replace("?", "."), path[0])
    return bool(fits) and levels_match(spec[1:], path[1:])
