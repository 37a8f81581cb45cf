"""Measure ingestion beside a clustering that runs all the time, and draw docs/preemption.svg.

Two processes on one table on disk: one upserts, one plans and executes a clustering of the same
file groups again and again. Once the plans are ordinary, once cancellable. A commit that is refused
is tried again until it goes through: what is measured is how long that takes from the first try,
and how many tries were for nothing. Alone, without a clustering, is the measure of both.

    python scripts/preemption_picture.py [SECONDS]
"""

from __future__ import annotations

import json
import multiprocessing
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from multiprocessing.synchronize import Event
from pathlib import Path

import pyarrow as pa

from lakewright.client.write_client import WriteClient
from lakewright.clock import SystemClock
from lakewright.engine.local import ArrowRows, LocalEngine
from lakewright.errors import ConflictError, InvalidError, UnavailableError
from lakewright.model.table_config import TableType
from lakewright.storage.local import LocalStorage
from lakewright.table.create import TableSpec, create_table
from lakewright.write.task import Operation

TARGET = Path(__file__).parents[1] / "docs" / "preemption.svg"
SCHEMA = pa.schema([("id", pa.string()), ("day", pa.string()), ("ts", pa.int64())])
GROUPS, ROWS = 8, 20_000
OPTIONS = {
    "hoodie.write.concurrency.mode": "OPTIMISTIC_CONCURRENCY_CONTROL",
    "hoodie.clean.failed.writes.policy": "LAZY",
    "hoodie.write.lock.wait_time_ms_between_retry": "20",
    "hoodie.time.generator.max_expected_clock_skew_ms": "1",
    "hoodie.clean.automatic": "false",
    "hoodie.archive.automatic": "false",
    "hoodie.parquet.small.file.limit": "0",
}
PLANS = {
    "alone": None,
    "ordinary plans": {"hoodie.table.service.plan.cancellable": "false"},
    "cancellable plans": {"hoodie.table.service.plan.cancellable": "true"},
}
COLOURS = {"alone": "#888", "ordinary plans": "#c40", "cancellable plans": "#0a7"}


@dataclass(frozen=True)
class Measured:
    """Seconds of each commit, tries that were for nothing, clusterings done and given up."""

    seconds: Sequence[float]
    refused: int
    clustered: int
    cancelled: int

    def document(self) -> dict[str, float]:
        """The figures."""
        ordered = sorted(self.seconds)
        return {
            "commits": len(ordered),
            "median_s": round(statistics.median(ordered), 3),
            "p90_s": round(ordered[int(len(ordered) * 0.9)], 3),
            "worst_s": round(ordered[-1], 3),
            "refused": self.refused,
            "clustered": self.clustered,
            "given_up": self.cancelled,
        }


def writer(path: str, options: Mapping[str, str]) -> WriteClient:
    """What writes to the table, and serves it, in a plain loop."""
    client = WriteClient.create(LocalStorage(path), {**OPTIONS, **options}, SystemClock())
    return replace(client, engine=LocalEngine)


def rows(group: int, ts: int) -> ArrowRows:
    """The rows of one file group, all of them new versions."""
    values = [{"id": f"{group}-{n}", "day": "d", "ts": ts} for n in range(ROWS)]
    return ArrowRows(pa.Table.from_pylist(values, SCHEMA))


def cluster(path: str, plans: Mapping[str, str], stop: Event, result_file: Path) -> None:
    """Plan and execute, again and again."""
    completed = cancelled = 0
    while not stop.is_set():
        try:
            completed += bool(writer(path, plans).services.run("clustering"))
        except (ConflictError, InvalidError, UnavailableError):
            cancelled += 1
    result_file.write_text(json.dumps([completed, cancelled]))


def measure(plans: Mapping[str, str] | None, seconds: float) -> Measured:
    """Ingest for some time, beside a clustering if there is one."""
    with tempfile.TemporaryDirectory() as folder:
        path, result_file = f"{folder}/table", Path(folder) / "said"
        spec = TableSpec(
            name="ingested",
            table_type=TableType.COPY_ON_WRITE,
            record_key=("id",),
            partition_by=("day",),
            ordering=("ts",),
            event_time=None,
            schema=None,
            options={},
        )
        create_table(LocalStorage(path), SystemClock(), spec)
        for group in range(GROUPS):
            writer(path, {}).write(Operation.BULK_INSERT, rows(group, 0))
        context = multiprocessing.get_context("spawn")
        stop = context.Event()
        other = (
            context.Process(target=cluster, args=(path, plans, stop, result_file))
            if plans
            else None
        )
        if other is not None:
            other.start()
        ingested = _ingest(path, seconds)
        if other is None:
            return ingested
        stop.set()
        other.join()
        completed, cancelled = json.loads(result_file.read_text())
        return replace(ingested, clustered=completed, cancelled=cancelled)


def _ingest(path: str, seconds: float) -> Measured:
    durations, refused, number = [], 0, 0
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        number += 1
        begin = time.monotonic()
        while True:
            try:
                writer(path, {}).write(Operation.UPSERT, rows(number % GROUPS, number))
                break
            except ConflictError:
                refused += 1
        durations.append(time.monotonic() - begin)
    return Measured(durations, refused, 0, 0)


def as_svg(measured: Mapping[str, Measured]) -> str:
    """How long commits took, from the fastest to the slowest."""
    maximum = max(max(result.seconds) for result in measured.values())
    parts = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 820 360" font-family="sans-serif" '
        'font-size="12"><rect width="820" height="360" fill="#fff"/>',
        _text(60, 22, "seconds from the first try to the commit; each commit a point", "#333"),
        '<path d="M60 40V300H800" fill="none" stroke="#333"/>',
    ]
    for fraction in (0.5, 1.0):
        y = 300 - fraction * 260
        parts.append(f'<path d="M60 {y}H800" stroke="#ddd"/>')
        parts.append(_text(20, y + 4, f"{maximum * fraction:.1f}", "#333"))
    for index, (name, result) in enumerate(measured.items()):
        parts += _line(name, result, maximum)
        label = f"{name}: {result.refused} of {result.refused + len(result.seconds)} tries refused"
        parts.append(_text(60 + 250 * index, 345, label, COLOURS[name]))
    parts.append(_text(340, 320, "commits, the fastest first", "#333"))
    return "\n".join([*parts, "</svg>\n"])


def _line(name: str, measured: Measured, maximum: float) -> Iterable[str]:
    ordered = sorted(measured.seconds)
    points = [
        f"{60 + 740 * index / max(1, len(ordered) - 1):.1f},{300 - 260 * value / maximum:.1f}"
        for index, value in enumerate(ordered)
    ]
    yield (
        f'<polyline points="{" ".join(points)}" fill="none" stroke="{COLOURS[name]}" '
        'stroke-width="2"/>'
    )


def _text(x: float, y: float, text: str, colour: str) -> str:
    return f'<text x="{x}" y="{y}" fill="{colour}">{text}</text>'


def main() -> None:
    """Measure, tell the figures, and draw."""
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 40.0
    measured = {name: measure(plans, seconds) for name, plans in PLANS.items()}
    for name, result in measured.items():
        print(json.dumps({"beside": name, **result.document()}))
    TARGET.write_text(as_svg(measured))


if __name__ == "__main__":
    main()
