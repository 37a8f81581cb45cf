"""Measure ingestion beside a clustering, and draw docs/preemption.svg.

Two processes on one table on disk: one upserts into a hot partition, one commit a second, one plans
and executes a clustering of all partitions in rounds. Once the plans are ordinary, once
cancellable; alone, without a clustering beside it, is the measure of both. A commit that is refused
is tried again until it goes through: what is measured is how long that takes from the first try,
how many tries were refused, and how many of the file groups at the start were clustered after each
round.

    python scripts/preemption_picture.py [ROUNDS] [--apart] [--nice N] [--out FILE]

The figures say what a commit takes: processor time of its own, time waiting for the table's lock,
and the rest, which is waiting for the disk and for a processor. With `--apart` the ingestion has
one core and the clustering another, in all four runs, so that they do not compete for processors;
with `--nice` the clustering has a lower priority. With TMPDIR=/dev/shm the table is in memory, and
no commit waits for the disk.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from unittest.mock import patch

import pyarrow as pa

from lakewright.client.write_client import WriteClient
from lakewright.clock import SystemClock
from lakewright.engine.local import ArrowRows, LocalEngine
from lakewright.errors import ConflictError, InvalidError, UnavailableError
from lakewright.model.table_config import TableType
from lakewright.storage.local import LocalStorage
from lakewright.table.create import TableSpec, create_table
from lakewright.table.locks.base import Lock
from lakewright.table.snapshot import load_snapshot
from lakewright.table.transaction import WriterContext
from lakewright.write.task import Operation

TARGET = Path(__file__).parents[1] / "docs" / "preemption.svg"
SCHEMA = pa.schema([("id", pa.string()), ("day", pa.string()), ("ts", pa.int64())])
HOT, COLD = "hot", ("cold 1", "cold 2", "cold 3", "cold 4")
GROUPS, ROWS = 8, 20_000
COMMIT_EVERY_S, PAUSE_S = 1.0, 1.0
OPTIONS = {
    "hoodie.write.concurrency.mode": "OPTIMISTIC_CONCURRENCY_CONTROL",
    "hoodie.clean.failed.writes.policy": "LAZY",
    "hoodie.write.lock.wait_time_ms_between_retry": "20",
    "hoodie.time.generator.max_expected_clock_skew_ms": "1",
    "hoodie.clean.automatic": "false",
    "hoodie.archive.automatic": "false",
    "hoodie.parquet.small.file.limit": "0",
    # Files stay as large as they are, so that commits cost the same before and after a clustering.
    "hoodie.clustering.plan.strategy.sort.columns": "id",
    "hoodie.clustering.plan.strategy.target.file.max.bytes": "60000",
}
# A clustering leaves other files, which an upsert of the same rows may touch more of.
CLUSTERED = "alone, clustered before"
PLANS = {
    "alone": None,
    CLUSTERED: None,
    "ordinary plans": {"hoodie.table.service.plan.cancellable": "false"},
    "cancellable plans": {"hoodie.table.service.plan.cancellable": "true"},
}
COLOURS = dict(zip(PLANS, ("#888", "#46c", "#c40", "#0a7"), strict=True))


@dataclass(frozen=True)
class Measured:
    """Seconds of each commit, and tries that were refused.

    `processor` and `lock` are what a commit had of the seconds: processor time of this process, and
    time waiting for the lock. `rounds` are how many cold and hot file groups were clustered after
    each round, and whether writers preempted the whole round.
    """

    seconds: Sequence[float]
    refused: int
    processor: Sequence[float]
    lock: Sequence[float]
    rounds: Sequence[tuple[int, int, bool]] = ()

    def document(self) -> dict[str, object]:
        """The figures."""
        ordered = sorted(self.seconds)
        parts = zip(self.seconds, self.processor, self.lock, strict=True)
        rest = [whole - processor - lock for whole, processor, lock in parts]
        return {
            "commits": len(ordered),
            "median_s": round(statistics.median(ordered), 3),
            "p90_s": round(ordered[int(len(ordered) * 0.9)], 3),
            "worst_s": round(ordered[-1], 3),
            "processor_median_s": round(statistics.median(self.processor), 3),
            "rest_median_s": round(statistics.median(rest), 3),
            "lock_median_s": round(statistics.median(self.lock), 4),
            "lock_worst_s": round(max(self.lock), 4),
            "refused": self.refused,
            "rounds": self.rounds,
        }


@dataclass(frozen=True)
class Conditions:
    """Whether both processes have a core of their own, and the priority of the clustering."""

    apart: bool = False
    nice: int = 0

    def pin_ingestion(self) -> None:
        """Let this process, and the threads that it starts from now on, run on the first core."""
        if self.apart:
            os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])

    @contextmanager
    def pinning_others(self, cores: Iterable[int]) -> Iterator[None]:
        """Processes that are started here run on the other cores."""
        own = os.sched_getaffinity(0)
        if self.apart:
            os.sched_setaffinity(0, set(cores) - own)
        try:
            yield
        finally:
            os.sched_setaffinity(0, own)


@dataclass
class TimedLock:
    """A lock that adds up how long it took to acquire it."""

    lock: Lock
    waits: list[float]

    def acquire(self) -> None:
        """Acquire it."""
        begin = time.monotonic()
        self.lock.acquire()
        self.waits.append(time.monotonic() - begin)

    def verify(self) -> None:
        """Raise ConflictError unless it is held."""
        self.lock.verify()

    def release(self) -> None:
        """Release it."""
        self.lock.release()


@contextmanager
def timed_locks() -> Iterator[list[float]]:
    """Time the locks of this process."""
    waits: list[float] = []
    new_lock = WriterContext.new_lock

    def timed(context: WriterContext) -> Lock:
        return TimedLock(new_lock(context), waits)

    with patch.object(WriterContext, "new_lock", timed):
        yield waits


def writer(path: str, options: Mapping[str, str]) -> WriteClient:
    """What writes to the table, and serves it, in a plain loop."""
    client = WriteClient.create(LocalStorage(path), {**OPTIONS, **options}, SystemClock())
    return replace(client, engine=LocalEngine)


def rows(days: Iterable[str], group: int, ts: int) -> ArrowRows:
    """The rows of one file group in some partitions, all of them new versions."""
    values = [
        {"id": f"{day}-{group}-{n:05}", "day": day, "ts": ts} for day in days for n in range(ROWS)
    ]
    return ArrowRows(pa.Table.from_pylist(values, SCHEMA))


def file_ids(path: str) -> dict[str, set[str]]:
    """The file groups by partition."""
    snapshot = load_snapshot(LocalStorage(path))
    found: dict[str, set[str]] = {}
    for group in snapshot.groups(snapshot.view(), snapshot.files()):
        found.setdefault(group.key[0], set()).add(group.key[1])
    return found


def cluster(path: str, plans: Mapping[str, str], rounds: int, result_file: Path, nice: int) -> None:
    """Plan and execute, round after round."""
    os.nice(nice)
    first, results = file_ids(path), []
    for _ in range(rounds):
        preempted = False
        try:
            writer(path, plans).services.run("clustering")
        except (ConflictError, InvalidError, UnavailableError):
            preempted = True
        now = file_ids(path)
        cold = sum(len(first[day] - now[day]) for day in COLD)
        results.append((cold, len(first[HOT] - now[HOT]), preempted))
        time.sleep(PAUSE_S)
    result_file.write_text(json.dumps(results))


def measure(name: str, rounds: int, conditions: Conditions, cores: Iterable[int]) -> Measured:
    """Ingest until the rounds of clustering are over, or for as long if there are none."""
    with tempfile.TemporaryDirectory() as folder:
        path, result_file = f"{folder}/table", Path(folder) / "rounds"
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
            writer(path, {}).write(Operation.BULK_INSERT, rows((HOT, *COLD), group, 0))
        if name == CLUSTERED:
            writer(path, {}).services.run("clustering")
        _ingest(path, lambda number: number < GROUPS)  # what is imported and cached once
        plans = PLANS[name]
        if plans is None:
            return _ingest(path, lambda number: number < 3 * rounds)
        context = multiprocessing.get_context("spawn")
        arguments = (path, plans, rounds, result_file, conditions.nice)
        other = context.Process(target=cluster, args=arguments)
        with conditions.pinning_others(cores):
            other.start()
        ingested = _ingest(path, lambda _: other.is_alive())
        other.join()
        return replace(ingested, rounds=json.loads(result_file.read_text()))


def _ingest(path: str, goes_on: Callable[[int], bool]) -> Measured:
    durations, processor, lock, refused, number = [], [], [], 0, 0
    start = time.monotonic()
    while goes_on(number):
        batch = rows((HOT,), number % GROUPS, 1 + number)
        time.sleep(max(0.0, start + number * COMMIT_EVERY_S - time.monotonic()))
        number += 1
        with timed_locks() as waits:
            begin, begin_processor = time.monotonic(), time.process_time()
            while True:
                try:
                    writer(path, {}).write(Operation.UPSERT, batch)
                    break
                except ConflictError:
                    refused += 1
            durations.append(time.monotonic() - begin)
        processor.append(time.process_time() - begin_processor)
        lock.append(sum(waits))
    return Measured(durations, refused, processor, lock)


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
        label = f"{name}: {result.refused} refused"
        parts.append(_text(30 + 200 * index, 345, label, COLOURS[name]))
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
    """Measure, print the figures, and draw."""
    parser = argparse.ArgumentParser(description="Measure ingestion beside a clustering.")
    parser.add_argument("rounds", nargs="?", type=int, default=10)
    parser.add_argument("--apart", action="store_true", help="a core for each process")
    parser.add_argument("--nice", type=int, default=0, help="the niceness of the clustering")
    parser.add_argument("--out", type=Path, default=TARGET)
    arguments = parser.parse_args()
    conditions, cores = Conditions(arguments.apart, arguments.nice), os.sched_getaffinity(0)
    if conditions.apart and len(cores) < 2:
        parser.error("--apart needs two cores")
    conditions.pin_ingestion()
    measured = {name: measure(name, arguments.rounds, conditions, cores) for name in PLANS}
    for name, result in measured.items():
        print(json.dumps({"beside": name, **result.document()}))
    arguments.out.write_text(as_svg(measured))


if __name__ == "__main__":
    main()
