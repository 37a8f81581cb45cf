"""Whatever comes between rounds, each of two sources has brought every row once in the end."""

from __future__ import annotations

import warnings
from collections import Counter
from contextlib import suppress
from functools import partial
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from lakewright.engine.local import ArrowRows
from lakewright.errors import LakewrightError
from lakewright.storage.base import Storage
from lakewright.storage.memory import MemoryStorage
from lakewright.table.snapshot import load_snapshot
from lakewright.testing.clock import ManualClock
from lakewright.testing.storage import Crash, CrashingStorage
from lakewright.write.task import Operation
from support.ingestion import CountingSource, first_keys, ingester, stored_keys
from support.soak import sized
from support.tables import SCHEMA, WrittenTable, row

SOURCES = (None, "second")
ARCHIVING = {
    "hoodie.keep.min.commits": "2",
    "hoodie.keep.max.commits": "3",
    "hoodie.clean.commits.retained": "1",
}

sources = st.sampled_from(SOURCES)
steps = st.one_of(
    st.tuples(st.just("round"), sources),
    st.tuples(st.just("death"), sources, st.integers(0, 25), st.booleans()),
    st.tuples(st.just("overtaken"), sources),
    st.tuples(st.just("other")),
    st.tuples(st.just("rollback")),
    st.tuples(st.just("archive")),
)


def round_of(storage: Storage, clock: ManualClock, source: Any, **facts: Any) -> None:
    ingester(storage, CountingSource(size=3, **facts), clock, source_name=source).run()


def take(step: tuple[object, ...], storage: MemoryStorage, clock: ManualClock) -> None:
    table = WrittenTable(storage, clock)
    match step:
        case ("round", source):
            round_of(storage, clock, source)
        case ("death", source, int(survive), bool(after)):
            with suppress(Crash):
                dying = CrashingStorage(storage, survive, after_effect=after)
                round_of(dying, clock, source)
        case ("overtaken", source):
            round_of(storage, clock, source, on_read=partial(round_of, storage, clock, source))
        case ("other",):
            rows = ArrowRows(pa.Table.from_pylist([row("other")], SCHEMA))
            table.writer().write(Operation.INSERT, rows)
        case ("rollback",):
            newest = load_snapshot(storage).timeline.completed_writes[-1:]
            for instant in newest:
                table.writer().rollback(instant.requested_at)
        case ("archive",):
            table.services(ARCHIVING).run("archive")


@settings(max_examples=sized(12, soak=500))
@given(st.lists(steps, max_size=12))
def test_every_row_of_each_source_comes_once(history: list[tuple[object, ...]]) -> None:
    clock = ManualClock()
    storage = MemoryStorage.fresh(now_ms=clock.now_ms)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        for step in history:
            clock.advance(60_000)
            with suppress(LakewrightError):
                take(step, storage, clock)
        for source in SOURCES:
            for _ in range(5):
                round_of(storage, clock, source)
    counts = Counter(key for key in stored_keys(storage) if key != "other")
    assert counts == Counter(dict.fromkeys(first_keys(10), len(SOURCES)))
