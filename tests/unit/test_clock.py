from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from lakewright.clock import zone_of
from lakewright.model.instant import format_time, parse_time, query_time


@pytest.fixture(params=["UTC", "Europe/Oslo", "America/St_Johns"])
def zone_name(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("TZ", request.param)
    time.tzset()
    yield request.param
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize("month", [1, 7])
def test_local_times_survive_the_round_trip(month: int, zone_name: str) -> None:
    zone = zone_of("LOCAL")
    moment = datetime(2026, month, 15, 12, 30, 45, 678000, tzinfo=UTC)
    text = format_time(moment, zone)
    assert parse_time(text, zone) == moment
    assert query_time(text, zone) == text


def test_a_date_is_meant_in_the_zone_of_the_machine(zone_name: str) -> None:
    assert query_time("2026-07-01", zone_of("LOCAL")) == "20260701000000000"


def test_daylight_saving_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Europe/Oslo")
    time.tzset()
    zone = zone_of("LOCAL")
    assert format_time(datetime(2026, 1, 1, tzinfo=UTC), zone) == "20260101010000000"
    assert format_time(datetime(2026, 7, 1, tzinfo=UTC), zone) == "20260701020000000"
    monkeypatch.undo()
    time.tzset()
