"""The events of the demo: rides in some cities, made from a seed. Pure.

A ride is requested, started and finished, or called off; each of these is an event with all that
is known of the ride by then. Most events arrive within minutes. Some come a day late, so that an
older event may arrive after a newer one, and a ride may turn up when its day is over.
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
_OLD_DAY = 30
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
    """A ride as it was at a time; a row of the table. `at` is in milliseconds since 1970."""

    ride: str
    day: str
    city: str
    status: str
    at: int
    fare_cents: int


@dataclass(frozen=True, slots=True)
class Event:
    """A row, and when it arrives."""

    row: Row
    arrives: int


@dataclass(frozen=True, slots=True)
class Batch:
    """Events that arrived before `until`, in milliseconds, and after the batch before."""

    number: int
    until: int
    events: tuple[Event, ...]


@dataclass(frozen=True, slots=True)
class Recipe:
    """What the events are made from: the same recipe gives the same events.

    Rides are of the days before `today`: `history` days come with the first batch, together with
    a day of last month; `live` days come in `batches` more.
    """

    today: date
    seed: int = 7
    rides_a_day: int = 3000
    history: int = 4
    live: int = 3
    batches: int = 8

    @property
    def old_day(self) -> str:
        """The day of last month."""
        return (self.today - timedelta(days=_OLD_DAY)).isoformat()

    @property
    def days(self) -> tuple[str, ...]:
        """The other days, oldest first."""
        count = self.history + self.live
        return tuple((self.today - timedelta(days=n)).isoformat() for n in range(count, 0, -1))

    @property
    def ends(self) -> tuple[int, ...]:
        """When each batch ends."""
        begin = _midnight(self.today - timedelta(days=self.live))
        span = self.live * _DAY
        return tuple(begin + span * n // self.batches for n in range(self.batches + 1))


def make_batches(recipe: Recipe) -> tuple[Batch, ...]:
    """The events of a recipe in the order of their arrival; what arrives after today is left."""
    chance = random.Random(recipe.seed)
    events = [
        event
        for day in (recipe.old_day, *recipe.days)
        for number in range(recipe.rides_a_day)
        for event in _ride(chance, day, number)
    ]
    events.sort(key=lambda event: (event.arrives, event.row.ride, event.row.at))
    begins = (0, *recipe.ends)
    return tuple(
        Batch(
            number,
            until,
            tuple(event for event in events if begins[number] <= event.arrives < until),
        )
        for number, until in enumerate(recipe.ends)
    )


def is_late(event: Event) -> bool:
    """Whether an event took an hour or more to arrive."""
    return event.arrives - event.row.at >= _HOUR


def to_arrow(events: Sequence[Event]) -> pa.Table:
    """The rows of events, as a table of Arrow."""
    rows = [event.row for event in events]
    columns = {name: [getattr(row, name) for row in rows] for name in SCHEMA.names}
    columns["at"] = [at * 1000 for at in columns["at"]]
    return pa.table(columns, SCHEMA)


def _ride(chance: random.Random, day: str, number: int) -> Iterator[Event]:
    requested = _midnight(date.fromisoformat(day)) + chance.randrange(_DAY)
    started = requested + chance.randrange(_MINUTE, 12 * _MINUTE)
    finished = started + chance.randrange(4 * _MINUTE, 40 * _MINUTE)
    fare = 300 + (finished - started) * 25 // _MINUTE
    stages = [("requested", requested, 0), ("started", started, 0), (FINISHED, finished, fare)]
    if chance.random() < _CALLED_OFF_SHARE:
        stages[1:] = [("called off", started, 0)]
    city = chance.choice(CITIES)
    for status, at, cents in stages:
        row = Row(f"{day}-{number:06d}", day, city, status, at, cents)
        yield Event(row, at + _delay(chance))


def _delay(chance: random.Random) -> int:
    if chance.random() < _LATE_SHARE:
        return chance.randrange(18 * _HOUR, 36 * _HOUR)
    return chance.randrange(5 * _MINUTE)


def _midnight(day: date) -> int:
    return int(datetime.combine(day, time(), UTC).timestamp() * 1000)
