"""Event times far away, in the hour that daylight saving repeats, and on tables of any ordering."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime

import pyarrow as pa
import pytest

from lakewright.errors import InvalidError
from lakewright.model.commit_metadata import CommitMetadata, WriteStat
from lakewright.model.event_time import event_range, time_text
from lakewright.model.plans import Skip
from lakewright.table.freshness_report import (
    catalog_properties,
    freshness_document,
    load_freshness,
    parse_event_time,
)
from lakewright.table.snapshot import load_snapshot
from lakewright.testing.clock import ManualClock
from support.event_times import (
    COMPACT_EVERY_COMMIT,
    DAY,
    NEXT_DAY,
    TIME_ZERO,
    tracked_row,
    tracked_table,
    view_times,
)
from support.tables import NO_SERVICES, SCHEMA, WrittenTable

FAR_FUTURE = 10**15  # in the year 33658
FAR_PAST = -(10**15)


def ms(text: str) -> int:
    return round(datetime.fromisoformat(text).timestamp() * 1000)


TIMESTAMPS: dict[str, tuple[str, int, int | None]] = {
    "seconds that are more milliseconds than there are": ("s", 2**62, None),
    "seconds that are less": ("s", -(2**62), None),
    "seconds far away": ("s", 10**14, 10**17),
    "milliseconds beyond all calendars": ("ms", 2**63 - 1, None),
    "the least microsecond": ("us", -(2**63) + 1, -(2**63) // 1000),
    "half a millisecond before 1970": ("us", -500, -1),
    "a nanosecond before 1970": ("ns", -1, -1),
    "a millisecond before 1970": ("ns", -(10**6), -1),
}


@pytest.mark.parametrize(("unit", "value", "expected"), TIMESTAMPS.values(), ids=list(TIMESTAMPS))
def test_event_times_of_timestamps(unit: str, value: int, expected: int | None) -> None:
    column = pa.array([value, None], pa.timestamp(unit))
    assert event_range(column, "ts") == (expected, expected)


def test_a_number_that_no_event_time_can_be_is_none() -> None:
    assert event_range(pa.array([2**64 - 1, TIME_ZERO], pa.uint64()), "ts") == (
        TIME_ZERO,
        TIME_ZERO,
    )


def test_times_without_a_date_are_named() -> None:
    assert time_text(0) == "1970-01-01T00:00:00.000+00:00"
    assert time_text(ms("9999-12-31T23:59:59.999+00:00")) == "9999-12-31T23:59:59.999+00:00"
    assert time_text(FAR_FUTURE) == "after year 9999"
    assert time_text(FAR_PAST) == "before year 1"


AT = pa.schema([*SCHEMA, pa.field("at", pa.timestamp("us", "UTC"))])


def far_table() -> WrittenTable:
    """A table with base files of year -29719, and log files of year 33658."""
    table = WrittenTable(options={**NO_SERVICES}, schema=AT)
    table.create("MERGE_ON_READ", event_time="at")
    table.upsert([far_row("a", FAR_PAST), far_row("b", 5)])
    table.upsert([far_row("a", FAR_FUTURE)])
    return table


def far_row(key: str, at_ms: int) -> dict[str, object]:
    return {**tracked_row(key, 10), "at": pa.scalar(at_ms * 1000, pa.timestamp("us", "UTC"))}


def test_event_times_far_away_are_known_and_named_everywhere() -> None:
    table = far_table()
    freshness = load_freshness(table.storage, ManualClock())
    assert freshness.snapshot.completion == FAR_FUTURE
    assert freshness.read_optimized.completion == FAR_FUTURE - 1
    assert freshness.future == ((DAY, FAR_FUTURE),)
    document = freshness_document(freshness, partitions=True)
    assert document["views"][0]["complete_until"] == "after year 9999"
    assert document["future"][0]["at"] == "after year 9999"
    assert catalog_properties(freshness)["lakewright.snapshot.completion"] == str(FAR_FUTURE)


def by_event_time(**options: str) -> dict[str, str]:
    named = {f"hoodie.compaction.event.time.{key}": value for key, value in options.items()}
    return {"hoodie.compaction.strategy": "event_time", **named}


def test_a_compaction_that_finds_nothing_names_times_without_a_date() -> None:
    options = by_event_time(threshold="2025-01-01T00:00:00Z")
    outcome = far_table().services(options).run("compaction")
    assert isinstance(outcome, Skip)
    assert "after year 9999" in outcome.reason


THRESHOLDS = {
    "after year 9999 in UTC": ("threshold", "9999-12-31T23:59:59-05:00", "9999"),
    "after year 9999": ("threshold", "12026-01-01T00:00:00Z", "threshold"),
    "before year 1 in UTC": ("threshold", "0001-01-01T00:00:00+05:00", "year"),
    "a lateness back to before year 1": ("lateness", "999999d", "lateness"),
    "a lateness beyond all calendars": ("lateness", f"{10**20}d", "lateness"),
}


@pytest.mark.parametrize(("key", "value", "named"), THRESHOLDS.values(), ids=list(THRESHOLDS))
def test_a_threshold_without_a_date_is_refused_by_name(key: str, value: str, named: str) -> None:
    with pytest.raises(InvalidError, match=named):
        far_table().services(by_event_time(**{key: value})).run("compaction")


def test_a_wait_for_a_time_without_a_date_is_refused_by_name() -> None:
    snapshot = load_snapshot(tracked_table().storage)
    for text in ("9999-12-31T23:59:59-05:00", "0001-01-01T00:00:00+05:00"):
        assert parse_event_time(text, snapshot) == ms_of(text)
    with pytest.raises(InvalidError, match="not a point in time"):
        parse_event_time("12026-01-01T00:00:00Z", snapshot)


def ms_of(text: str) -> int:
    moment = datetime.fromisoformat(text)
    return round((moment - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds() * 1000)


def test_the_last_day_of_the_calendar_does_not_fail_a_commit() -> None:
    marks = {"lakewright.partition.done.mark": "success_file"}
    table = tracked_table(write_options=marks)
    table.upsert([tracked_row("a", 10, "9999-12-31"), tracked_row("b", 20)])
    table.upsert([tracked_row("c", 30, "9999-12-31/23")])
    assert len(table.rows()) == 3


# The hour from 02:00 to 03:00 of 2026-10-25 occurs twice in Berlin.


@pytest.fixture
def berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


LOCAL = {"hoodie.table.timeline.timezone": "LOCAL"}
REPEATED = {
    "the first time, by its offset": ("2026-10-25T02:30:00+02:00", "2026-10-25T00:30:00+00:00"),
    "the second time, by its offset": ("2026-10-25T02:30:00+01:00", "2026-10-25T01:30:00+00:00"),
    "without an offset the second": ("2026-10-25 02:30:00", "2026-10-25T01:30:00+00:00"),
    "as an instant the second": ("20261025023000000", "2026-10-25T01:30:00+00:00"),
    "any other hour": ("2026-10-25 03:30:00", "2026-10-25T02:30:00+00:00"),
}


@pytest.mark.parametrize(("text", "expected"), REPEATED.values(), ids=list(REPEATED))
def test_a_wait_for_a_repeated_hour(text: str, expected: str, berlin: None) -> None:
    table = tracked_table(options=LOCAL)
    assert parse_event_time(text, load_snapshot(table.storage)) == ms(expected)


@pytest.mark.parametrize(
    ("threshold", "left"),
    [("2026-10-25T02:30:00+02:00", 1), ("2026-10-25T02:30:00+01:00", 0)],
    ids=["the first time", "the second time"],
)
def test_a_threshold_in_the_repeated_hour(threshold: str, left: int, berlin: None) -> None:
    """The second row is of 02:10, the second time."""
    table = tracked_table(options=LOCAL)
    table.clock.advance(ms("2026-10-25T06:00:00+00:00") - table.clock.now_ms())  # type: ignore[attr-defined]
    for key, at in (("a", "2026-10-25T00:10:00+00:00"), ("b", "2026-10-25T01:10:00+00:00")):
        table.upsert([tracked_row(key, 10, key)])
        table.clock.sleep(1)
        table.upsert([tracked_row(key, ms(at) - TIME_ZERO, key)])
        table.clock.sleep(1)
    options = {**by_event_time(threshold=threshold), **EXACT}
    assert table.services(options).run("compaction")
    optimized = {row["id"]: row["ts"] for row in table.rows(optimized=True)}
    still_old = [key for key, ts in optimized.items() if ts == TIME_ZERO + 10]
    assert len(still_old) == left


EXACT = {"hoodie.compaction.event.time.exact.split": "true"}


# Tables where the last commit wins, as Hudi's switch has them from version 1.3 on.


SWITCH = {
    "hoodie.payload.event.time.field": "ts",
    "hoodie.write.track.event.time.watermark": "true",
}


@pytest.mark.parametrize("table_type", ["COPY_ON_WRITE", "MERGE_ON_READ"])
@pytest.mark.parametrize("ordering", [("ts",), ()], ids=["ordering", "none"])
def test_event_times_are_tracked_where_the_last_commit_wins(
    table_type: str, ordering: tuple[str, ...]
) -> None:
    table = WrittenTable(options={**NO_SERVICES, **SWITCH})
    table.create(
        table_type,
        ordering=ordering,
        options={"hoodie.record.merge.mode": "COMMIT_TIME_ORDERING"},
    )
    table.upsert([tracked_row("a", 10), tracked_row("z", 20, NEXT_DAY)])
    table.upsert([tracked_row("a", 70), tracked_row("z", 40, NEXT_DAY)])
    base_completion = 40 if table_type == "COPY_ON_WRITE" else 39
    assert view_times(table)[:3] == (40, 70, base_completion)
    if table_type == "MERGE_ON_READ":
        assert table.services(COMPACT_EVERY_COMMIT).run("compaction")
    assert view_times(table) == (40, 70, 40, 70)


def test_the_switch_without_a_column_is_a_warning() -> None:
    table = WrittenTable(options=NO_SERVICES).create()
    with pytest.warns(RuntimeWarning, match=r"hoodie\.payload\.event\.time\.field"):
        table.upsert([tracked_row("a", 10)], {"hoodie.write.track.event.time.watermark": "true"})


def test_a_commit_has_the_least_and_the_greatest_event_time_of_each_partition() -> None:
    table = tracked_table()
    commit = table.upsert(
        [tracked_row("a", 10), tracked_row("b", 30), tracked_row("z", 20, NEXT_DAY)]
    )
    assert commit.event_times == {
        DAY: (TIME_ZERO + 10, TIME_ZERO + 30),
        NEXT_DAY: (TIME_ZERO + 20, TIME_ZERO + 20),
    }
    stats = {
        "p": (WriteStat(min_event_time=5, max_event_time=9), WriteStat(min_event_time=3)),
        "q": (WriteStat(),),
    }
    assert CommitMetadata(stats=stats).event_times_by_partition() == {
        "p": (3, 9),
        "q": (None, None),
    }
