from __future__ import annotations

from datetime import UTC, datetime, tzinfo
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakewright.errors import CorruptError
from lakewright.model.instant import format_time, parse_time
from lakewright.table.time_generator import TimeGenerator
from lakewright.testing.clock import ManualClock

OSLO = ZoneInfo("Europe/Oslo")
START = "20260101000000000"

NEXT: dict[str, tuple[tzinfo, str, str]] = {
    "the clock": (UTC, "", "20260101000000000"),
    "the clock in the table's zone": (OSLO, "", "20260101010000000"),
    "not below what is there": (UTC, "20251231235959999", "20260101000000000"),
    "not what is there": (UTC, START, "20260101000000001"),
    "above a clock that was ahead": (UTC, "20260630235959999", "20260701000000000"),
    "above the end of a leap day": (UTC, "20280229235959999", "20280301000000000"),
    "above the end of a year": (UTC, "20261231235959999", "20270101000000000"),
    "14 digits mean the end of their second": (UTC, "20260101000000", "20260101000001000"),
    "digits beyond the 17th count for nothing": (UTC, START + "010", "20260101000000001"),
    "the first instants of a table are no dates": (UTC, "00000000000000002", START),
    "an hour that the zone skips is an hour": (OSLO, "20260329015959999", "20260329020000000"),
}


@pytest.mark.parametrize(("zone", "after", "expected"), NEXT.values(), ids=list(NEXT))
def test_the_next_time(zone: tzinfo, after: str, expected: str) -> None:
    source = TimeGenerator(ManualClock(), zone, 0, after=after)
    assert source.next() == expected
    assert source.next() > expected


WAITS = {
    "a single writer does not wait": (0, [], 0),
    "others may be behind by this much": (200, [], 200),
    "a clock behind a little catches up first": (200, ["20260101000000049"], 250),
    "a clock behind by more than the skew is not waited for": (200, ["20270101000000000"], 400),
}


@pytest.mark.parametrize(("wait_ms", "observed", "waited"), WAITS.values(), ids=list(WAITS))
def test_the_wait_after_reading_the_clock(wait_ms: int, observed: list[str], waited: int) -> None:
    clock = ManualClock()
    source = TimeGenerator(clock, UTC, wait_ms)
    source.observe(*observed)
    begin = clock.now_ms()
    generated = source.next()
    assert clock.now_ms() - begin == waited
    assert generated == START or generated > observed[0]


def test_a_writer_whose_clock_is_behind_within_the_skew_comes_later() -> None:
    ahead, behind = ManualClock(), ManualClock()
    behind.advance(-199)
    generated = TimeGenerator(ahead, UTC, 200).next()
    behind.advance(200)
    assert TimeGenerator(behind, UTC, 200).next() > generated


def test_times_grow_through_the_hour_that_comes_twice() -> None:
    before = datetime(2026, 10, 25, 0, 59, 59, 998000, tzinfo=UTC)
    clock = ManualClock(round(before.timestamp() * 1000))
    source = TimeGenerator(clock, OSLO, 1)
    times = [source.next() for _ in range(5)]
    assert times[:3] == ["20261025025959998", "20261025025959999", "20261025030000000"]
    clock.advance(3_700_000)
    times += [source.next() for _ in range(2)]
    assert times == sorted(set(times))
    assert times[-2].startswith("2026102503014")


@pytest.mark.parametrize("time", ["20261399000000000", "99999999999999999", "99991231235959999"])
def test_a_time_without_a_successor_is_corrupt(time: str) -> None:
    source = TimeGenerator(ManualClock(), UTC, 0, after=time)
    with pytest.raises(CorruptError):
        source.next()


TIMES = st.datetimes(datetime(1971, 1, 1), datetime(2200, 1, 1)).map(
    lambda moment: moment.strftime("%Y%m%d%H%M%S") + f"{moment.microsecond // 1000:03d}"
)
STEPS = st.one_of(
    st.integers(-10, 10), st.integers(-(10**8), 10**8), st.integers(-(10**11), 10**11)
)
ZONES = st.sampled_from([UTC, OSLO, ZoneInfo("America/St_Johns"), ZoneInfo("Pacific/Apia")])


@given(
    zone=ZONES,
    wait_ms=st.sampled_from([0, 1, 200]),
    after=st.one_of(st.just(""), TIMES, TIMES.map(lambda time: time[:14])),
    script=st.lists(st.one_of(STEPS, TIMES), max_size=30),
)
def test_times_grow_whatever_the_clock_does(
    zone: tzinfo, wait_ms: int, after: str, script: list[int | str]
) -> None:
    clock = ManualClock()
    source = TimeGenerator(clock, zone, wait_ms, after=after)
    floor = after
    for step in script:
        if isinstance(step, str):
            source.observe(step)
            floor = max(floor, step)
        elif clock.now_ms() + step > 0:
            clock.advance(step)
        begin = clock.now_ms()
        generated = source.next()
        assert generated > floor
        assert format_time(parse_time(generated)) == generated
        assert clock.now_ms() - begin >= wait_ms
        floor = generated
