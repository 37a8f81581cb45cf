"""Ingestion round after round, its options, and the services that run in parallel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, ClassVar, cast

import pytest
from pyspark.sql import SparkSession

from lakewright.api.table import Table
from lakewright.clock import SystemClock
from lakewright.engine.local import LocalEngine
from lakewright.errors import ConflictError, CorruptError, InvalidError, UnavailableError
from lakewright.ingestion.checkpoints import Checkpoint
from lakewright.ingestion.ingester import IngestResult
from lakewright.ingestion.loop import (
    Ingestion,
    ServiceMode,
    backoff_s,
    ingestion,
    parse_mode,
    sql_transform,
    writer_options,
)
from lakewright.ingestion.source import (
    Batch,
    Source,
    register_source,
    source_kind,
    source_names,
    unregister_source,
)
from lakewright.model.instant import Action
from lakewright.model.plans import Skip
from lakewright.storage.memory import MemoryStorage
from lakewright.table.snapshot import load_snapshot
from lakewright.testing.clock import ManualClock
from support.ingestion import (
    INGESTION_OPTIONS,
    CountingSource,
    arrow_rows,
    first_keys,
    ingester,
    stored_keys,
)
from support.processes import wait_until

SPARK = cast("SparkSession", SimpleNamespace(conf=SimpleNamespace(getAll={})))


@dataclass
class Moody(CountingSource):
    """Fails with the errors of a test before it returns its batches."""

    moods: list[Exception | None] = field(default_factory=list)

    def next_batch(self, spark: Any, after: Checkpoint | None) -> Batch:
        mood = self.moods.pop(0) if self.moods else None
        if mood is not None:
            raise mood
        return super().next_batch(spark, after)


@dataclass
class Watch:
    """Sees the rounds go by, at which times, and stops after some."""

    clock: ManualClock
    most: int
    rounds: list[IngestResult] = field(default_factory=list)
    ended_ms: list[int] = field(default_factory=list)

    def __call__(self, result: IngestResult) -> None:
        self.rounds.append(result)
        self.ended_ms.append(self.clock.now_ms())

    def stop(self) -> bool:
        return len(self.rounds) >= self.most


def test_rounds_begin_some_time_apart_until_the_loop_is_stopped() -> None:
    storage, clock = MemoryStorage.fresh(), ManualClock()
    watch = Watch(clock, 5)
    made = Ingestion(ingester(storage, CountingSource(), clock))
    last = made.run_continuously(30, watch.stop, watch)
    assert stored_keys(storage) == first_keys(10)
    assert [result.number for result in watch.rounds] == [1, 2, 3, 4, 5]
    assert [result.commit is not None for result in watch.rounds] == [
        True,
        True,
        True,
        False,
        False,
    ]
    assert last == watch.rounds[-1]
    gaps = [b - a for a, b in zip(watch.ended_ms, watch.ended_ms[1:], strict=False)]
    assert all(29_000 <= gap <= 31_000 for gap in gaps)


def test_a_round_that_took_long_is_followed_at_once() -> None:
    storage, clock = MemoryStorage.fresh(), ManualClock()
    source = CountingSource(on_read=lambda: clock.sleep(40))
    watch = Watch(clock, 3)
    Ingestion(ingester(storage, source, clock)).run_continuously(30, watch.stop, watch)
    gaps = [b - a for a, b in zip(watch.ended_ms, watch.ended_ms[1:], strict=False)]
    assert all(40_000 <= gap <= 41_000 for gap in gaps)
    assert watch.rounds[0].took_ms >= 40_000


def test_what_may_pass_is_tried_again_less_and_less_often() -> None:
    storage, clock = MemoryStorage.fresh(), ManualClock()
    away = [UnavailableError("away"), ConflictError("lost"), UnavailableError("away")]
    source = Moody(moods=[*away, None, UnavailableError("away")])
    watch = Watch(clock, 8)
    Ingestion(ingester(storage, source, clock)).run_continuously(0, watch.stop, watch)
    assert stored_keys(storage) == first_keys(10)
    assert [result.error is not None for result in watch.rounds[:5]] == [True] * 3 + [False, True]
    gaps = [b - a for a, b in zip(watch.ended_ms, watch.ended_ms[1:], strict=False)]
    assert [round(gap / 1000) for gap in gaps[:3]] == [1, 2, 4]


def test_rests_do_not_grow_for_ever() -> None:
    assert [backoff_s(failures) for failures in (0, 1, 2, 3, 4, 100)] == [0, 1, 2, 4, 8, 60]


def test_what_will_not_pass_ends_it() -> None:
    storage, clock = MemoryStorage.fresh(), ManualClock()
    watch = Watch(clock, 100)
    source = Moody(moods=[None, CorruptError("torn")])
    with pytest.raises(CorruptError, match="torn"):
        Ingestion(ingester(storage, source, clock)).run_continuously(0, watch.stop, watch)
    assert [type(result.outcome).__name__ for result in watch.rounds] == ["Commit", "CorruptError"]
    assert stored_keys(storage) == first_keys(4)


def test_a_single_round_raises_what_went_wrong() -> None:
    storage, clock = MemoryStorage.fresh(), ManualClock()
    watch = Watch(clock, 1)
    made = Ingestion(ingester(storage, Moody(moods=[UnavailableError("away")]), clock))
    with pytest.raises(UnavailableError, match="away"):
        made.run_once(watch)
    assert made.run_once(watch) == watch.rounds[0]


def test_services_run_in_parallel_to_rounds() -> None:
    # A driven clock would race: whichever thread sleeps would move the time for the other.
    storage, clock = MemoryStorage.fresh(), SystemClock()
    merged = {
        "hoodie.datasource.write.table.type": "MERGE_ON_READ",
        "hoodie.compact.inline.max.delta.commits": "1",
        "hoodie.write.lock.provider": "in_process",
        # Rows go to log files, which a compaction then finds.
        "hoodie.index.type": "BUCKET",
        "hoodie.bucket.index.num.buckets": "1",
    }
    writes = writer_options(merged, ServiceMode.ASYNC)
    made = ingester(storage, CountingSource(size=2), clock, writes)
    rounds: list[IngestResult] = []

    def compacted() -> bool:
        return bool(load_snapshot(storage).timeline.completed_services(Action.COMPACTION))

    def stop() -> bool:
        if stored_keys(storage) != first_keys(10):
            return False
        wait_until(compacted, lambda: [step for result in rounds for step in result.services])
        return True

    everything = Ingestion(made, ServiceMode.ASYNC, {**INGESTION_OPTIONS, **merged})
    everything.run_continuously(0.05, stop, rounds.append)
    assert stored_keys(storage) == first_keys(10)
    first = Ingestion(made, ServiceMode.ASYNC, {**INGESTION_OPTIONS, **merged}).run_once(
        rounds.append
    )
    assert first.commit is None
    assert not first.services


def test_a_single_round_is_followed_by_services() -> None:
    storage, clock = MemoryStorage.fresh(), ManualClock()
    more = {"hoodie.write.lock.provider": "in_process"}
    writes = writer_options(more, ServiceMode.ASYNC)
    made = ingester(storage, CountingSource(), clock, writes)
    result = Ingestion(made, ServiceMode.ASYNC, {**INGESTION_OPTIONS, **more}).run_once(
        lambda _: None
    )
    assert [step.service for step in result.services] == ["clean", "archive"]
    assert result.commit is not None
    assert result.commit.services == ()


def test_modes_of_services() -> None:
    options = {"hoodie.clean.automatic": "true"}
    assert writer_options(options, ServiceMode.INLINE) == options
    async_options = writer_options(options, ServiceMode.ASYNC)
    assert async_options["hoodie.clean.automatic"] == "false"
    assert async_options["hoodie.write.concurrency.mode"] == "OPTIMISTIC_CONCURRENCY_CONTROL"
    assert writer_options({}, ServiceMode.OFF)["hoodie.archive.automatic"] == "false"
    with pytest.raises(InvalidError, match="services are off"):
        writer_options(options, ServiceMode.OFF)
    assert parse_mode(" Async ") is ServiceMode.ASYNC
    with pytest.raises(InvalidError, match="no such mode"):
        parse_mode("sometimes")


def test_no_services_leave_the_table_to_others() -> None:
    storage, clock = MemoryStorage.fresh(), ManualClock()
    writes = writer_options({}, ServiceMode.OFF)
    made = ingester(storage, CountingSource(size=1, total=40), clock, writes)
    for _ in range(40):
        made.run()
    assert {instant.action for instant in load_snapshot(storage).timeline} == {"commit"}


@register_source
class Named(Source):
    """A source that users add."""

    name: ClassVar[str] = "named"
    keys: ClassVar[frozenset[str]] = frozenset({"lakewright.source.named.size"})

    def __init__(self, options: Mapping[str, str]) -> None:
        self.options = options

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> Named:
        return cls(options)

    def next_batch(self, spark: Any, after: Checkpoint | None) -> Batch:
        size = int(self.options["lakewright.source.named.size"])
        return CountingSource(size=size).next_batch(spark, after)


def made(options: Mapping[str, str] | None = None, **facts: Any) -> Ingestion:
    table = facts.pop("table", None) or Table(MemoryStorage.fresh())
    source = facts.pop("source", "named")
    settings = {**INGESTION_OPTIONS, "lakewright.source.named.size": "3", **(options or {})}
    loop = ingestion(SPARK, source, table, options=settings, clock=ManualClock(), **facts)
    loop.ingester.incoming = arrow_rows
    writer = replace(loop.ingester.writer, engine=LocalEngine)
    return replace(loop, ingester=replace(loop.ingester, writer=writer))


def test_options_go_where_they_belong() -> None:
    loop = made({"hoodie.clean.automatic": "false", "fs.s3a.endpoint": "there"})
    assert isinstance(loop.ingester.source, Named)
    assert loop.ingester.source.options["fs.s3a.endpoint"] == "there"
    assert "lakewright.source.named.size" not in loop.ingester.writer.options
    assert "fs.s3a.endpoint" not in loop.ingester.writer.options
    result = loop.run_once(lambda _: None)
    assert (result.source, result.rows) == ("named", 3)


def test_a_path_is_a_table_too() -> None:
    storage = MemoryStorage.fresh()
    loop = made(table=storage.root)
    loop.run_once(lambda _: None)
    assert stored_keys(storage) == first_keys(3)


def test_names_of_sources_and_of_transformations_may_be_options() -> None:
    loop = made(
        {
            "hoodie.deltastreamer.multiwriter.source.checkpoint.id": "mine",
            "hoodie.streamer.transformer.sql": "SELECT * FROM <SRC>",
        }
    )
    assert loop.ingester.source_name == "mine"
    assert loop.ingester.transform is not None


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "a source that is not there": ({"source": "nowhere"}, "no such source"),
    "an option that only looks right": (
        {"options": {"lakewright.source.named.sice": "3"}},
        "did_you_mean='lakewright.source.named.size'",
    ),
    "options of a source for one that is made already": (
        {"source": CountingSource()},
        "no such option",
    ),
    "a query that reads nothing": ({"transform": "SELECT 1"}, "does not say <SRC>"),
    "two queries": (
        {"transform": "FROM <SRC>", "options": {"hoodie.streamer.transformer.sql": "FROM <SRC>"}},
        "given twice",
    ),
    "no operation": ({"operation": "improve"}, "no such operation"),
    "partitions to delete": (
        {"options": {"hoodie.datasource.write.operation": "delete_partition"}},
        "not partitions",
    ),
    "two operations": ({"operation": "delete"}, "another operation"),
    "a mode of services that is none": ({"services": "maybe"}, "no such mode"),
    "an option of writes that is none": ({"options": {"hoodie.nonsense": "1"}}, "no such option"),
}


@pytest.mark.parametrize(("facts", "message"), BAD.values(), ids=list(BAD))
def test_refused_before_anything_is_read(facts: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidError, match=message):
        made(**facts)


def test_an_interval_is_no_less_than_none() -> None:
    with pytest.raises(InvalidError, match="negative"):
        made().run_continuously(-1, lambda: True, lambda _: None)


def test_braces_of_a_query_are_its_own() -> None:
    queries: list[tuple[str, dict[str, Any]]] = []
    session = SimpleNamespace(sql=lambda text, **names: queries.append((text, names)))
    frame = SimpleNamespace(sparkSession=session)
    sql_transform("SELECT '{x}' FROM <SRC> JOIN <SRC>")(cast(Any, frame))
    ((text, names),) = queries
    assert text.format(**dict.fromkeys(names, "v")) == "SELECT '{x}' FROM v JOIN v"


def test_the_sources_there_are() -> None:
    assert {"hudi", "files", "kafka", "s3-events", "gcs-events", "cloud"} <= set(source_names())
    for name in set(source_names()) - {"named"}:
        kind = source_kind(name)
        assert kind.name == name
        assert kind.keys
    with pytest.raises(InvalidError, match="built in"):
        register_source(source_kind("files"))
    unregister_source("named")
    assert "named" not in source_names()
    register_source(Named)
    assert isinstance(made().run_once(lambda _: None).outcome, Skip) is False
