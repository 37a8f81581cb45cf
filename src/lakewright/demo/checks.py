"""Checks of the result of the demo: expected rows, leftover files, and a comparison with hudi-rs.

The expected rows are computed from the events alone: the row of a ride is its newest event. Nothing
here depends on how the library merges, groups or counts rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pyarrow as pa

from lakewright.demo.events import FINISHED, Batch, Event, Row, is_late
from lakewright.model.instant import InstantTime

HUDI_RS = "hudi-rs"

_MAX_EXAMPLES = 3
_COLUMNS = ("ride", "day", "city", "status", "at", "fare_cents")
_READ_OPTIMIZED = "hoodie.read.use.read_optimized.mode"


@dataclass(frozen=True, slots=True)
class Totals:
    """The number of rides of a city, how many of them are finished, and the sum of their fares."""

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
    """How many events arrived an hour or more late, and how many of these after a newer event."""

    late: int
    overtaken: int


@dataclass(frozen=True, slots=True)
class Check:
    """A check of the result: whether it passed, and what was observed.

    `passed` is None if the check could not run.
    """

    name: str
    passed: bool | None
    seen: str

    def __str__(self) -> str:
        status = {True: "passed", False: "WRONG", None: "not run"}[self.passed]
        return f"{status} ({self.seen})"


def expected_rows(batches: Iterable[Batch], deleted_days: Iterable[str] = ()) -> dict[str, Row]:
    """The newest event of each ride, by ride, without the rides of deleted days."""
    deleted = set(deleted_days)
    newest: dict[str, Row] = {}
    for event in _events(batches):
        row = event.row
        if row.day in deleted:
            continue
        previous = newest.get(row.ride)
        if previous is None or row.at > previous.at:
            newest[row.ride] = row
    return newest


def expected_totals(rows: Iterable[Row]) -> dict[str, Totals]:
    """The totals by city that a consumer of the change feed must have."""
    totals: dict[str, Totals] = {}
    for row in rows:
        ride = Totals(1, int(row.status == FINISHED), row.fare_cents)
        totals[row.city] = totals.get(row.city, Totals()) + ride
    return totals


def lateness(batches: Iterable[Batch]) -> Lateness:
    """Count the late events, and those of them that arrived after a newer event of the ride."""
    late = overtaken = 0
    newest: dict[str, int] = {}
    for event in _events(batches):
        row = event.row
        if is_late(event):
            late += 1
            overtaken += row.at < newest.get(row.ride, row.at)
        newest[row.ride] = max(row.at, newest.get(row.ride, row.at))
    return Lateness(late, overtaken)


def compare(name: str, actual: Iterable[Row], expected: Mapping[str, Row]) -> Check:
    """Check that the rows are exactly the expected ones, without duplicates."""
    rows = list(actual)
    by_ride = {row.ride: row for row in rows}
    different = sorted(
        ride for ride in by_ride.keys() | expected.keys() if by_ride.get(ride) != expected.get(ride)
    )
    if not different and len(rows) == len(by_ride):
        return Check(name, passed=True, seen=f"{len(rows):,} rows, all of them equal")
    duplicates = len(rows) - len(by_ride)
    examples = ", ".join(different[:_MAX_EXAMPLES])
    return Check(
        name,
        passed=False,
        seen=f"{len(rows):,} rows for {len(expected):,}; {len(different):,} differ ({examples}), "
        f"{duplicates:,} are duplicates",
    )


def compare_totals(
    name: str, actual: Mapping[str, Totals], expected: Mapping[str, Totals]
) -> Check:
    """Check the totals of a consumer; a city without rides may be missing."""
    cities = sorted(actual.keys() | expected.keys())
    different = [
        city for city in cities if actual.get(city, Totals()) != expected.get(city, Totals())
    ]
    if different:
        differences = ", ".join(
            f"{city} {actual.get(city)} for {expected.get(city)}" for city in different
        )
        return Check(name, passed=False, seen=differences)
    rides = sum(totals.rides for totals in actual.values())
    fares = sum(totals.fare_cents for totals in actual.values()) / 100
    return Check(name, passed=True, seen=f"{rides:,} rides and {fares:,.2f} in fares, to the cent")


def check_completion(
    name: str,
    view: Iterable[Row],
    batches: Iterable[Batch],
    completion: int | None,
    deleted_day: str,
) -> Check:
    """Check that a view has every event up to its completion, or a newer event of the ride."""
    if completion is None:
        return Check(name, passed=False, seen="completion is unknown")
    newest = {row.ride: row.at for row in view}
    expected = [
        e.row for e in _events(batches) if e.row.at <= completion and e.row.day != deleted_day
    ]
    missing = [row for row in expected if newest.get(row.ride, -1) < row.at]
    if missing:
        seen = f"{len(missing):,} of {len(expected):,} events before completion are not in it"
        return Check(name, passed=False, seen=seen)
    return Check(
        name, passed=True, seen=f"all {len(expected):,} events before completion are in it"
    )


def _events(batches: Iterable[Batch]) -> Iterable[Event]:
    return (event for batch in batches for event in batch.events)


def rows_of(tables: Iterable[pa.Table | pa.RecordBatch]) -> Iterator[Row]:
    """The rows of Arrow tables, with times in milliseconds."""
    for table in tables:
        columns = [table.column(name) for name in _COLUMNS]
        at = _COLUMNS.index("at")
        columns[at] = columns[at].cast(pa.timestamp("us", tz="UTC")).cast(pa.int64())
        for values in zip(*(column.to_pylist() for column in columns), strict=True):
            ride, day, city, status, micros, cents = values
            yield Row(ride, day, city, status, micros // 1000, cents)


def files_of_instant(path: str, instant: InstantTime) -> tuple[str, ...]:
    """The files of a local table whose names contain an instant, relative to the table.

    Markers do not count: they stay as long as tasks of a finished write may be running.
    """
    root = Path(path)
    files = [file.relative_to(root) for file in root.rglob(f"*{instant}*") if file.is_file()]
    return tuple(sorted(str(file) for file in files if file.parts[:2] != (".hoodie", ".temp")))


def check_with_hudi_rs(path: str, snapshot: Iterable[Row], optimized: Iterable[Row]) -> Check:
    """Check that hudi-rs, another implementation of the format, reads the same rows."""
    try:
        installed = version("hudi")
        hudi = import_module("hudi")
    except (PackageNotFoundError, ImportError):
        return Check(HUDI_RS, None, "not installed: pip install hudi")
    table = hudi.HudiTableBuilder.from_base_uri(path).build()
    read_optimized = hudi.HudiReadOptions().with_hudi_option(_READ_OPTIMIZED, "true")
    views = {
        "snapshot": (_read(table, None), snapshot),
        "read-optimized": (_read(table, read_optimized), optimized),
    }
    results, passed = [], True
    for name, (theirs, ours) in views.items():
        actual, expected = sorted(theirs, key=_ride_and_time), sorted(ours, key=_ride_and_time)
        passed = passed and actual == expected
        comparison = "equal" if actual == expected else f"other than our {len(expected):,}"
        results.append(f"{name} {len(actual):,} rows {comparison}")
    return Check(HUDI_RS, passed, f"version {installed}: {', '.join(results)}")


def _read(table: Any, options: Any) -> list[Row]:
    batches = table.read(options) if options is not None else table.read()
    return list(rows_of(pa.record_batch(batch) for batch in batches))


def _ride_and_time(row: Row) -> tuple[str, int]:
    return row.ride, row.at
