"""The events of the demo, and what the table must hold after them."""

from __future__ import annotations

from dataclasses import replace
from datetime import date

import pytest

from lakewright.demo.checks import (
    Lateness,
    Totals,
    check_completion,
    compare,
    compare_totals,
    expected_rows,
    expected_totals,
    lateness,
    rows_of,
)
from lakewright.demo.events import SCHEMA, Batch, Event, Recipe, Row, make_batches, to_arrow

RECIPE = Recipe(date(2026, 3, 15), rides_a_day=150)
HOUR = 3_600_000


def row(ride: str, at: int, status: str = "requested", day: str = "2026-03-14") -> Row:
    return Row(ride, day, "Oslo", status, at, 500 if status == "finished" else 0)


def batch(*rows: Row, arrives: int = 0) -> Batch:
    return Batch(0, 10**15, tuple(Event(one_row, max(one_row.at, arrives)) for one_row in rows))


def test_the_same_recipe_makes_the_same_events() -> None:
    assert make_batches(RECIPE) == make_batches(RECIPE)
    assert make_batches(RECIPE) != make_batches(replace(RECIPE, seed=8))


def test_batches_are_cut_by_arrival_and_hold_no_event_of_today() -> None:
    batches = make_batches(RECIPE)
    assert len(batches) == RECIPE.batches + 1
    begin = 0
    for one_batch in batches:
        assert one_batch.events
        assert all(begin <= event.arrives < one_batch.until for event in one_batch.events)
        begin = one_batch.until
    days = {event.row.day for one_batch in batches for event in one_batch.events}
    assert days == {"2026-02-13", *RECIPE.days}
    assert max(RECIPE.days) == "2026-03-14"


def test_the_old_day_comes_with_the_first_batch_alone() -> None:
    first, *others = make_batches(RECIPE)
    assert any(event.row.day == RECIPE.old_day for event in first.events)
    assert not any(event.row.day == RECIPE.old_day for other in others for event in other.events)


def test_some_events_are_late_and_some_of_these_overtaken() -> None:
    counts = lateness(make_batches(RECIPE))
    assert counts.late > counts.overtaken > 0


def test_no_two_events_of_a_ride_have_one_time() -> None:
    events = [event.row for one_batch in make_batches(RECIPE) for event in one_batch.events]
    assert len({(event.ride, event.at) for event in events}) == len(events)


def test_rows_survive_arrow() -> None:
    first = make_batches(RECIPE)[0]
    table = to_arrow(first.events)
    assert table.schema == SCHEMA
    assert list(rows_of([table])) == [event.row for event in first.events]


def test_the_newest_event_of_a_ride_is_its_row_in_whatever_order_they_come() -> None:
    early, late = row("a", 10), row("a", 20, "finished")
    assert expected_rows([batch(late), batch(early)]) == {"a": late}
    assert expected_rows([batch(early, late)]) == {"a": late}


def test_deleted_days_are_left_out() -> None:
    old = row("a", 10, day="2026-02-13")
    assert expected_rows([batch(old, row("b", 20))], ["2026-02-13"]) == {"b": row("b", 20)}


def test_totals_count_rides_and_what_finished_ones_brought_in() -> None:
    rows = [row("a", 1, "finished"), row("b", 2), row("c", 3, "finished")]
    assert expected_totals(rows) == {"Oslo": Totals(3, 2, 1000)}


def test_lateness_is_counted_from_an_hour_on() -> None:
    late = Event(row("a", 10), 10 + HOUR)
    newer = Event(row("a", 20), 20)
    in_time = Event(row("b", 10), 9 + HOUR)
    assert lateness([Batch(0, 0, (newer, late, in_time))]) == Lateness(1, 1)
    assert lateness([Batch(0, 0, (late, newer))]) == Lateness(1, 0)


WRONG = {
    "a row is missing": [row("a", 1)],
    "a row is too many": [row("a", 1), row("b", 2), row("c", 3)],
    "a row is old": [row("a", 1), row("b", 1)],
    "a row is there twice": [row("a", 1), row("b", 2), row("b", 2)],
}


@pytest.mark.parametrize("rows", WRONG.values(), ids=list(WRONG))
def test_a_wrong_row_is_found(rows: list[Row]) -> None:
    expected = {"a": row("a", 1), "b": row("b", 2)}
    assert compare("table", rows, expected).passed is False
    assert compare("table", expected.values(), expected).passed is True


def test_a_wrong_total_is_found_and_an_empty_city_is_none() -> None:
    right = {"Oslo": Totals(3, 2, 1000)}
    assert compare_totals("feed", {**right, "Bergen": Totals()}, right).passed is True
    assert compare_totals("feed", {"Oslo": Totals(3, 2, 999)}, right).passed is False
    assert compare_totals("feed", {}, right).passed is False


def test_completion_is_checked_against_the_events() -> None:
    events = [batch(row("a", 10), row("a", 20, "finished"), row("b", 30))]

    def passed(view: list[Row], completion: int | None) -> bool | None:
        return check_completion("fast", view, events, completion, deleted_day="").passed

    assert passed([row("a", 20, "finished")], 29)
    assert not passed([row("a", 20, "finished")], 30)
    assert passed([row("a", 10)], 19)
    assert not passed([row("a", 10)], 20)
    assert not passed([row("a", 20, "finished")], None)
