"""Ranges over completion times, drawn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from lakewright.errors import InvalidError
from lakewright.model.instant import Instant
from lakewright.scan.planner import EARLIEST, IncrementalQueryAnalyzer, QueryContext, RangeType
from lakewright.table.snapshot import Snapshot, load_snapshot
from lakewright.testing.timeline_drawing import at, draw
from support.tables import NO_SERVICES, WrittenTable, row

HOLLOW = """
    deltacommit |--|
    deltacommit  |--------|
    deltacommit     |--|
    """
STILL_HOLLOW = """
    deltacommit |--|
    deltacommit  |---------
    deltacommit     |--|
    """
CLOSED = RangeType.CLOSED_CLOSED


def drawn(picture: str, table_type: str = "MERGE_ON_READ") -> Snapshot:
    table = WrittenTable().create(table_type)
    return Snapshot(table.storage, load_snapshot(table.storage).config, draw(picture))


def analyzed(snapshot: Snapshot, **options: Any) -> QueryContext:
    """Analyze a range whose begin and end may be ticks."""
    arguments: dict[str, Any] = {
        name: at(value) if name in ("begin", "end") and isinstance(value, int) else value
        for name, value in options.items()
    }
    return IncrementalQueryAnalyzer(snapshot=snapshot, **arguments).analyze()


@dataclass(frozen=True)
class Case:
    """A range, and what it must choose: requested ticks in order, and the checkpoint."""

    picture: str
    options: dict[str, Any]
    expected: str
    checkpoint: int | None


RANGES = {
    "earliest to now: all, in the order of completion": Case(
        HOLLOW, {"begin": EARLIEST}, "0 4 1", 10
    ),
    "earliest to an end: what completed until then": Case(
        HOLLOW, {"begin": EARLIEST, "end": 7}, "0 4", 7
    ),
    "no begin and no end: the one that completed last": Case(HOLLOW, {}, "1", 10),
    "no begin and an end: the last that completed until then": Case(HOLLOW, {"end": 9}, "4", 7),
    "a begin: what completed after it": Case(HOLLOW, {"begin": 3}, "4 1", 10),
    "a begin and an end": Case(HOLLOW, {"begin": 3, "end": 7}, "4", 7),
    "a slow writer that ends after the position is not lost": Case(HOLLOW, {"begin": 7}, "1", 10),
    "an inflight write blocks no reader": Case(STILL_HOLLOW, {"begin": EARLIEST}, "0 4", 7),
    "the begin belongs to a closed range": Case(
        HOLLOW, {"begin": 3, "end": 7, "range_type": CLOSED}, "0 4", 7
    ),
    "a closed range of one point holds just that instant": Case(
        HOLLOW, {"begin": 7, "end": 7, "range_type": CLOSED}, "4", 7
    ),
    "an open range of one point is empty": Case(HOLLOW, {"begin": 7, "end": 7}, "", 7),
    "the limit counts instants and ends the range": Case(
        HOLLOW, {"begin": EARLIEST, "limit": 2}, "0 4", 7
    ),
    "a limit that is not reached changes nothing": Case(
        HOLLOW, {"begin": EARLIEST, "limit": 3}, "0 4 1", 10
    ),
    "a limit does not part two that completed at the same time": Case(
        """
    deltacommit |---|
    deltacommit  |--|
    deltacommit   |---|
    """,
        {"begin": EARLIEST, "limit": 1},
        "0 1",
        4,
    ),
    "nothing new keeps the checkpoint": Case(HOLLOW, {"begin": 10}, "", 10),
    "nothing at all": Case("clean |-|", {"begin": EARLIEST}, "", None),
    "nothing at all, and no begin": Case("clean |-|", {}, "", None),
    "a begin before all instants": Case(HOLLOW, {"begin": 2}, "0 4 1", 10),
    "a compaction is one of the instants": Case(
        """
    deltacommit |-|
    compaction     |--|
    """,
        {"begin": EARLIEST},
        "0 3",
        6,
    ),
    "a compaction can be left out, and the checkpoint moves past it": Case(
        """
    deltacommit |-|
    compaction     |--|
    """,
        {"begin": EARLIEST, "skip_compaction": True},
        "0",
        6,
    ),
}


@pytest.mark.parametrize("case", RANGES.values(), ids=list(RANGES))
def test_range(case: Case) -> None:
    context = analyzed(drawn(case.picture), **case.options)
    assert " ".join(tick(instant) for instant in context.instants) == case.expected
    assert context.checkpoint == (None if case.checkpoint is None else at(case.checkpoint))


def test_a_query_context_has_its_bounds() -> None:
    context = analyzed(drawn(HOLLOW), begin=3)
    assert (context.first_completed, context.last_completed) == (at(7), at(10))
    assert context.active == context.instants
    assert context.archived == ()
    assert not context.is_empty
    assert not context.is_snapshot
    assert analyzed(drawn(HOLLOW), begin=EARLIEST).is_snapshot
    assert analyzed(drawn(HOLLOW), begin=10).is_empty
    assert analyzed(drawn(HOLLOW), begin=10).first_completed is None


def test_a_limit_moves_the_end_of_the_range() -> None:
    context = analyzed(drawn(HOLLOW), begin=EARLIEST, limit=1)
    assert context.until == at(3)
    assert not context.is_snapshot


def test_chained_by_checkpoint_every_instant_comes_once() -> None:
    first = analyzed(drawn(STILL_HOLLOW), begin=EARLIEST)
    then = analyzed(drawn(HOLLOW), begin=first.checkpoint)
    assert [tick(i) for i in (*first.instants, *then.instants)] == ["0", "4", "1"]


def test_a_commit_on_copy_on_write_is_no_compaction() -> None:
    context = analyzed(drawn("commit |-|", "COPY_ON_WRITE"), begin=EARLIEST, skip_compaction=True)
    assert len(context.instants) == 1


def test_instants_that_take_long_are_found_exactly() -> None:
    """Instant number i completes a thousand ticks later."""
    picture = "\n".join(f"deltacommit {' ' * n}|{'-' * 999}|" for n in range(20))
    snapshot = drawn(picture)
    for begin in range(20):
        context = analyzed(snapshot, begin=1000 + begin, end=1000 + begin + 5)
        assert [tick(i) for i in context.instants] == [
            str(n) for n in range(begin + 1, min(begin + 6, 20))
        ]


BAD = {
    "a range that begins after its end": ({"begin": 7, "end": 3}, "after its end"),
    "a limit below one": ({"begin": EARLIEST, "limit": 0}, "at least one"),
}


@pytest.mark.parametrize(("options", "message"), BAD.values(), ids=list(BAD))
def test_bad_input(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidError, match=message):
        analyzed(drawn(HOLLOW), **options)


def served() -> WrittenTable:
    """Six instants: three writes, an overwrite, a clustering and a write."""
    table = WrittenTable(options=NO_SERVICES).create()
    for number in range(3):
        table.upsert([row(f"k{number}")])
    table.write("INSERT_OVERWRITE", [row("new", day="2026-01-02")])
    assert table.services({"hoodie.clustering.inline.max.commits": "1"}).run("clustering")
    table.upsert([row("last")])
    return table


def archive(table: WrittenTable) -> None:
    options = {
        "hoodie.clean.commits.retained": "1",
        "hoodie.keep.min.commits": "2",
        "hoodie.keep.max.commits": "3",
    }
    assert table.services(options).run("clean")
    assert table.services(options).run("archive")


@pytest.mark.parametrize("archived", [False, True], ids=["active", "archived"])
def test_services_and_overwrites_can_be_left_out(*, archived: bool) -> None:
    table = served()
    if archived:
        archive(table)
    snapshot = load_snapshot(table.storage)
    assert bool(snapshot.archived) is archived
    combinations: list[dict[str, Any]] = [
        {},
        {"skip_clustering": True},
        {"skip_insert_overwrite": True},
        {"skip_clustering": True, "skip_insert_overwrite": True},
    ]
    contexts = [analyzed(snapshot, begin=EARLIEST, **options) for options in combinations]
    assert [len(context.instants) for context in contexts] == [6, 5, 5, 4]
    assert [len(context.commit_times) for context in contexts] == [5, 5, 4, 4]
    assert {context.checkpoint for context in contexts} == {contexts[0].last_completed}


def test_an_archiver_at_work_shows_no_instant_twice() -> None:
    table = served()
    writes = [i.requested_at for i in load_snapshot(table.storage).timeline if i.is_write]
    files = table.storage.list_files(".hoodie/timeline")
    active_files = {file.path: table.storage.read(file.path) for file in files}
    archive(table)
    for path, data in active_files.items():
        if not table.storage.exists(path):
            table.storage.create(path, data)
    context = analyzed(load_snapshot(table.storage), begin=EARLIEST)
    assert sorted(i.requested_at for i in context.instants) == sorted(writes)


def tick(instant: Instant) -> str:
    return str(int(instant.requested_at[4:]))
