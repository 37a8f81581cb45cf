"""Draw docs/event-time.svg: the fast view under two kinds of compaction, on the same arrivals.

A day of rows arrives every quarter of an hour, one in ten up to an hour late, in partitions by
hour. After every fourth commit one table is compacted as a whole, the other up to the last full
hour that is half an hour past. Nothing is measured by the wall clock: the picture is the same every
time.

    python scripts/event_time_picture.py
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pyarrow as pa

from lakewright.client.write_client import WriteClient
from lakewright.engine.local import ArrowRows, LocalEngine
from lakewright.model.plans import Skip
from lakewright.model.table_config import TableType
from lakewright.storage.memory import MemoryStorage
from lakewright.table.create import TableSpec, create_table
from lakewright.table.freshness import compute_freshness
from lakewright.table.snapshot import load_snapshot
from lakewright.testing.clock import ManualClock
from lakewright.write.task import Operation

TARGET = Path(__file__).parents[1] / "docs" / "event-time.svg"
MINUTE, HOUR = 60_000, 3_600_000
ROWS = 2_000
NEVER = 1 << 60
SCHEMA = pa.schema([("id", pa.string()), ("hour", pa.string()), ("ts", pa.int64())])
OPTIONS = {
    "hoodie.index.type": "BUCKET",
    "hoodie.bucket.index.num.buckets": "1",
    "hoodie.compact.inline": "false",
    "hoodie.clean.automatic": "false",
    "hoodie.archive.automatic": "false",
}
KINDS: dict[str, dict[str, str]] = {
    "ordinary": {"hoodie.compact.inline.max.delta.commits": "1"},
    "by event time": {
        "hoodie.compaction.strategy": "event_time",
        "hoodie.compaction.event.time.floor": "hour",
        "hoodie.compaction.event.time.lateness": "30m",
    },
}
COLOURS = {"ordinary": "#888", "by event time": "#0a7"}


@dataclass(frozen=True)
class TableState:
    """What a table is like after a commit; lags are in minutes."""

    hour: float
    completion: float | None
    freshness: float | None
    rewritten: int


@dataclass
class Day:
    """A table, and a day on it."""

    options: Mapping[str, str]
    clock: ManualClock = field(default_factory=ManualClock)
    storage: MemoryStorage = field(default_factory=MemoryStorage.fresh)
    rewritten: int = 0

    def run(self) -> Iterator[TableState]:
        """The moments of the day, a quarter of an hour apart."""
        begin = self.clock.now_ms()
        self._create()
        dice = random.Random(76)
        for number in range(1, 97):
            now = begin + number * 15 * MINUTE
            self.clock.advance(now - self.clock.now_ms())
            self._writer({}).write(Operation.UPSERT, ArrowRows(_arrivals(dice, number, now)))
            if number % 4 == 0:
                self._compact()
            views = compute_freshness(
                load_snapshot(self.storage), future_from_ms=NEVER
            ).read_optimized
            lags = (_lag(now, views.completion), _lag(now, views.freshness))
            yield TableState(number / 4, *lags, self.rewritten)

    def _create(self) -> None:
        spec = TableSpec(
            name="arrivals",
            table_type=TableType.MERGE_ON_READ,
            record_key=("id",),
            partition_by=("hour",),
            ordering=("ts",),
            event_time="ts",
            schema=None,
            options={},
        )
        create_table(self.storage, self.clock, spec)

    def _compact(self) -> None:
        commit_or_skip = self._writer(self.options).services.run("compaction")
        if isinstance(commit_or_skip, Skip):
            return
        snapshot = load_snapshot(self.storage)
        (commit,) = snapshot.commits([snapshot.timeline.by_time[commit_or_skip.instant]])
        self.rewritten += sum(stat.total_write_bytes or 0 for stat in commit.write_stats())

    def _writer(self, options: Mapping[str, str]) -> WriteClient:
        client = WriteClient.create(self.storage, {**OPTIONS, **options}, self.clock)
        return replace(client, engine=LocalEngine)


def _arrivals(dice: random.Random, number: int, now: int) -> pa.Table:
    rows = []
    for index in range(ROWS):
        late = dice.randrange(60) if dice.randrange(10) == 0 else 0
        ts = now - dice.randrange(15 * MINUTE) - late * MINUTE
        rows.append({"id": f"{number}-{index}", "hour": f"{ts // HOUR % 24:02d}", "ts": ts})
    return pa.Table.from_pylist(rows, SCHEMA)


def _lag(now: int, time: int | None) -> float | None:
    return None if time is None else (now - time) / MINUTE


def as_svg(days: Mapping[str, Sequence[TableState]]) -> str:
    """Lags above, and bytes written by compactions below."""
    lags = {name: [(m.hour, m.completion) for m in day] for name, day in days.items()}
    fresh = {name: [(m.hour, m.freshness) for m in day] for name, day in days.items()}
    bytes_ = {name: [(m.hour, m.rewritten / 1e6) for m in day] for name, day in days.items()}
    parts = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 820 470" font-family="sans-serif" '
        'font-size="12"><rect width="820" height="470" fill="#fff"/>',
        *_panel("minutes behind: completion (solid), freshness (dotted)", 40, 230, lags, fresh),
        *_panel("MB written by compactions, all in all", 300, 120, bytes_, {}),
    ]
    for index, (name, colour) in enumerate(COLOURS.items()):
        parts.append(_text(600 + 90 * index, 20, name, colour))
    parts.append(_text(380, 460, "hour of the day", "#333"))
    return "\n".join([*parts, "</svg>\n"])


Line = Mapping[str, Sequence[tuple[float, float | None]]]


def _panel(title: str, top: int, height: int, solid: Line, dotted: Line) -> Iterable[str]:
    values = [v for lines in (solid, dotted) for day in lines.values() for _, v in day if v]
    maximum = max(values)
    bottom = top + height
    yield _text(60, top - 8, title, "#333")
    yield f'<path d="M60 {top}V{bottom}H800" fill="none" stroke="#333"/>'
    for fraction in (0.5, 1.0):
        y = bottom - fraction * height
        yield f'<path d="M60 {y}H800" stroke="#ddd"/>' + _text(
            20, y + 4, f"{maximum * fraction:.0f}", "#333"
        )
    for lines, dash in ((solid, ""), (dotted, ' stroke-dasharray="2 3"')):
        for name, day in lines.items():
            points = [
                f"{60 + hour / 24 * 740:.1f},{bottom - value / maximum * height:.1f}"
                for hour, value in day
                if value is not None
            ]
            yield (
                f'<polyline points="{" ".join(points)}" fill="none" '
                f'stroke="{COLOURS[name]}" stroke-width="1.5"{dash}/>'
            )


def _text(x: float, y: float, text: str, colour: str) -> str:
    return f'<text x="{x}" y="{y}" fill="{colour}">{text}</text>'


def main() -> None:
    """Write the picture, and tell the figures."""
    days = {name: list(Day(options).run()) for name, options in KINDS.items()}
    for name, day in days.items():
        completions = [m.completion for m in day if m.completion is not None]
        print(
            f"{name}: {max(completions):.0f} minutes behind at most, "
            f"{day[-1].rewritten / 1e6:.1f} MB"
        )
    TARGET.write_text(as_svg(days))


if __name__ == "__main__":
    main()
