"""Rounds of clustering reach every partition, and end."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

import pytest

from lakewright.model.instant import Action
from lakewright.storage.memory import MemoryStorage
from lakewright.table.snapshot import load_snapshot
from lakewright.testing.storage import CountingStorage
from lakewright.write.writer import Commit
from support.services import clustering_options
from support.tables import NO_SERVICES, WrittenTable, row

DAYS = tuple(f"2026-03-{number:02d}" for number in range(1, 6))
APART = {**NO_SERVICES, "hoodie.parquet.small.file.limit": "0"}
OFF = {"hoodie.table.services.incremental.enabled": "false"}
ONE_GROUP = clustering_options(max_num_groups=1)
# Every file is a group of its own, and its output is as small as before.
EACH_FILE = {**ONE_GROUP, **clustering_options(max_bytes_per_group=1)}
ARCHIVE = {
    "hoodie.keep.min.commits": "2",
    "hoodie.keep.max.commits": "3",
    "hoodie.clean.commits.retained": "1",
}


def table_of(*days: str, files: int = 2) -> WrittenTable:
    """A table with some small files in each partition."""
    storage = CountingStorage(MemoryStorage.fresh())
    table = WrittenTable(storage=storage, options=APART).create()
    for number in range(files):
        table.upsert([row(f"k{number}", day=day) for day in days])
    return table


def run(table: WrittenTable, options: Mapping[str, str]) -> tuple[str, ...]:
    """Run a clustering; returns the partitions that it rewrote."""
    outcome = table.services(options).run("clustering")
    return outcome.partitions if isinstance(outcome, Commit) else ()


def rounds(table: WrittenTable, options: Mapping[str, str], most: int) -> list[tuple[str, ...]]:
    """Run clusterings until there is nothing to do."""
    done = []
    while planned := run(table, options):
        done.append(planned)
        assert len(done) <= most
    return done


@pytest.mark.parametrize("incremental", [{}, OFF], ids=["incremental", "off"])
def test_more_groups_than_a_plan_takes(incremental: Mapping[str, str]) -> None:
    table = table_of(*DAYS)
    before = table.rows()
    assert rounds(table, {**ONE_GROUP, **incremental}, most=5) == [(day,) for day in DAYS]
    assert table.rows() == before


@pytest.mark.parametrize("incremental", [{}, OFF], ids=["incremental", "off"])
def test_files_that_stay_small_are_rewritten_once(incremental: Mapping[str, str]) -> None:
    table = table_of(*DAYS[:3])
    done = rounds(table, {**EACH_FILE, **incremental}, most=6)
    assert sorted(done) == sorted([(day,) for day in DAYS[:3]] * 2)


def test_files_are_rewritten_once_though_their_clusterings_are_archived() -> None:
    table = table_of(*DAYS[:2], files=4)
    done = 0
    while run(table, EACH_FILE):
        done += 1
        assert done <= 8
        table.services(ARCHIVE).run("clean")
        table.services(ARCHIVE).run("archive")
    assert done == 8
    assert len(load_snapshot(table.storage).timeline.completed_services(Action.CLUSTERING)) < 8


def test_a_partition_that_is_written_all_the_time_does_not_hold_up_the_others() -> None:
    table = table_of(*DAYS)
    done: list[str] = []
    for number in range(10, 20):
        table.upsert([row(f"k{number}", day=DAYS[0])])
        done += run(table, ONE_GROUP)
    assert set(done[:5]) == set(DAYS)
    assert done[5:] == [DAYS[0]] * 5


def test_outputs_of_several_clusterings_are_merged_with_the_next_file() -> None:
    table = table_of(DAYS[0], files=4)
    size = max(file.size for file in table.storage.list_files(DAYS[0]))
    pairs = {**ONE_GROUP, **clustering_options(max_bytes_per_group=2 * size + size // 2)}
    assert len(rounds(table, pairs, most=4)) > 1
    table.upsert([row("k9", day=DAYS[0])])
    assert rounds(table, {}, most=1) == [(DAYS[0],)]
    snapshot = load_snapshot(table.storage)
    assert len(snapshot.groups(snapshot.view())) == 1


def test_other_sort_columns_rewrite_what_was_clustered() -> None:
    table = table_of(DAYS[0])
    by_note = {**OFF, **clustering_options(sort_columns="note")}
    assert rounds(table, OFF, most=1) == [(DAYS[0],)]
    assert rounds(table, by_note, most=1) == [(DAYS[0],)]
    assert rounds(table, OFF, most=1) == []


def test_named_partitions_are_rewritten_whatever_they_were_before() -> None:
    table = table_of(*DAYS[:2])
    rounds(table, {}, most=1)
    assert run(table, clustering_options(partition_selected=DAYS[0])) == (DAYS[0],)


SMALL = 20_000
WIDER: dict[str, tuple[Mapping[str, str], Mapping[str, str]]] = {
    "single files": (clustering_options(single_group_clustering_enabled="false"), {}),
    "larger files": (clustering_options(small_file_limit=SMALL), {}),
}


@pytest.mark.parametrize(("before", "after"), WIDER.values(), ids=list(WIDER))
def test_options_that_take_more_files_list_the_whole_table_once(
    before: Mapping[str, str], after: Mapping[str, str]
) -> None:
    table = table_of(DAYS[2])
    large = Random(1).randbytes(SMALL).hex()
    table.upsert([row("k", note=large, day=day) for day in DAYS[:2]])
    assert run(table, before) == (DAYS[2],)
    assert run(table, before) == ()
    assert run(table, after) == DAYS[:2]
    table.upsert([row("k", day=DAYS[3])])
    assert isinstance(table.storage, CountingStorage)
    table.storage.reset()
    assert run(table, after) == (DAYS[3],)
    listed = {path for method, path in table.storage.touched if method.startswith("list_")}
    assert not listed & {"", *DAYS[:3]}
