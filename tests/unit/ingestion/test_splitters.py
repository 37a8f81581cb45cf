"""A load in batches: by the statistics of commits, or by a registered splitter."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pytest

from lakewright.errors import InvalidError
from lakewright.format.timeline_metadata import format_commit
from lakewright.ingestion import splitters
from lakewright.ingestion.splitters import (
    BoundedLoad,
    SnapshotLoadQuerySplitter,
    brought,
    register_splitter,
    split_load,
    splitter_for,
)
from lakewright.model.commit_metadata import CommitMetadata, WriteStat
from lakewright.model.instant import Action, Instant
from lakewright.scan.planner import EARLIEST, IncrementalQueryAnalyzer, QueryContext
from lakewright.table.snapshot import load_snapshot
from support.tables import BuiltTable, versions

CLASS_NAME = "hoodie.deltastreamer.snapshotload.query.splitter.class.name"


def table_of(*commits: CommitMetadata) -> tuple[QueryContext, list[Instant]]:
    """A table with these commits, from the beginning."""
    built = BuiltTable()
    instants = []
    for commit in commits:
        instant = Instant(built.tick(), Action.COMMIT, completed_at=built.tick())
        built.put(instant, format_commit(commit))
        instants.append(instant)
    return unread(built), instants


def unread(built: BuiltTable) -> QueryContext:
    snapshot = load_snapshot(built.storage)
    return IncrementalQueryAnalyzer(snapshot=snapshot, begin=EARLIEST).analyze()


def wrote(*stats: WriteStat, operation: str = "UPSERT") -> CommitMetadata:
    return CommitMetadata(stats={"d": stats}, operation=operation)


def took_over(fresh: int, rows: int, size: int) -> WriteStat:
    """A file of which some rows are new."""
    return WriteStat(
        file_id="f",
        path="d/f",
        num_inserts=fresh,
        num_update_writes=0,
        num_writes=rows,
        total_write_bytes=size,
    )


HUNDRED = wrote(took_over(60, 120, 1000), WriteStat(file_id="g", path="d/g", num_writes=40))
CLUSTERED = wrote(took_over(500, 500, 9000), operation="CLUSTER")
NOTHING = CommitMetadata(operation="UPSERT")

# How many of the commits the first batch holds.
BOUNDS: dict[str, tuple[tuple[CommitMetadata, ...], BoundedLoad, int]] = {
    "the commit that reaches the bound is the last": ((HUNDRED,) * 4, BoundedLoad(101), 2),
    "a bound that is met exactly": ((HUNDRED,) * 4, BoundedLoad(200), 2),
    "a bound below one commit": ((HUNDRED,) * 4, BoundedLoad(1), 1),
    "a bound that is not reached": ((HUNDRED,) * 4, BoundedLoad(401), 4),
    "of a file only what is new counts": ((HUNDRED,) * 4, BoundedLoad(max_bytes=501), 2),
    "what is reached first counts": ((HUNDRED,) * 4, BoundedLoad(301, 501), 2),
    "a service counts nothing": ((HUNDRED, CLUSTERED, HUNDRED, HUNDRED), BoundedLoad(150), 3),
    "nor does an empty commit": ((NOTHING, HUNDRED, NOTHING, HUNDRED), BoundedLoad(100), 2),
    "many commits are read in pieces": ((HUNDRED,) * 120, BoundedLoad(11_000), 110),
}


@pytest.mark.parametrize(("commits", "bound", "taken"), BOUNDS.values(), ids=list(BOUNDS))
def test_bounds(commits: tuple[CommitMetadata, ...], bound: BoundedLoad, taken: int) -> None:
    context, instants = table_of(*commits)
    batch = split_load(context, bound)
    assert batch.instants == tuple(instants[:taken])
    assert batch.checkpoint == instants[taken - 1].completed_at
    assert batch.until == (None if taken == len(instants) else instants[taken - 1].completed_at)


@dataclass(frozen=True)
class At(SnapshotLoadQuerySplitter):
    """Ends a batch at a given time."""

    end: str

    def next_end(self, context: QueryContext) -> str | None:
        return self.end


SPLIT_POINTS = {
    "at the first of three commits": (0, 1),
    "at the second": (1, 2),
    "at the third, which is all": (2, 3),
}


@pytest.mark.parametrize(("point", "taken"), SPLIT_POINTS.values(), ids=list(SPLIT_POINTS))
def test_a_splitter_of_ones_own(registered: None, point: int, taken: int) -> None:
    context, instants = table_of(HUNDRED, HUNDRED, HUNDRED)
    options = {CLASS_NAME: "org.example.At", "at": instants[point].completed_at or ""}
    splitter = splitter_for(options)
    assert splitter is not None
    batch = split_load(context, splitter)
    assert batch.instants == tuple(instants[:taken])
    assert batch.from_beginning


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    def made(options: Mapping[str, str]) -> SnapshotLoadQuerySplitter:
        return At(options["at"])

    monkeypatch.setattr(splitters, "_FACTORIES", dict(splitters._FACTORIES))
    register_splitter("org.example.At", made)


def test_a_batch_that_ends_before_it_begins_is_refused() -> None:
    context, _ = table_of(HUNDRED)
    with pytest.raises(InvalidError, match="before its first write"):
        split_load(context, At("2"))


def test_a_batch_never_ends_before_what_was_read_already() -> None:
    context, instants = table_of(HUNDRED, HUNDRED, HUNDRED)
    batch = split_load(context, BoundedLoad(1), min_end=instants[1].completed_at or "")
    assert batch.instants == tuple(instants[:2])


def test_a_splitter_needs_a_name() -> None:
    with pytest.raises(InvalidError, match="no name"):
        register_splitter(" ", BoundedLoad.from_options)


def test_a_built_table_counts_the_rows_of_its_files() -> None:
    built = BuiltTable()
    built.write({("d", "f"): versions(a=1, b=1)})
    built.write({("d", "g"): versions(c=1)})
    built.write({("d", "h"): versions(d=1)})
    assert [commit is not None for _, commit in brought(unread(built))] == [True] * 3
    assert len(split_load(unread(built), BoundedLoad(3)).instants) == 2


def test_no_bounds_and_no_name_is_no_splitter() -> None:
    assert splitter_for({}) is None


def test_writes_that_completed_at_the_same_time_stay_together() -> None:
    built = BuiltTable()
    first, second, then, last = (built.tick() for _ in range(4))
    instants = [Instant(at, Action.COMMIT, completed_at=then) for at in (first, second)]
    instants.append(Instant(then, Action.COMMIT, completed_at=last))
    for instant in instants:
        built.put(instant, format_commit(HUNDRED))
    assert split_load(unread(built), BoundedLoad(1)).instants == (instants[0], instants[1])
