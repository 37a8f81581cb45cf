"""What the table must hold, computed from the events alone, and compared with what it holds. Pure.

Nothing here knows how the library merges, slices or counts: the newest event of each ride is its
row, and that is all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from lakewright.demo.events import FINISHED, Batch, Event, Row, is_late

_EXAMPLES = 3


@dataclass(frozen=True, slots=True)
class Totals:
    """Rides of a city, how many of them are finished, and what these have brought in."""

    rides: int = 0
    finished: int = 0
    fare_cents: int = 0

    def __add__(self, other: Totals) -> Totals:
        return Totals(
            self.rides + other.rides,
            self.finished + other.finished,
            self.fare_cents + other.fare_cents,
        )


@dataclass(frozen=True, slots=True)
class Lateness:
    """Events that took an hour or more; how many of these were overtaken by newer ones."""

    late: int
    overtaken: int


@dataclass(frozen=True, slots=True)
class Check:
    """A question that was asked of the result: whether it was passed, and what was seen.

    `passed` is None where it could not be asked.
    """

    name: str
    passed: bool | None
    seen: str

    def __str__(self) -> str:
        word = {True: "passed", False: "WRONG", None: "not asked"}[self.passed]
        return f"{word} ({self.seen})"


def expected_rows(batches: Iterable[Batch], gone: Iterable[str] = ()) -> dict[str, Row]:
    """The newest event of each ride, by ride; without the days that are gone."""
    left_out = set(gone)
    newest: dict[str, Row] = {}
    for event in _events(batches):
        row = event.row
        if row.day in left_out:
            continue
        known = newest.get(row.ride)
        if known is None or row.at > known.at:
            newest[row.ride] = row
    return newest


def expected_totals(rows: Iterable[Row]) -> dict[str, Totals]:
    """What a consumer must have counted, by city."""
    totals: dict[str, Totals] = {}
    for row in rows:
        one = Totals(1, int(row.status == FINISHED), row.fare_cents)
        totals[row.city] = totals.get(row.city, Totals()) + one
    return totals


def lateness(batches: Iterable[Batch]) -> Lateness:
    """How many events came late, and how many of these after a newer one of the same ride."""
    late = overtaken = 0
    newest: dict[str, int] = {}
    for event in _events(batches):
        row = event.row
        if is_late(event):
            late += 1
            overtaken += row.at < newest.get(row.ride, row.at)
        newest[row.ride] = max(row.at, newest.get(row.ride, row.at))
    return Lateness(late, overtaken)


def compare(name: str, found: Iterable[Row], expected: Mapping[str, Row]) -> Check:
    """Whether the rows that were found are exactly the expected ones, each once."""
    rows = list(found)
    by_ride = {row.ride: row for row in rows}
    wrong = sorted(
        ride for ride in by_ride.keys() | expected.keys() if by_ride.get(ride) != expected.get(ride)
    )
    if not wrong and len(rows) == len(by_ride):
        return Check(name, passed=True, seen=f"{len(rows):,} rows, all of them equal")
    twice = len(rows) - len(by_ride)
    examples = ", ".join(wrong[:_EXAMPLES])
    return Check(
        name,
        passed=False,
        seen=f"{len(rows):,} rows for {len(expected):,}; {len(wrong):,} differ ({examples}), "
        f"{twice:,} are there twice",
    )


def compare_totals(name: str, found: Mapping[str, Totals], expected: Mapping[str, Totals]) -> Check:
    """Whether a consumer has counted right; a city without rides may be there or not."""
    cities = sorted(found.keys() | expected.keys())
    wrong = [city for city in cities if found.get(city, Totals()) != expected.get(city, Totals())]
    if wrong:
        told = ", ".join(f"{city} {found.get(city)} for {expected.get(city)}" for city in wrong)
        return Check(name, passed=False, seen=told)
    rides = sum(each.rides for each in found.values())
    fares = sum(each.fare_cents for each in found.values()) / 100
    return Check(name, passed=True, seen=f"{rides:,} rides and {fares:,.2f} in fares, to the cent")


def check_completion(
    name: str, view: Iterable[Row], batches: Iterable[Batch], completion: int | None, gone: str
) -> Check:
    """Whether a view holds every event up to its completion, or a newer one of the same ride."""
    if completion is None:
        return Check(name, passed=False, seen="completion is unknown")
    shown = {row.ride: row.at for row in view}
    due = [e.row for e in _events(batches) if e.row.at <= completion and e.row.day != gone]
    missing = [row for row in due if shown.get(row.ride, -1) < row.at]
    if missing:
        seen = f"{len(missing):,} of {len(due):,} events before completion are not in it"
        return Check(name, passed=False, seen=seen)
    return Check(name, passed=True, seen=f"all {len(due):,} events before completion are in it")


def _events(batches: Iterable[Batch]) -> Iterable[Event]:
    return (event for batch in batches for event in batch.events)
