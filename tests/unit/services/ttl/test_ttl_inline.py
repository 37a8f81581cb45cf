"""TTL after writes: partitions renewed, triggers met, and what a clean starts."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from written import NO_SERVICES, WrittenTable, row

from lakewright.core.ttl_settings import ENABLED, POLICIES, RUN_INLINE, TRIGGER, TRIGGER_VALUE
from lakewright.table.last_update import last_update, load_partition_metadata
from lakewright.write.commit import Commit

DAY = 86_400
WEEK = '[{"spec":"*","level":"PARTITION","units":"DAYS","value":7}]'
OLD, NEW = "2026-01-01", "2026-01-02"


def table(**settings: str) -> WrittenTable:
    stored = {ENABLED: "true", POLICIES: WEEK, **settings}
    return WrittenTable(options=NO_SERVICES).create(options=stored)


def lines(made: WrittenTable) -> dict[str, str]:
    found = load_partition_metadata(made.storage, [OLD, NEW])
    return {path: last_update(metadata) for path, metadata in found.items()}


def gone(commit: Commit) -> list[tuple[str, ...]]:
    done = [each for each in commit.services if isinstance(each, Commit)]
    return [each.partitions for each in done if each.operation == "DELETE_PARTITION"]


def test_a_write_renews_its_partitions() -> None:
    made = table()
    first = made.upsert([row("a", day=OLD), row("b", day=NEW)])
    assert lines(made) == {OLD: first.completed_at, NEW: first.completed_at}
    second = made.upsert([row("b", 2, day=NEW)])
    assert lines(made) == {OLD: first.completed_at, NEW: second.completed_at}


def test_without_ttl_nothing_is_renewed() -> None:
    made = table(**{ENABLED: "false"})
    made.upsert([row("a", day=OLD)])
    assert lines(made) == {OLD: ""}


def test_a_service_renews_nothing() -> None:
    made = WrittenTable(options=NO_SERVICES).create(
        "MERGE_ON_READ", options={ENABLED: "true", POLICIES: WEEK}
    )
    made.upsert([row("a", day=OLD)])
    last = made.upsert([row("a", 2, day=OLD)])
    made.clock.sleep(DAY)
    assert made.services({"hoodie.compact.inline.max.delta.commits": "1"}).run("compaction")
    assert lines(made)[OLD] == last.completed_at


def test_after_some_commits_the_expired_go() -> None:
    made = table(**{TRIGGER_VALUE: "3"})
    made.upsert([row("a", day=OLD)])
    made.clock.sleep(8 * DAY)
    assert [gone(made.upsert([row("b", n, day=NEW)])) for n in range(1, 6)] == [
        [],
        [(OLD,)],
        [],
        [],
        [],
    ]
    assert [each["id"] for each in made.rows()] == ["b"]


def test_nothing_expired_is_not_looked_at_again_before_its_time() -> None:
    made = table(**{TRIGGER_VALUE: "3"})
    checked = []
    for n in range(1, 10):
        told = [str(each) for each in made.upsert([row("b", n, day=NEW)]).services]
        checked.append(any("expired" in each or "partition" in each for each in told))
    assert checked == [False, False, True] * 3


def test_after_some_days_the_expired_go() -> None:
    made = table(**{TRIGGER: "TIME_ELAPSED", TRIGGER_VALUE: "5"})
    made.upsert([row("a", day=OLD)])
    found = []
    for n in range(1, 7):
        made.clock.sleep(2 * DAY)
        found.append(gone(made.upsert([row("b", n, day=NEW)])))
    # The first write met the trigger, the next to do so was six days later, and then again.
    assert found == [[], [], [], [], [], [(OLD,)]]


CLEAN: Mapping[str, str] = {"hoodie.clean.automatic": "true", "hoodie.clean.commits.retained": "1"}


def test_where_it_is_not_inline_it_follows_a_clean() -> None:
    made = table(**{RUN_INLINE: "false"})
    made.upsert([row("a", day=OLD)])
    made.clock.sleep(8 * DAY)
    quiet = [gone(made.upsert([row("b", n, day=NEW)])) for n in range(1, 4)]
    assert quiet == [[], [], []]
    found = made.upsert([row("b", 9, day=NEW)], CLEAN)
    assert gone(found) == [(OLD,)]


@pytest.mark.parametrize("days", ["7", "-1"], ids=["on", "off"])
def test_the_keys_of_hudi_run_it_after_each_write(days: str) -> None:
    made = WrittenTable(options=NO_SERVICES).create()
    hudi = {
        "hoodie.partition.ttl.inline": "true",
        "hoodie.partition.ttl.strategy.days.retain": days,
    }
    made.upsert([row("a", day=OLD)])
    made.clock.sleep(8 * DAY)
    assert gone(made.upsert([row("b", day=NEW)], hudi)) == ([(OLD,)] if days == "7" else [])
