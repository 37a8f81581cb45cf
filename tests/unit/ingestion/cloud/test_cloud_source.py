"""Which commits of the events table a batch looks at."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from lakewright.errors import InvalidError
from lakewright.ingestion.checkpoints import Checkpoint, Version
from lakewright.ingestion.cloud.events import S3_SCHEMA
from lakewright.ingestion.cloud.options import EventTableSettings, SelectionSettings
from lakewright.ingestion.cloud.selection import (
    S3,
    CloudObject,
    ObjectFilter,
    ObjectPosition,
    select,
)
from lakewright.ingestion.cloud.source import (
    CloudMetadataIncrementalQueryRunner,
    CloudObjectsSource,
)
from lakewright.ingestion.options import MissingCheckpoint
from lakewright.ingestion.splitters import BoundedLoad, SnapshotLoadQuerySplitter
from lakewright.model.instant import Instant
from lakewright.scan.planner import EARLIEST, QueryContext
from lakewright.storage.memory import MemoryStorage
from lakewright.table.create import TableSpec, create_table
from lakewright.table.snapshot import load_snapshot
from lakewright.testing.clock import ManualClock
from lakewright.testing.table_builder import TableBuilder


def events_table(kind: str = "COPY_ON_WRITE") -> tuple[TableBuilder, list[Instant]]:
    """Three commits; the first to be requested is the last to complete."""
    table = TableBuilder(
        MemoryStorage.fresh(), S3_SCHEMA, partition_by=None, ordering=None, table_type=kind
    ).create()
    late = table.tick()
    return table, [*(table.commit() for _ in range(2)), table.commit(instant=late)]


def runner(
    table: TableBuilder, after: ObjectPosition | None, settings: EventTableSettings
) -> CloudMetadataIncrementalQueryRunner:
    return CloudMetadataIncrementalQueryRunner(
        spark=cast(SparkSession, None),
        snapshot=load_snapshot(table.storage),
        shape=S3,
        object_filter=ObjectFilter(SelectionSettings()),
        table=settings,
        after=after,
    )


TWO = EventTableSettings(instants=2)
RANGES: dict[str, tuple[EventTableSettings, tuple[int, str | None] | None, list[int]]] = {
    "without a place all are looked at": (EventTableSettings(), None, [0, 1, 2]),
    "without a place the last may be enough": (
        EventTableSettings(missing=MissingCheckpoint.READ_LATEST), None, [2]),
    "after a whole commit come the later ones": (EventTableSettings(), (0, None), [1, 2]),
    "a commit that was begun is looked at again": (EventTableSettings(), (0, "k"), [0, 1, 2]),
    "nothing is left after the last": (EventTableSettings(), (2, None), []),
    "the rest of the last may be left": (EventTableSettings(), (2, "k"), [2]),
    "a number of commits from the beginning": (TWO, None, [0, 1]),
    "a number of commits after a whole one": (TWO, (0, None), [1, 2]),
    "a commit that was begun does not count": (TWO, (0, "k"), [0, 1, 2]),
}  # fmt: skip


@pytest.mark.parametrize(("settings", "after", "expected"), RANGES.values(), ids=list(RANGES))
def test_commits_are_chosen_by_completion(
    settings: EventTableSettings, after: tuple[int, str | None] | None, expected: list[int]
) -> None:
    table, commits = events_table()
    place = (
        None if after is None else ObjectPosition(commits[after[0]].completed_at or "", after[1])
    )
    metadata = runner(table, place, settings).get_metadata()
    assert list(metadata.instants) == [commits[number] for number in expected]


@dataclass(frozen=True)
class EndsAt(SnapshotLoadQuerySplitter):
    """Splits a load at one commit."""

    end: str

    def next_end(self, context: QueryContext) -> str | None:
        return self.end


@pytest.mark.parametrize("point", [0, 1, 2])
def test_a_load_is_split_and_what_follows_is_not(point: int) -> None:
    table, commits = events_table()
    splitter = EndsAt(commits[point].completed_at or "")
    load = replace(runner(table, None, EventTableSettings()), splitter=splitter)
    metadata = load.get_metadata()
    assert list(metadata.instants) == commits[: point + 1]
    assert metadata.checkpoint == splitter.end
    rest = replace(load, after=ObjectPosition(metadata.checkpoint or "")).get_metadata()
    assert list(rest.instants) == commits[point + 1 :]


def test_a_load_is_split_by_the_options_of_a_table_as_a_source() -> None:
    source = CloudObjectsSource(
        MemoryStorage.fresh(), {"lakewright.source.snapshotload.max.rows": "100"}
    )
    assert source._splitter == BoundedLoad(max_rows=100)
    assert "lakewright.source.snapshotload.max.rows" in source.keys


def test_a_load_of_a_table_that_merges_on_read_is_a_range_and_no_snapshot() -> None:
    for kind, begin in (("COPY_ON_WRITE", EARLIEST), ("MERGE_ON_READ", "0" * 17)):
        table, _ = events_table(kind)
        metadata = runner(table, None, EventTableSettings()).get_metadata()
        assert metadata.begin == begin
        assert len(metadata.instants) == 3


def test_an_events_table_without_commits_yields_no_batch() -> None:
    storage = MemoryStorage.fresh()
    create_table(storage, ManualClock(), TableSpec(name="events", record_key=("eventTime",)))
    after = Checkpoint("20260101000000001", Version.V2)
    batch = CloudObjectsSource(storage, {}).next_batch(cast(SparkSession, None), after)
    assert (batch.rows, batch.checkpoint) == (None, after)


EVENTS = st.builds(
    CloudObject,
    completed_at=st.just(""),
    bucket=st.sampled_from(["left", "right"]),
    key=st.sampled_from("abcdef"),
    path=st.just(""),
    size=st.integers(1, 100),
    time=st.sampled_from("123456"),
)


@given(
    commits=st.lists(st.lists(EVENTS, max_size=6), min_size=1, max_size=6),
    new_commits=st.lists(st.integers(0, 2), min_size=1),
    files=st.integers(1, 4),
    size=st.none() | st.integers(1, 300),
)
def test_a_chain_of_batches_reads_every_object_after_its_newest_event(
    commits: list[list[CloudObject]], new_commits: list[int], files: int, size: int | None
) -> None:
    """Commits appear between batches, as `new_commits` says; in the end there are no more."""
    named = [
        [CloudObject(str(n), e.bucket, e.key, e.key, e.size, e.time) for e in commit]
        for n, commit in enumerate(commits, 1)
    ]
    there, place = 1, None
    last_read: dict[tuple[str, str], int] = {}
    steps = iter(new_commits)
    while True:
        events = [event for commit in named[:there] for event in commit]
        chosen = select(events, after=place, until=str(there), max_files=files, max_bytes=size)
        last_read |= {(item.bucket, item.path): there for item in chosen.objects}
        for item in chosen.objects:
            assert place is None or place.is_before(item.completed_at, item.key)
        if chosen.position == place and there == len(named):
            break
        place = chosen.position
        there = min(len(named), there + next(steps, 1))
    newest: dict[tuple[str, str], tuple[str, int]] = {}
    for number, commit in enumerate(named, 1):
        for event in commit:
            name = (event.bucket, event.path)
            newest[name] = max(newest.get(name, ("", 0)), (event.time, number))
    for name, (_, number) in newest.items():
        assert last_read[name] >= number


@pytest.mark.parametrize("version", [Version.V1, Version.V2])
@pytest.mark.parametrize("missing", ["eventName", "s3"])
def test_an_events_table_without_a_column_of_its_filters_is_refused(
    version: Version, missing: str
) -> None:
    schema = S3_SCHEMA.remove(S3_SCHEMA.get_field_index(missing))
    table = TableBuilder(MemoryStorage.fresh(), schema, key="eventTime", partition_by=None).create()
    commit = table.commit()
    time = commit.requested_at if version is Version.V1 else commit.completed_at
    source = CloudObjectsSource(table.storage, {})
    with pytest.raises(InvalidError, match="neither the columns of S3 events") as error:
        source.next_batch(cast(SparkSession, None), Checkpoint(f"{time}#k", version))
    assert missing not in error.value.facts["columns"]  # type: ignore[operator]
