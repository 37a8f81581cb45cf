"""The events of the demo: rides in some cities, generated from a seed. Pure.

A ride is requested, started and finished, or called off; each of these is an event with the full
state of the ride at that time. Most events arrive within minutes. Some arrive a day late, so that
an older event may arrive after a newer one, and the first event of a ride after its day is over.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta

import pyarrow as pa

CITIES = ("Bergen", "Oslo", "Tromsø", "Trondheim")
FINISHED = "finished"

_MINUTE = 60_000
_HOUR = 60 * _MINUTE
_DAY = 24 * _HOUR
_OLD_DAY_AGE = 30
_LATE_SHARE = 0.06
_CALLED_OFF_SHARE = 0.05

SCHEMA = pa.schema(
    [
        ("ride", pa.string()),
        ("day", pa.string()),
        ("city", pa.string()),
        ("status", pa.string()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("fare_cents", pa.int64()),
    ]
)


@dataclass(frozen=True, slots=True)
class Row:
    """The state of a ride at a time, as a row of the table; `at` is in epoch milliseconds."""

    ride: str
    day: str
    city: str
    status: str
    at: int
    fare_cents: int


@dataclass(frozen=True, slots=True)
class Event:
    """A row and its arrival time."""

    row: Row
    arrives: int


@dataclass(frozen=True, slots=True)
class Batch:
    """The events that arrive before `until` (epoch milliseconds) and after the previous batch."""

    number: int
    until: int
    events: tuple[Event, ...]


@dataclass(frozen=True, slots=True)
class Recipe:
    """The parameters of the events: the same recipe generates the same events.

    All rides are of days before `today`: those of the first `history` days and of one old day
    arrive with the first batch, those of the `live` days after them in `batches` more.
    """

    today: date
    seed: int = 7
    rides_a_day: int = 3000
    history: int = 4
    live: int = 3
    batches: int = 8

    @property
    def old_day(self) -> str:
        """A day of last month, which TTL deletes."""
        return (self.today - timedelta(days=_OLD_DAY_AGE)).isoformat()

    @property
    def days(self) -> tuple[str, ...]:
        """The other days, oldest first."""
        count = self.history + self.live
        return tuple((self.today - timedelta(days=n)).isoformat() for n in range(count, 0, -1))

    @property
    def ends(self) -> tuple[int, ...]:
        """The end of each batch, in epoch milliseconds."""
        start = _midnight(self.today - timedelta(days=self.live))
        duration = self.live * _DAY
        return tuple(start + duration * n // self.batches for n in range(self.batches + 1))


def make_batches(recipe: Recipe) -> tuple[Batch, ...]:
    """The events of a recipe by arrival; those that arrive after the last batch are left out."""
    generator = random.Random(recipe.seed)
    events = [
        event
        for day in (recipe.old_day, *recipe.days)
        for number in range(recipe.rides_a_day)
        for event in _ride(generator, day, number)
    ]
    events.sort(key=lambda event: (event.arrives, event.row.ride, event.row.at))
    starts = (0, *recipe.ends)
    return tuple(
        Batch(
            number,
            until,
            tuple(event for event in events if starts[number] <= event.arrives < until),
        )
        for number, until in enumerate(recipe.ends)
    )


def is_late(event: Event) -> bool:
    """Whether an event arrives an hour or more after its event time."""
    return event.arrives - event.row.at >= _HOUR


def to_arrow(events: Sequence[Event]) -> pa.Table:
    """The rows of events as an Arrow table."""
    rows = [event.row for event in events]
    columns = {name: [getattr(row, name) for row in rows] for name in SCHEMA.names}
    columns["at"] = [at * 1000 for at in columns["at"]]
    return pa.table(columns, SCHEMA)


def _ride(generator: random.Random, day: str, number: int) -> Iterator[Event]:
    requested = _midnight(date.fromisoformat(day)) + generator.randrange(_DAY)
    started = requested + generator.randrange(_MINUTE, 12 * _MINUTE)
    finished = started + generator.randrange(4 * _MINUTE, 40 * _MINUTE)
    fare = 300 + (finished - started) * 25 // _MINUTE
    states = [("requested", requested, 0), ("started", started, 0), (FINISHED, finished, fare)]
    if generator.random() < _CALLED_OFF_SHARE:
        states[1:] = [("called off", started, 0)]
    city = generator.choice(CITIES)
    for status, at, cents in states:
        row = Row(f"{day}-{number:06d}", day, city, status, at, cents)
        yield Event(row, at + _delay(generator))


def _delay(generator: random.Random) -> int:
    if generator.random() < _LATE_SHARE:
        return generator.randrange(18 * _HOUR, 36 * _HOUR)
    return generator.randrange(5 * _MINUTE)


def _midnight(day: date) -> int:
    return int(datetime.combine(day, time(), UTC).timestamp() * 1000)
