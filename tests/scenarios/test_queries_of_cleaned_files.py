"""Queries of the past whose files a clean has deleted or will delete: no row is lost silently."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from lakewright.errors import InvalidError
from lakewright.model.instant import Instant
from lakewright.scan.planner import plan_changes, plan_snapshot
from lakewright.table.snapshot import load_snapshot
from lakewright.testing.local_reads import read_plan
from lakewright.testing.storage import Crash, CrashingStorage
from lakewright.write.writer import Commit
from support.tables import NO_SERVICES, WrittenTable, row

QUIET = NO_SERVICES
ONE = {"hoodie.clean.commits.retained": "1"}
COMPACT = {"hoodie.compact.inline.max.delta.commits": "1"}
ALL = [("a", "w1"), ("b", "w2"), ("c", "first")]


def changes(table: WrittenTable, **bounds: object) -> list[tuple[str, str]]:
    plan = plan_changes(load_snapshot(table.storage), **bounds)  # type: ignore[arg-type]
    rows = read_plan(table.storage, plan.plan).to_pylist()
    return sorted((record["id"], record["note"]) for record in rows)


def planned(table: WrittenTable, service: str, options: dict[str, str]) -> str:
    scheduled = table.services(options).schedule(service)
    assert isinstance(scheduled, Instant)
    return scheduled.requested_at


def compacted_between() -> tuple[WrittenTable, list[Commit]]:
    """Two writes to one group, and a compaction that was scheduled between them and has ended."""
    table = WrittenTable(options=QUIET).create("MERGE_ON_READ")
    commits = [table.upsert([row("a"), row("b"), row("c")]), table.upsert([row("a", 2, "w1")])]
    at = planned(table, "compaction", COMPACT)
    commits.append(table.upsert([row("b", 2, "w2")]))
    table.services().execute(at)
    return table, commits


def compacted_after() -> tuple[WrittenTable, list[Commit]]:
    table = WrittenTable(options=QUIET).create("MERGE_ON_READ")
    commits = [table.upsert([row("a"), row("b"), row("c")]), table.upsert([row("a", 2, "w1")])]
    commits.append(table.upsert([row("b", 2, "w2")]))
    table.services(COMPACT).run("compaction")
    return table, commits


def cleaned(table: WrittenTable) -> None:
    commit = table.services(ONE).run("clean")
    assert isinstance(commit, Commit)
    assert commit.files


def half_cleaned(table: WrittenTable) -> None:
    at = planned(table, "clean", ONE)
    dying = replace(table, storage=CrashingStorage(table.storage, 2))
    with pytest.raises(Crash):
        dying.services().execute(at)


MADE = {
    "cleaned, and a later log stays": (compacted_between, cleaned),
    "about to be cleaned, and a later log stays": (compacted_between, half_cleaned),
    "cleaned": (compacted_after, cleaned),
    "about to be cleaned": (compacted_after, half_cleaned),
}


@pytest.mark.parametrize(("make", "clean"), MADE.values(), ids=list(MADE))
def test_changes_of_cleaned_slices(
    make: Callable[[], tuple[WrittenTable, list[Commit]]], clean: Callable[[WrittenTable], None]
) -> None:
    table, (first, _, last) = make()
    for number in range(3):
        table.upsert([row("z", number, day="other")])
    ranges: list[dict[str, object]] = [
        {"since": first.completed_at, "until": last.completed_at},
        {"since": first.completed_at, "limit": 2},
        {"until": last.completed_at},
        {"limit": 3},
    ]
    before = [changes(table, **bounds, fallback=False) for bounds in ranges]
    assert before == [ALL[:2], ALL[:2], ALL, ALL]
    clean(table)
    assert [changes(table, **bounds) for bounds in ranges] == before
    for bounds in ranges:
        with pytest.raises(InvalidError, match="were cleaned"):
            changes(table, **bounds, fallback=False)


def test_the_past_before_a_clean_that_died_is_refused() -> None:
    table = WrittenTable(options=QUIET).create()
    rows = [[row("a", n, f"v{n}"), row("b", n, f"v{n}", day="other")] for n in range(4)]
    commits = [table.upsert(batch) for batch in rows]
    half_cleaned(table)
    for commit in commits[:-1]:
        with pytest.raises(InvalidError, match="cleaned away"):
            plan_snapshot(load_snapshot(table.storage), as_of=commit.instant)
    plan = plan_snapshot(load_snapshot(table.storage), as_of=commits[-1].instant)
    assert read_plan(table.storage, plan).num_rows == 2
